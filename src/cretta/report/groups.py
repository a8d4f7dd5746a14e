"""Results in order: seeds together, and methods side by side that ran on the same data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from cretta.bench import BatchRow, Buffer, Measures, Result, Run
from cretta.data.domains import CLEAN
from cretta.report.content import Better, Cell, Column, cell
from cretta.report.spread import less_one_block, pseudo_values
from cretta.report.styles import KNOWN


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number of a result, as reports show it."""

    title: str
    better: Better
    digits: int
    value: Callable[[Measures, Result], float | None]

    @property
    def column(self) -> Column:
        """The column of a table that shows it."""
        return Column(self.title, better=self.better, digits=self.digits)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


ACCURACY = Metric("accuracy %", "higher", 2, lambda scores, result: _percent(scores.accuracy))
CALIBRATION = Metric("ECE %", "lower", 2, lambda scores, result: _percent(scores.calibration_error))
SKIPPED = Metric("skipped", "neither", 0, lambda scores, result: scores.skipped)
SPEED = Metric("images/s", "neither", 0, lambda scores, result: scores.images_per_second)
METRICS = (
    ACCURACY,
    CALIBRATION,
    Metric("NLL", "lower", 3, lambda scores, result: scores.negative_log_likelihood),
    Metric("Brier", "lower", 3, lambda scores, result: scores.brier),
    Metric("clean after %", "higher", 2, lambda scores, result: _percent(result.clean_after)),
    Metric("energy", "neither", 2, lambda scores, result: scores.energy),
    SKIPPED,
    Metric("GFLOPs", "neither", 1, lambda scores, result: result.cost.get("gflops")),
    Metric("peak MB", "neither", 0, lambda scores, result: result.cost.get("peak_megabytes")),
    SPEED,
)

_OF_METHOD = ("method", "preset", "options", "buffer")
"""The fields of a run that describe its method. Methods are compared on all others, except the seed."""
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
    """What it is compared on with others, except the shift."""
    shift: str
    """The domains of the stream."""

    @property
    def run(self) -> Run:
        """The first of the runs, which differ in their seed only."""
        return self.results[0].run

    @property
    def method(self) -> str:
        """The method's name."""
        return self.results[0].run.method

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(result.run.seed for result in self.results)

    @property
    def parts(self) -> tuple[str, ...]:
        """The domains of a stream that has several, one after another, as its rows name them."""
        if len(self.run.domains) < 2 or self.run.stream == "mixed":
            return ()
        return tuple(dict.fromkeys(row.domain for row in self.results[0].rows))

    def only(self, parts: Collection[str]) -> Group:
        """Return the same runs with only the batches of these domains."""
        return self._with_rows(lambda rows: tuple(row for row in rows if row.domain in parts))

    def first(self, count: int) -> Group:
        """Return the same runs with only the first ``count`` batches."""
        return self._with_rows(lambda rows: rows[:count])

    def _with_rows(self, select: Callable[[tuple[BatchRow, ...]], tuple[BatchRow, ...]]) -> Group:
        results = tuple(dataclasses.replace(result, rows=select(result.rows)) for result in self.results)
        return dataclasses.replace(self, results=results)

    def values(self, metric: Metric) -> dict[int, float]:
        """Return the metric by seed; without the seeds that do not have it."""
        values = {result.run.seed: metric.value(scores, result) for scores, result in self._scored}
        return {seed: float(value) for seed, value in values.items() if value is not None}

    def blocks(self, metric: Metric) -> tuple[float, ...]:
        """Return the metric's pseudo-values over blocks of batches of the first seed."""
        return pseudo_values(metric.value(*self._scored[0]), [metric.value(*scored) for scored in self._less_one_block])

    def cells(self, metrics: Sequence[Metric]) -> tuple[Cell, ...]:
        """Return mean and deviation of each metric over seeds."""
        return tuple(cell(self.values(metric), blocks=self.blocks(metric)) for metric in metrics)

    @cached_property
    def _scored(self) -> list[tuple[Measures, Result]]:
        return [(result.of(), result) for result in self.results]

    @cached_property
    def _less_one_block(self) -> list[tuple[Measures, Result]]:
        return [(result.of(), result) for (result,) in less_one_block(self.results[:1])]


def grouped(results: Iterable[Result]) -> list[Group]:
    """Return results by what they have in common, in a fixed order: by data, then shift, then method."""
    sets: dict[str, dict[int, Result]] = {}
    for result in results:
        if result.rows:
            same = _text({**result.run.describe(), "seed": None, "materials": _materials(result)})
            sets.setdefault(same, {})[result.run.seed] = result
    members = sorted((tuple(by_seed[seed] for seed in sorted(by_seed)) for by_seed in sets.values()), key=_order)
    first = [results[0] for results in members]
    settings = _settings(first)
    columns = (members, _labels(first, settings), settings, _shifts([result.run for result in first]))
    return [Group(*fields) for fields in zip(*columns, strict=True)]


def by(field: Literal["setting", "shift", "label"], groups: Iterable[Group]) -> dict[str, list[Group]]:
    """Return the groups by one of their fields, in the order in which its values appear."""
    members: dict[str, list[Group]] = {}
    for group in groups:
        members.setdefault(getattr(group, field), []).append(group)
    return members


def _order(members: tuple[Result, ...]) -> tuple[Any, ...]:
    run = members[0].run
    known = list(KNOWN)
    rank = known.index(run.method) if run.method in known else len(known)
    method = (rank, run.method, len(run.options), _text(run.describe()))
    return (run.data, run.stream, _text(list(map(str, run.domains))), *method)


def _shifts(runs: Sequence[Run]) -> list[str]:
    """Return the domains of each stream in a few words; two different streams have different words."""
    names: dict[tuple[str, ...], str] = {}
    for run in runs:
        domains = tuple(map(str, run.domains))
        between = " + " if run.stream == "mixed" else " → "
        short = between.join(domains if len(domains) <= 2 else (domains[0], "…", domains[-1]))
        short += f" ({len(domains)} domains)" if len(domains) > 2 else ""
        taken = {name for others, name in names.items() if others != domains}
        number = 1
        while (name := short if number == 1 else f"{short} #{number}") in taken:
            number += 1
        names[domains] = name
    return [names[tuple(map(str, run.domains))] for run in runs]


def _settings(results: Sequence[Result]) -> list[str]:
    """Return what each is compared on: the data, some fields always, and those that differ among runs on that data."""
    facts = [_compared_on(result) for result in results]
    settings = []
    for fact, different in zip(facts, _differences(facts, [fact["data"] for fact in facts]), strict=True):
        shown = {name: value for name, value in fact.items() if name in _ALWAYS or name in different}
        words = [_worded(name, value) for name, value in shown.items() if value is not None or name == "images"]
        settings.append(", ".join([fact["data"], *words]))
    return settings


def _compared_on(result: Result) -> dict[str, Any]:
    run, domain = result.run, {}
    if len(run.domains) > 1:
        domain["domains"] = f"{len(run.domains)} domains"
    elif run.domains[0].severity is not None:
        domain["severity"] = str(run.domains[0].severity)
    elif run.domains[0].name == CLEAN:
        domain["domains"] = "clean"
    others = {name: value for name, value in run.describe().items() if name not in (*_OF_METHOD, "seed", "domains")}
    materials = _materials(result)
    return {
        **{name: getattr(run, name) for name in ("data", "stream", "delta")},
        **domain,
        **others,
        "corruptions": materials.get("corruptions"),
        **{f"{name} fingerprint": materials.get(name) for name in ("model", "target")},
    }


def _labels(results: Sequence[Result], settings: Sequence[str]) -> list[str]:
    """Return the method, with everything in which it differs from others of that name in the same setting."""
    usual = {f"buffer {field.name}": field.default for field in dataclasses.fields(Buffer)}
    options = []
    for run in (result.run for result in results):
        buffer = {f"buffer {name}": value for name, value in dataclasses.asdict(run.buffer).items()}
        options.append({"preset": run.preset, **dict(run.options), **buffer})
    peers = [(setting, result.run.method) for setting, result in zip(settings, results, strict=True)]
    labels = [
        _label(result.run.method, {k: v for k, v in different.items() if k not in usual or v != usual[k]})
        for result, different in zip(results, _differences(options, peers), strict=True)
    ]
    # The same words may stand for other source images, or an older preset: then add what they stood for.
    meanings = [{name: _materials(result).get(name) for name in ("source", "preset")} for result in results]
    same_words = [(s, r.run.domains, label) for s, r, label in zip(settings, results, labels, strict=True)]
    return list(map(_label, labels, _differences(meanings, same_words)))


def _label(name: str, options: Mapping[str, Any]) -> str:
    texts = {k: "+".join(map(str, v)) if isinstance(v, list | tuple) else str(v) for k, v in options.items()}
    return " ".join([name, *(f"{option}={text}" for option, text in texts.items())])


def _differences(facts: Sequence[Mapping[str, Any]], peers: Sequence[Hashable]) -> list[dict[str, Any]]:
    """Return the entries of each that are not the same for all with the same entry in ``peers``."""
    values: dict[tuple[Hashable, str], set[str]] = {}
    names = list(dict.fromkeys(name for fact in facts for name in fact))
    for fact, peer in zip(facts, peers, strict=True):
        for name in names:
            values.setdefault((peer, name), set()).add(_text(fact.get(name)))
    return [
        {name: value for name, value in fact.items() if len(values[peer, name]) > 1}
        for fact, peer in zip(facts, peers, strict=True)
    ]


def _worded(name: str, value: Any) -> str:
    return "all images" if value is None else _WORDS.get(name, f"{name} {{}}").format(value)


def _materials(result: Result) -> dict[str, str]:
    materials: dict[str, str] = result.provenance.get("materials", {})
    return materials


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
