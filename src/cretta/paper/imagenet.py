"""Table 12, Figures 2 and 3: ImageNet-C."""

from __future__ import annotations

import dataclasses

from cretta.bench import Run
from cretta.paper.comparison import CRETTA, Comparison, Measure, Variant
from cretta.paper.family import WORST
from cretta.paper.item import Item, unique
from cretta.paper.readings import Readings, calibration_error, running_accuracies, running_calibration_errors
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Panel, Series, Table

VARIANTS = (Variant("TENT", "tent"), Variant("TEA", "tea"), CRETTA)

# Accuracy and ECE at severity 5, and over all severities.
PRINTED = {
    "TENT": (37.39, 7.75, 43.78, 4.85),
    "TEA": (31.60, 8.39, 38.72, 7.21),
    "CreTTA": (37.05, 4.43, 43.54, 2.69),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverBatches(Item):
    """ECE and accuracy of the stream so far, at severity 5."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """The methods at severity 5."""
        return unique([run for variant in VARIANTS for run in self._runs(scale, variant)])

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """Two panels."""
        panels = []
        for title, better, of in (("ECE", "↓", running_calibration_errors), ("Acc", "↑", running_accuracies)):
            series: list[Series] = []
            for variant in VARIANTS:
                series += readings.curve(variant.label, self._runs(scale, variant), of)
            panels.append(Panel(title, "batch", f"{title} of the stream so far, % {better}", "line", tuple(series)))
        return (Chart(self.name, self.title, tuple(panels), self.notes(readings, scale)),)

    def _runs(self, scale: Scale, variant: Variant) -> list[Run]:
        family = scale.family("imagenet")
        groups = variant.groups(scale, family, [f"{name}/{WORST}" for name in family.corruptions])
        return [run for group in groups for run in group]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByCorruption(Item):
    """ECE of each corruption, averaged over severities."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """The methods on every corruption and severity."""
        names = scale.family("imagenet").some
        return unique(
            [
                run
                for variant in VARIANTS
                for name in names
                for group in self._groups(scale, variant, name)
                for run in group
            ]
        )

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """Bars."""
        series: list[Series] = []
        for variant in VARIANTS:
            points = [
                (name, readings.cell(self._groups(scale, variant, name), calibration_error))
                for name in scale.family("imagenet").some
            ]
            series += readings.series(variant.label, points)
        panel = Panel("ImageNet-C", "corruption", "ECE, % ↓", "bar", tuple(series))
        return (Chart(self.name, self.title, (panel,), self.notes(readings, scale)),)

    def _groups(self, scale: Scale, variant: Variant, corruption: str) -> list[list[Run]]:
        family = scale.family("imagenet")
        return variant.groups(scale, family, [f"{corruption}/{severity}" for severity in family.severities])


ITEMS = (
    OverBatches(
        name="imagenet-batches",
        title="ECE and accuracy over batches, ImageNet-C at severity 5",
        where="Figure 2",
        labels=("fig:imagenetc_ece_acc",),
        order=3,
        families=("imagenet",),
    ),
    ByCorruption(
        name="imagenet-corruptions",
        title="ECE by corruption, ImageNet-C, averaged over severities",
        where="Figure 3",
        labels=("fig:ece_image",),
        order=4,
        families=("imagenet",),
        remarks=("The paper states the averages over all corruptions: TENT 4.85, TEA 7.21, CreTTA 2.69.",),
    ),
    Comparison(
        name="imagenet",
        title="Accuracy and calibration error on ImageNet-C",
        where="Table 12",
        labels=("tab:imagenet_c",),
        order=19,
        families=("imagenet",),
        variants=VARIANTS,
        measures=(
            Measure("accuracy", "worst"),
            Measure("calibration error", "worst"),
            Measure("accuracy", "average"),
            Measure("calibration error", "average"),
        ),
        ablation=False,
        printed={"tab:imagenet_c": PRINTED},
    ),
)
