"""Most tables of the paper: methods or variants in rows, accuracy and calibration on benchmarks in columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from cretta.bench import Buffer, Result, Run
from cretta.bench.benchmarks import CLEAN
from cretta.bench.run import Scalar
from cretta.paper.family import WORST, Family
from cretta.paper.item import Item, unique
from cretta.paper.readings import Groups, Readings, accuracy, calibration_error, corruption_error
from cretta.paper.scale import Scale
from cretta.report.content import Better, Cell, Chart, Column, Row, Table

Kind = Literal["accuracy", "calibration error", "corruption error"]
Where = Literal["clean", "worst", "average"]

_READ: Mapping[Kind, tuple[str, Better, Callable[[Sequence[Result]], float]]] = {
    "accuracy": ("Acc", "higher", accuracy),
    "calibration error": ("ECE", "lower", calibration_error),
    "corruption error": ("mCE", "lower", corruption_error),
}


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number of a family: what, over which domains."""

    kind: Kind
    where: Where

    def domains(self, family: Family, *, ablation: bool) -> tuple[str, ...]:
        """Ablations are run on fewer corruptions, where a scale has fewer."""
        if self.where == "clean":
            return (CLEAN,)
        if self.where == "worst":
            return tuple(f"{name}/{WORST}" for name in (family.some if ablation else family.corruptions))
        return tuple(f"{name}/{severity}" for name in family.some for severity in family.severities)


DEFAULT = Buffer()
"""The paper's: a tenth of the source images, drawn at random."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row: a method, or CreTTA in another setting."""

    label: str
    method: str = "cretta"
    options: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)
    buffer: Buffer | Callable[[Scale], Buffer] = DEFAULT
    group: str = ""

    def run(self, scale: Scale, family: Family, domain: str, seed: int) -> Run:
        """The variant on a domain."""
        buffer = self.buffer(scale) if callable(self.buffer) else self.buffer
        return family.run(domain, method=self.method, seed=seed, options=self.options, buffer=buffer)

    def groups(self, scale: Scale, family: Family, domains: Sequence[str]) -> list[list[Run]]:
        """For each seed its runs on these domains; none where the scale leaves the method out."""
        if self.method not in family.methods:
            return []
        return [[self.run(scale, family, domain, seed) for domain in domains] for seed in scale.seeds_of(self.method)]


SOURCE = Variant("Source", "source")
CRETTA = Variant("CreTTA")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison(Item):
    """Variants in rows; for each family the measures in columns, in the order in which the paper prints them.

    The numbers beside them are those of the first label.
    """

    variants: tuple[Variant, ...]
    measures: tuple[Measure, ...]
    first: str = "Method"
    ablation: bool = True
    """Whether it may be run on fewer corruptions than the main tables."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """Every variant on every domain of every column."""
        return unique(
            [
                run
                for variant in self.variants
                for name in self.families
                for measure in self.measures
                for group in self._groups(variant, measure, scale, scale.family(name))
                for run in group
            ]
        )

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """The table."""
        places = [(name, measure) for name in self.families for measure in self.measures]
        rows = tuple(
            Row(
                variant.label,
                tuple(
                    self._cell(readings, variant, measure, scale, scale.family(name), number)
                    for number, (name, measure) in enumerate(places)
                ),
                variant.group,
            )
            for variant in self.variants
        )
        columns = tuple(self._column(measure, scale.family(name)) for name, measure in places)
        return (Table(self.name, self.title, self.first, columns, rows, self.notes(readings, scale)),)

    def _groups(self, variant: Variant, measure: Measure, scale: Scale, family: Family) -> Groups:
        domains = measure.domains(family, ablation=self.ablation)
        groups = variant.groups(scale, family, domains)
        if measure.kind != "corruption error":
            return groups
        base = SOURCE.groups(scale, family, domains)
        return [[*group, *base[0]] for group in groups if base]

    def _cell(
        self, readings: Readings, variant: Variant, measure: Measure, scale: Scale, family: Family, number: int
    ) -> Cell:
        _, _, value = _READ[measure.kind]
        printed = self.printed[self.labels[0]][variant.label][number]
        return readings.cell(self._groups(variant, measure, scale, family), value, printed)

    def _column(self, measure: Measure, family: Family) -> Column:
        title, better, _ = _READ[measure.kind]
        where = {"clean": "clean", "worst": f"severity {WORST}", "average": family.average}[measure.where]
        return Column(title, f"{family.title}, {where}", better)
