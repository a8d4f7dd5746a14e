"""Figure 4: energies of target samples during adaptation, by severity, and without the source model's terms."""

from __future__ import annotations

import dataclasses

from cretta.bench import Run
from cretta.paper.comparison import CRETTA, Variant
from cretta.paper.family import WORST
from cretta.paper.item import Item, unique
from cretta.paper.readings import Readings, energies
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Panel, Series, Table

WITHOUT = Variant("without bias terms", options={"objective": "pairwise"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Energy(Item):
    """Mean energy of each batch."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """CreTTA at every severity, and without bias terms at the highest."""
        severities = scale.family("cifar100").severities
        runs = [run for severity in severities for run in self._runs(scale, CRETTA, severity)]
        return unique([*runs, *self._runs(scale, CRETTA, WORST), *self._runs(scale, WITHOUT, WORST)])

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """Two panels."""
        left = [
            (f"severity {severity}", self._runs(scale, CRETTA, severity))
            for severity in scale.family("cifar100").severities
        ]
        right = [("CreTTA", self._runs(scale, CRETTA, WORST)), (WITHOUT.label, self._runs(scale, WITHOUT, WORST))]
        panels = tuple(
            Panel(title, "batch", "mean energy of target samples", "line", _series(readings, lines))
            for title, lines in (("CreTTA by severity", left), ("severity 5, with and without bias terms", right))
        )
        return (Chart(self.name, self.title, panels, self.notes(readings, scale)),)

    def _runs(self, scale: Scale, variant: Variant, severity: int) -> list[Run]:
        family = scale.family("cifar100")
        groups = variant.groups(scale, family, [f"{name}/{severity}" for name in family.some])
        return [run for group in groups for run in group]


def _series(readings: Readings, lines: list[tuple[str, list[Run]]]) -> tuple[Series, ...]:
    return tuple(series for label, runs in lines for series in readings.curve(label, runs, energies))


ITEMS = (
    Energy(
        name="energy",
        title="Energy of target samples during adaptation, CIFAR100-C",
        where="Figure 4",
        labels=("fig:Energy_Trajectories",),
        order=8,
        families=("cifar100",),
        remarks=("Bias terms are those of the source model, E_φ in Eq. 3. Energies are means over corruptions.",),
    ),
)
