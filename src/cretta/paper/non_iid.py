"""Table 3: batches in which classes crowd, by a Dirichlet distribution."""

from __future__ import annotations

import dataclasses

from cretta.bench import Run
from cretta.paper.comparison import Variant
from cretta.paper.family import WORST
from cretta.paper.item import Item, joined, unique
from cretta.paper.main import METHODS
from cretta.paper.readings import Readings, accuracy
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Column, Row, Table

DELTAS = (10.0, 1.0, 0.1, 0.01)
VARIANTS = tuple(variant for variant in METHODS if variant.label not in ("Source", "AEA"))

PRINTED = {
    "BN Adapt": (61.44, 61.11, 59.02, 45.61, 56.79),
    "PL": (44.03, 37.27, 39.06, 43.38, 40.93),
    "SHOT": (63.94, 63.60, 61.20, 46.54, 58.82),
    "TENT": (63.91, 63.56, 61.20, 46.72, 58.85),
    "ETA": (62.31, 62.04, 59.89, 46.04, 57.57),
    "EATA": (62.35, 62.04, 59.84, 46.04, 57.57),
    "SAR": (61.54, 61.22, 59.12, 45.66, 56.89),
    "TEA": (62.58, 62.29, 60.08, 46.22, 57.79),
    "CreTTA": (66.20, 65.95, 63.47, 48.33, 60.99),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NonIid(Item):
    """Accuracy by δ, at severity 5."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """Every method at every δ."""
        return unique(
            [
                run
                for variant in VARIANTS
                for delta in DELTAS
                for group in self._groups(scale, variant, delta)
                for run in group
            ]
        )

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """The table."""
        columns = tuple(
            Column(title, better="higher") for title in (*(f"δ = {delta:g}" for delta in DELTAS), "average")
        )
        rows = []
        for variant in VARIANTS:
            printed = self.printed[self.labels[0]][variant.label]
            groups = [self._groups(scale, variant, delta) for delta in DELTAS]
            cells = [readings.cell(group, accuracy, number) for group, number in zip(groups, printed, strict=False)]
            each_seed = [joined(of_seed) for of_seed in zip(*groups, strict=True)]
            rows.append(Row(variant.label, (*cells, readings.cell(each_seed, accuracy, printed[-1]))))
        return (Table(self.name, self.title, "Method", columns, tuple(rows), self.notes(readings, scale)),)

    def _groups(self, scale: Scale, variant: Variant, delta: float) -> list[list[Run]]:
        family = scale.family("cifar100-wide")
        if variant.method not in family.methods:
            return []
        return [
            [
                family.run(f"{name}/{WORST}", method=variant.method, seed=seed, stream="dirichlet", delta=delta)
                for name in family.some
            ]
            for seed in scale.seeds_of(variant.method)
        ]


ITEMS = (
    NonIid(
        name="non-iid",
        title="Accuracy with batches that are not i.i.d., CIFAR100-C at severity 5",
        where="Table 3",
        labels=("tab:imbalance",),
        order=6,
        families=("cifar100-wide",),
        printed={"tab:imbalance": PRINTED},
        remarks=(
            "How the paper spreads a class over batches is not printed: here in proportions from a symmetric "
            "Dirichlet(δ), the samples then cut into batches of equal size.",
        ),
    ),
)
