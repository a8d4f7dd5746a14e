"""Results in order: seeds together, and methods side by side that ran on the same data."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from cretta.bench import Buffer, Result, Run
from cretta.data.domains import CLEAN
from cretta.data.registry import DATASETS
from cretta.report.content import Better, Cell, Column, cell
from cretta.report.spread import blocks_of
from cretta.report.styles import KNOWN


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number of a result, as reports show it."""

    title: str
    better: Better
    digits: int
    value: Callable[[Result], float | None]

    @property
    def column(self) -> Column:
        """The column of a table that shows it."""
        return Column(self.title, better=self.better, digits=self.digits)


ACCURACY = Metric("accuracy %", "higher", 2, lambda result: 100 * result.scores.accuracy)
CALIBRATION = Metric("ECE %", "lower", 2, lambda result: 100 * result.scores.calibration_error)
SKIPPED = Metric("skipped", "neither", 0, lambda result: sum(row.skipped for row in result.rows))
SPEED = Metric(
    "images/s", "neither", 0, lambda result: result.scores.images / result.seconds if result.seconds else math.nan
)
METRICS = (
    ACCURACY,
    CALIBRATION,
    Metric("NLL", "lower", 3, lambda result: result.scores.negative_log_likelihood),
    Metric("Brier", "lower", 3, lambda result: result.scores.brier_score),
    Metric("energy", "neither", 2, lambda result: result.energy),
    SKIPPED,
    Metric("GFLOPs", "neither", 1, lambda result: result.cost.get("gflops")),
    Metric("peak MB", "neither", 0, lambda result: result.cost.get("peak_megabytes")),
    SPEED,
)


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    results: tuple[Result, ...]
    label: str
    """The method, and those of its settings that are not usual."""
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
        return dataclasses.replace(self, results=tuple(result.only(parts) for result in self.results))

    def values(self, metric: Metric) -> dict[int, float]:
        """Return the metric by seed; without the seeds that do not have it."""
        values = {result.run.seed: metric.value(result) for result in self.results}
        return {seed: float(value) for seed, value in values.items() if value is not None}

    def blocks(self, metric: Metric) -> tuple[float, ...]:
        """Return the metric on each block of batches of the first seed; nothing where a block does not have it."""
        values = [metric.value(block) for block in self._blocks]
        known = tuple(float(value) for value in values if value is not None)
        return known if len(known) == len(values) else ()

    def cells(self, metrics: Sequence[Metric]) -> tuple[Cell, ...]:
        """Return mean and deviation of each metric over seeds."""
        return tuple(cell(self.values(metric), blocks=self.blocks(metric)) for metric in metrics)

    @cached_property
    def _blocks(self) -> list[Result]:
        return [block for (block,) in blocks_of(self.results[:1])]


def grouped(results: Iterable[Result]) -> list[Group]:
    """Return results by what they have in common, in a fixed order: by data, then shift, then method."""
    sets: dict[str, dict[int, Result]] = {}
    for result in results:
        if result.rows:
            same = _text({**result.run.describe(), "seed": None, "materials": _materials(result)})
            sets.setdefault(same, {})[result.run.seed] = result
    names: dict[str, list[Hashable]] = {}
    groups = []
    for members in sorted((tuple(by_seed[seed] for seed in sorted(by_seed)) for by_seed in sets.values()), key=_order):
        run, materials = members[0].run, _materials(members[0])
        setting = _setting(run, materials)
        # The same words may stand for other weights, source images or an older preset.
        meaning = tuple(materials.get(name) for name in ("model", "target", "source", "preset"))
        label = _numbered(_label(run), meaning, names.setdefault(f"{setting}: {_label(run)}", []))
        shift = _numbered(_shift(run), run.domains, names.setdefault(_shift(run), []))
        groups.append(Group(members, label, setting, shift))
    return groups


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


def _setting(run: Run, materials: Mapping[str, str]) -> str:
    """Return what runs are compared on, except the shift: everything but the method and the seed."""
    first = run.domains[0]
    several = f"{len(run.domains)} domains" if len(run.domains) > 1 else ""
    severity = f"severity {first.severity}" if first.severity is not None else "clean" if first.name == CLEAN else ""
    words = [
        run.data,
        f"{run.stream} stream",
        "" if run.delta is None else f"δ = {run.delta}",
        several or severity,
        f"batches of {run.batch_size}",
        "" if run.images is None else f"first {run.images} images",
        "" if run.size is None else f"{run.size} px",
        Path(run.model).name,
        "published corruptions" if materials.get("corruptions") == "published" else "",
    ]
    return ", ".join(filter(None, words))


def _label(run: Run) -> str:
    """Return the method, and those of its settings that are not the benchmark's or the default."""
    usual = DATASETS[run.data].preset if run.data in DATASETS else ""
    options: dict[str, object] = {} if run.preset in (None, usual) else {"preset": run.preset}
    options |= dict(run.options)
    for field in dataclasses.fields(Buffer):
        if (value := getattr(run.buffer, field.name)) != field.default:
            options[f"buffer {field.name}"] = value
    texts = {k: "+".join(map(str, v)) if isinstance(v, list | tuple) else str(v) for k, v in options.items()}
    return " ".join([run.method, *(f"{option}={text}" for option, text in texts.items())])


def _shift(run: Run) -> str:
    """Return the domains of a stream in a few words."""
    domains = list(map(str, run.domains))
    between = " + " if run.stream == "mixed" else " → "
    short = between.join(domains if len(domains) <= 2 else (domains[0], "…", domains[-1]))
    return short + (f" ({len(domains)} domains)" if len(domains) > 2 else "")


def _numbered(name: str, meaning: Hashable, meanings: list[Hashable]) -> str:
    """Return the name, and a number if it meant something else before; ``meanings`` are those so far."""
    if meaning not in meanings:
        meanings.append(meaning)
    number = meanings.index(meaning) + 1
    return name if number == 1 else f"{name} #{number}"


def _materials(result: Result) -> dict[str, str]:
    materials: dict[str, str] = result.provenance.get("materials", {})
    return materials


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
