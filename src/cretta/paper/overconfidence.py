"""Figures 10, 11 and 12: confidence and calibration error during adaptation, TENT against CreTTA."""

from __future__ import annotations

import dataclasses

from cretta.bench import Run
from cretta.paper.comparison import CRETTA, Variant
from cretta.paper.family import Family
from cretta.paper.item import Item, unique
from cretta.paper.main import BENCHMARKS
from cretta.paper.readings import Readings, calibration_errors, confidences
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Panel, Series, Table

VARIANTS = (Variant("TENT", "tent"), CRETTA)
MEASURES = (("confidence", "mean confidence, %", confidences), ("ECE", "ECE, % ↓", calibration_errors))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overconfidence(Item):
    """A chart for each family: both measures of both methods, a line for each severity."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """Those of the averages in the main table."""
        return unique(
            [
                run
                for name in self.families
                for variant in VARIANTS
                for severity in scale.family(name).severities
                for run in self._runs(scale, scale.family(name), variant, severity)
            ]
        )

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """The charts."""
        made = []
        for name in self.families:
            family = scale.family(name)
            panels = []
            for title, axis, of in MEASURES:
                for variant in VARIANTS:
                    series: list[Series] = []
                    for severity in family.severities:
                        runs = self._runs(scale, family, variant, severity)
                        series += readings.curve(f"severity {severity}", runs, of)
                    panels.append(Panel(f"{variant.label}: {title}", "batch", axis, "line", tuple(series)))
            notes = self.notes(readings, scale, name)
            made.append(Chart(f"{self.name}-{name}", f"{self.title}, {family.title}", tuple(panels), notes))
        return tuple(made)

    def _runs(self, scale: Scale, family: Family, variant: Variant, severity: int) -> list[Run]:
        groups = variant.groups(scale, family, [f"{name}/{severity}" for name in family.some])
        return [run for group in groups for run in group]


ITEMS = (
    Overconfidence(
        name="overconfidence",
        title="Confidence and calibration error during adaptation",
        where="Figures 10, 11 and 12",
        labels=("fig:overconfidence", "fig:tent_vs_ours_cifar100", "fig:tent_vs_ours_tin200"),
        order=33,
        families=BENCHMARKS,
        remarks=("Each point is one batch, the mean over corruptions; a batch's own ECE lies above the stream's.",),
    ),
)
