"""Results put in order: seeds together, and methods side by side that met the same data."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from cretta.bench import Buffer, Measures, Result
from cretta.report.content import Better, Cell, cell
from cretta.report.spread import less_one_block, pseudo_values
from cretta.report.styles import KNOWN


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number of a result, as reports show it."""

    name: str
    title: str
    better: Better
    digits: int
    of: Callable[[Measures, Result], float | None]


def _speed(told: Measures, result: Result) -> float | None:
    return None if math.isnan(told.images_per_second) else told.images_per_second


def _clean(told: Measures, result: Result) -> float | None:
    return None if result.clean_after is None else 100 * result.clean_after


ACCURACY = Measure("accuracy", "accuracy %", "higher", 2, lambda told, result: 100 * told.accuracy)
CALIBRATION = Measure("ece", "ECE %", "lower", 2, lambda told, result: 100 * told.calibration_error)
MEASURES = (
    ACCURACY,
    CALIBRATION,
    Measure("nll", "NLL", "lower", 3, lambda told, result: told.negative_log_likelihood),
    Measure("brier", "Brier", "lower", 3, lambda told, result: told.brier),
    Measure("clean", "clean after %", "higher", 2, _clean),
    Measure("energy", "energy", "neither", 2, lambda told, result: told.energy),
    Measure("skipped", "skipped", "neither", 0, lambda told, result: told.skipped),
    Measure("gflops", "GFLOPs", "neither", 1, lambda told, result: result.cost.get("gflops")),
    Measure("memory", "peak MB", "neither", 0, lambda told, result: result.cost.get("peak_megabytes")),
    Measure("speed", "images/s", "neither", 0, _speed),
)

_OF_METHOD = ("method", "preset", "options", "buffer")
"""What a run says of its method. All else, but the seed, is what methods are compared on."""
_WORDS = {
    "stream": "{} stream",
    "severity": "severity {}",
    "batch_size": "batches of {}",
    "delta": "δ = {}",
    "images": "first {} images",
    "size": "{} px",
    "model": "{}",
    "clean_after": "{} clean images after",
    "corruptions": "{} corruptions",
    "domains": "{}",
}
_ALWAYS = ("stream", "severity", "batch_size")


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    results: tuple[Result, ...]
    label: str
    """The method, and those of its settings in which it differs from others of that method."""
    setting: str
    """What it is compared on with others, but for the shift."""
    shift: str
    """What the stream passes through."""

    @property
    def run(self) -> dict[str, Any]:
        """What the runs have in common."""
        return {name: value for name, value in self.results[0].run.items() if name != "seed"}

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.results[0].run["method"])

    @property
    def seeds(self) -> tuple[int, ...]:
        """One of each run."""
        return tuple(result.run["seed"] for result in self.results)

    @property
    def parts(self) -> tuple[str, ...]:
        """The domains of a stream that passes through several, one after another, as its rows name them."""
        if len(self.run["domains"]) < 2 or self.run["stream"] == "mixed":
            return ()
        return tuple(dict.fromkeys(row.domain for row in self.results[0].rows))

    @cached_property
    def values(self) -> dict[str, dict[int, float]]:
        """Of each measure, by seed."""
        return self._values(None)

    @cached_property
    def blocks(self) -> dict[str, tuple[float, ...]]:
        """Of each measure, the pseudo-values over blocks of batches of the first seed."""
        return self._blocks(None)

    def cells(self, measures: Sequence[Measure], part: str | None = None) -> tuple[Cell, ...]:
        """Mean and deviation over seeds, of all or a part of the stream."""
        values = self.values if part is None else self._values(part)
        blocks = self.blocks if part is None else self._blocks(part)
        return tuple(cell(values[measure.name], blocks=blocks[measure.name]) for measure in measures)

    def _values(self, part: str | None) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {measure.name: {} for measure in MEASURES}
        for result in self.results:
            told = result.of(part)
            for measure in MEASURES:
                value = measure.of(told, result)
                if value is not None:
                    found[measure.name][result.run["seed"]] = float(value)
        return found

    def _blocks(self, part: str | None) -> dict[str, tuple[float, ...]]:
        first = self.results[0]
        rest = [(less.of(part), less) for (less,) in less_one_block([first])]
        whole = first.of(part)
        found = {}
        for measure in MEASURES:
            found[measure.name] = pseudo_values(measure.of(whole, first), [measure.of(*each) for each in rest])
        return found


def grouped(results: Iterable[Result]) -> list[Group]:
    """Results by what they have in common, in a lasting order: by data, then shift, then method."""
    sets: dict[str, dict[int, Result]] = {}
    for result in results:
        if result.rows:
            same = _text({**result.run, "seed": None, "materials": _materials(result)})
            sets.setdefault(same, {})[result.run["seed"]] = result
    members = sorted((tuple(each[seed] for seed in sorted(each)) for each in sets.values()), key=_order)
    settings = _settings([each[0] for each in members])
    shifts = _shifts([each[0].run for each in members])
    labels = _labels([each[0] for each in members], settings)
    return [Group(*each) for each in zip(members, labels, settings, shifts, strict=True)]


def by_setting(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups that are compared with each other."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.setting, []).append(group)
    return found


def _order(members: tuple[Result, ...]) -> tuple[Any, ...]:
    run = members[0].run
    known = list(KNOWN)
    place = known.index(run["method"]) if run["method"] in known else len(known)
    method = (place, str(run["method"]), len(run["options"]), _text(run))
    return (str(run["data"]), run["stream"], _text(run["domains"]), *method)


def _shifts(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each stream passes through in a few words, the same for no two of them."""
    names: dict[tuple[str, ...], str] = {}
    for run in runs:
        domains = tuple(run["domains"])
        between = " + " if run["stream"] == "mixed" else " → "
        short = between.join(domains if len(domains) <= 2 else (domains[0], "…", domains[-1]))
        short += f" ({len(domains)} domains)" if len(domains) > 2 else ""
        taken = {name for others, name in names.items() if others != domains}
        number = 1
        while (name := short if number == 1 else f"{short} #{number}") in taken:
            number += 1
        names[domains] = name
    return [names[tuple(run["domains"])] for run in runs]


def _settings(results: Sequence[Result]) -> list[str]:
    """What each is compared on, in words: the data, what is always told, and what differs among runs on that data."""
    told = [_compared_on(result) for result in results]
    differing = _differing(told, [str(each["data"]) for each in told])
    return [
        ", ".join(
            [
                str(each["data"]),
                *(
                    _worded(name, each[name])
                    for name in each
                    if name in (*_ALWAYS, *names) and (each[name] is not None or name == "images")
                ),
            ]
        )
        for each, names in zip(told, differing, strict=True)
    ]


def _compared_on(result: Result) -> dict[str, Any]:
    run, found = result.run, {}
    if len(run["domains"]) > 1:
        found["domains"] = f"{len(run['domains'])} domains"
    elif "/" in run["domains"][0]:
        found["severity"] = run["domains"][0].rpartition("/")[2]
    elif run["domains"][0] == "clean":
        found["domains"] = "clean"
    ordered = ("data", "stream", "delta")
    told = {name: run.get(name) for name in ordered} | found
    told |= {name: value for name, value in run.items() if name not in (*_OF_METHOD, "seed", "domains")}
    materials = _materials(result)
    told["corruptions"] = materials.get("corruptions")
    return told | {f"{name} fingerprint": materials.get(name) for name in ("model", "target")}


def _labels(results: Sequence[Result], settings: Sequence[str]) -> list[str]:
    """The method, with all in which it differs from others of that name in the same setting."""
    told = []
    for result in results:
        flat: dict[str, Any] = {"preset": result.run.get("preset"), **result.run["options"]}
        told.append(flat | {f"buffer {name}": value for name, value in result.run.get("buffer", {}).items()})
    methods = [str(result.run["method"]) for result in results]
    differing = _differing(told, [f"{setting}\n{method}" for setting, method in zip(settings, methods, strict=True)])
    labels = [
        " ".join([method, *(f"{name}={_plain(each[name])}" for name in each if name in names - _usual(each))])
        for method, each, names in zip(methods, told, differing, strict=True)
    ]
    # The same words may stand for other source images, or an older preset: then these tell.
    places = [
        (setting, tuple(result.run["domains"]), label)
        for setting, result, label in zip(settings, results, labels, strict=True)
    ]
    materials = [_materials(result) for result in results]
    told = [{name: each.get(name) for name in ("source", "preset")} for each in materials]
    differing = _differing(told, [_text(place) for place in places])
    return [
        " ".join([label, *(f"{name}={each[name]}" for name in each if name in names)])
        for label, each, names in zip(labels, told, differing, strict=True)
    ]


def _usual(told: Mapping[str, Any]) -> set[str]:
    """What need not be told of a buffer, for it is as always."""
    usual = {f"buffer {field.name}": field.default for field in dataclasses.fields(Buffer)}
    return {name for name, value in usual.items() if told.get(name) == value}


def _differing(told: Sequence[Mapping[str, Any]], peers: Sequence[str]) -> list[set[str]]:
    """For each, the names whose values are not the same for all of its peers."""
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for each, peer in zip(told, peers, strict=True):
        seen.setdefault(peer, []).append(each)
    names: dict[str, set[str]] = {}
    for peer, members in seen.items():
        every = {name for member in members for name in member}
        names[peer] = {name for name in every if len({_text(member.get(name)) for member in members}) > 1}
    return [names[peer] for peer in peers]


def _worded(name: str, value: Any) -> str:
    if value is None:
        return "all images"
    return _WORDS.get(name, f"{name} {{}}").format(value)


def _plain(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _materials(result: Result) -> dict[str, str]:
    found: dict[str, str] = result.provenance.get("materials", {})
    return found


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
