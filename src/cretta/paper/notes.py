"""What a reader must know about numbers beside the paper's: everything in which the runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cretta.bench import Run
from cretta.data.check import spaced
from cretta.paper.family import FEWER, WORST, Family, is_mild
from cretta.paper.printed import paper_data
from cretta.paper.readings import Readings
from cretta.paper.scale import FULL

_NAMED = 5
"""This many corruptions are named; more are counted."""
_NO_BASELINE = ("source", "bn_adapt", "cretta")
"""They have no learning rate, or a printed one."""


def notes(readings: Readings) -> tuple[str, ...]:
    """Return how the runs that were asked for last differ from the paper's, and what could not be run."""
    scale, requests = readings.scale, readings.requests()
    lines = [] if scale.comparable else [f"Numbers of scale {scale.name} are not comparable with the paper's."]
    for name, runs in requests.items():
        done = [run for run in runs if run in readings.results]
        if done:
            lines += _of_family(scale.family(name), FULL.family(name), done, readings)
            if len(done) + sum(run in readings.missing for run in runs) < len(runs):
                lines.append(f"{scale.family(name).title}: {len(done)} of {len(runs)} runs are done.")
    if len(scale.seeds) < len(FULL.seeds):
        seeds = "One seed" if len(scale.seeds) == 1 else "Two seeds"
        stated = " where no other number is stated" if any(scale.family(name).seeds for name in requests) else ""
        lines.append(f"{seeds}{stated}; the paper has three.")
    lines += [readings.missing[run] for runs in requests.values() for run in runs if run in readings.missing]
    return tuple(dict.fromkeys(lines))


def _of_family(family: Family, paper: Family, runs: Sequence[Run], readings: Readings) -> list[str]:
    parts = [_images(family, runs)]
    if family.size not in (None, paper.size):
        parts.append(f"scaled to {family.size} px")
    batches = sorted({family.batch(run.images) for run in runs})
    if batches != [paper.batch_size]:
        parts.append(f"in batches of {' or '.join(map(str, batches))} (paper: {paper.batch_size})")
    parts += _shifts(paper, runs)
    seeds: dict[str, set[int]] = {}
    for run in runs:
        if run.method in family.seeds:
            seeds.setdefault(run.method, set()).add(run.seed)
    several = {method: len(own) for method, own in seeds.items() if len(own) > 1}
    parts += [f"{count} seeds at severity {WORST} of {names}" for count, names in _by_number(several)]
    made = {readings.results[run].provenance.get("materials", {}).get("corruptions") for run in runs}
    if "generated" in made:
        parts.append("corrupted here, not the published images")
    baselines = any(run.method not in _NO_BASELINE for run in runs)
    return [
        f"{family.title}: {', '.join(parts)}. Network: {family.network}.",
        *family.remarks,
        *(family.baseline_remarks if baselines else ()),
    ]


def _images(family: Family, runs: Sequence[Run]) -> str:
    methods = {run.method for run in runs}
    # Source on the images of a method that has fewer says nothing before that method ran.
    base = {count for method, count in family.fewer.items() if method not in methods} - {family.images}
    counts = sorted({run.images for run in runs if run.images is not None and run.images not in base})
    exceptions = []
    if any(run.images == family.images for run in runs):  # those of a stream of several domains have their own number
        fewer = _by_number({method: count for method, count in family.fewer.items() if method in methods})
        exceptions = [f"{FEWER.strip()} the first {spaced(count)} with {names}" for count, names in fewer]
        if any(is_mild(run.domains) for run in runs):
            exceptions += [
                f"{spaced(count)} at milder severities with {names}" for count, names in _by_number(family.mild)
            ]
    if exceptions:
        counts = [] if family.images is None else [family.images]
    images = f"{' or '.join(map(spaced, counts))} images of each domain" if counts else "all images"
    source = ", from the slice that comes with cretta" if family.data == "embedded" and counts else ""
    return images + source + (f" ({'; '.join(exceptions)})" if exceptions else "")


def _by_number(numbers: Mapping[str, int]) -> list[tuple[int, str]]:
    """Return the numbers, the largest first, each with the methods that have it as the paper names them."""
    titles = {record.get("method", "cretta"): title for title, record in paper_data()["methods"].items()}
    return [
        (number, ", ".join(titles[method] for method, own in numbers.items() if own == number))
        for number in sorted(set(numbers.values()), reverse=True)
    ]


def _shifts(paper: Family, runs: Sequence[Run]) -> list[str]:
    """Name corruptions and severities that occur, where they are not all."""
    shifts = dict.fromkeys(d.corruption for run in runs for d in run.domains if d.severity is not None)
    parts = []
    corruptions = tuple(dict.fromkeys(corruption for corruption, _ in shifts))
    if 0 < len(corruptions) < len(paper.corruptions):
        named = f": {', '.join(corruptions)}" if len(corruptions) <= _NAMED else ""
        parts.append(f"{len(corruptions)} of {len(paper.corruptions)} corruptions{named}")
    severities = sorted({severity for _, severity in shifts})
    if len(severities) > 1 and tuple(severities) != paper.severities:
        averaged = tuple(dict.fromkeys(corruption for corruption, severity in shifts if severity != WORST))
        over = "" if len(averaged) == len(corruptions) else f" and {', '.join(averaged)}"
        parts.append(f"averages over severities {', '.join(map(str, severities))}{over}")
    return parts
