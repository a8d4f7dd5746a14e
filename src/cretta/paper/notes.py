"""What a reader must know about numbers beside the paper's: everything in which the runs differ."""

from __future__ import annotations

from collections.abc import Sequence

from cretta.bench import Run
from cretta.bench.benchmarks import split
from cretta.data.catalogue import spaced
from cretta.paper.family import WORST, Family
from cretta.paper.readings import Readings
from cretta.paper.scale import FULL, Scale

_NAMED = 5
"""So many corruptions are named; more are counted."""
_NO_BASELINE = ("source", "bn_adapt", "cretta")
"""They have no learning rate, or a printed one."""


def differences(readings: Readings, scale: Scale, plan: Sequence[Run], names: Sequence[str]) -> tuple[str, ...]:
    """How the runs of these families that were done differ from the paper's, and what could not be run."""
    told = [] if scale.comparable else [f"Numbers of scale {scale.name} are not comparable with the paper's."]
    for name in names:
        family = scale.family(name)
        done = [run for run in plan if run in readings.results]
        runs = [run for run in done if run.data.partition(":")[0] == family.data and _same(run, family)]
        if runs:
            told += _of(family, FULL.family(name), runs, readings)
    if len(scale.seeds) < len(FULL.seeds):
        told.append(f"{_count(len(scale.seeds), 'seed')}; the paper has three.")
    told += dict.fromkeys(readings.lacking[run] for run in plan if run in readings.lacking)
    return tuple(dict.fromkeys(told))


def _same(run: Run, family: Family) -> bool:
    """Whether the run is of the family: of its network, whatever the domain of PACS."""
    before, _, after = family.model.partition("{source}")
    return run.model.startswith(before) and run.model.endswith(after)


def _of(family: Family, paper: Family, runs: Sequence[Run], readings: Readings) -> list[str]:
    parts = [_images(family, runs)]
    if family.size not in (None, paper.size):
        parts.append(f"scaled to {family.size} px")
    batches = sorted({family.batch(run.images) for run in runs})
    if batches != [paper.batch_size]:
        parts.append(f"in batches of {' or '.join(map(str, batches))} (paper: {paper.batch_size})")
    parts += _shifts(paper, runs)
    made = {readings.results[run].provenance.get("materials", {}).get("corruptions") for run in runs}
    if "generated" in made:
        parts.append("corrupted here, not the published images")
    told = [f"{family.title}: {', '.join(part for part in parts if part)}. Network: {family.weights}.", *family.remarks]
    return [*told, *family.baseline_remarks] if any(run.method not in _NO_BASELINE for run in runs) else told


def _images(family: Family, runs: Sequence[Run]) -> str:
    counts = sorted({run.images for run in runs if run.images is not None})
    if not counts:
        return "all images"
    given = " or ".join(spaced(count) for count in counts)
    source = ", from the slice that comes with cretta" if family.data == "embedded" else ""
    return f"{given} images of each domain{source}"


def _shifts(paper: Family, runs: Sequence[Run]) -> list[str]:
    """Corruptions and severities that occur, where they are not all."""
    shifts = dict.fromkeys(split(domain) for run in runs for domain in run.domains if "/" in domain)
    told = []
    corruptions = tuple(dict.fromkeys(corruption for corruption, _ in shifts))
    if 0 < len(corruptions) < len(paper.corruptions):
        named = f": {', '.join(corruptions)}" if len(corruptions) <= _NAMED else ""
        told.append(f"{len(corruptions)} of {len(paper.corruptions)} corruptions{named}")
    severities = sorted({severity for _, severity in shifts})
    if len(severities) > 1 and tuple(severities) != paper.severities:
        averaged = tuple(dict.fromkeys(corruption for corruption, severity in shifts if severity != WORST))
        over = "" if len(averaged) == len(corruptions) else f" and {', '.join(averaged)}"
        told.append(f"averages over severities {', '.join(map(str, severities))}{over}")
    return told


def _count(number: int, thing: str) -> str:
    words = {1: "one", 2: "two", 3: "three"}
    return f"{words.get(number, str(number))} {thing}{'s' if number != 1 else ''}".capitalize()
