"""Figures 5, 6 and 7: calibration error by severity."""

from __future__ import annotations

import dataclasses

from cretta.bench import Run
from cretta.paper.comparison import Variant
from cretta.paper.family import Family
from cretta.paper.item import Item, unique
from cretta.paper.main import BENCHMARKS, METHODS
from cretta.paper.readings import Readings, calibration_error
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Panel, Series, Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class BySeverity(Item):
    """A chart for each family: ECE by severity, a line for each method."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """Those of the averages in the main table."""
        return unique(
            [
                run
                for name in self.families
                for variant in METHODS
                for severity in scale.family(name).severities
                for group in self._groups(scale, scale.family(name), variant, severity)
                for run in group
            ]
        )

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """The charts."""
        made = []
        for name in self.families:
            family = scale.family(name)
            series: list[Series] = []
            for variant in METHODS:
                points = [
                    (float(severity), readings.cell(self._groups(scale, family, variant, severity), calibration_error))
                    for severity in family.severities
                ]
                series += readings.series(variant.label, points)
            panel = Panel(family.title, "severity", "ECE, % ↓", "line", tuple(series))
            notes = self.notes(readings, scale, name)
            made.append(Chart(f"{self.name}-{name}", f"{self.title}, {family.title}", (panel,), notes))
        return tuple(made)

    def _groups(self, scale: Scale, family: Family, variant: Variant, severity: int) -> list[list[Run]]:
        return variant.groups(scale, family, [f"{name}/{severity}" for name in family.some])


ITEMS = (
    BySeverity(
        name="ece-severity",
        title="Calibration error by severity",
        where="Figures 5, 6 and 7",
        labels=("fig:ece_cifar10", "fig:ece_cifar100", "fig:ece_imagenet"),
        order=14,
        families=BENCHMARKS,
        remarks=("Which methods the paper draws cannot be read from its text: here all.",),
    ),
)
