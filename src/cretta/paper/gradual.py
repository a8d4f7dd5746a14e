"""Tables 4 and 13: from the source through all severities without a reset, and back to the source, frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cretta.bench import Result, Run
from cretta.bench.benchmarks import CLEAN
from cretta.paper.comparison import CRETTA, Variant
from cretta.paper.family import SEVERITIES, Family
from cretta.paper.item import Item, unique
from cretta.paper.readings import Readings, mean
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Column, Row, Table

VARIANTS = (CRETTA, Variant("TEA", "tea"), Variant("TENT", "tent"))
ROWS = ("Source (Q)", "1", "2", "3", "4", "5 (P)", "Source (Q) again")

# CIFAR-10: CreTTA, TEA; CIFAR-100: CreTTA, TEA.
PRINTED = {
    "Source (Q)": (93.46, 93.45, 73.97, 73.88),
    "1": (92.88, 92.80, 71.90, 71.41),
    "2": (92.03, 91.92, 71.57, 70.40),
    "3": (91.63, 91.29, 69.99, 67.71),
    "4": (90.25, 89.81, 67.99, 65.23),
    "5 (P)": (89.47, 88.78, 65.47, 60.26),
    "Source (Q) again": (94.03, 93.58, 75.70, 69.25),
}
# CIFAR-10: CreTTA, TEA, TENT; CIFAR-100: CreTTA, TEA, TENT.
WITH_TENT = {
    "Source (Q)": (93.46, 93.45, 93.43, 73.97, 73.88, 73.57),
    "1": (92.88, 92.80, 92.77, 71.90, 71.41, 71.70),
    "2": (92.03, 91.92, 91.92, 71.57, 70.40, 71.36),
    "3": (91.63, 91.29, 91.35, 69.99, 67.71, 70.04),
    "4": (90.25, 89.81, 90.03, 67.99, 65.23, 68.28),
    "5 (P)": (89.47, 88.78, 88.58, 65.47, 60.26, 65.23),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gradual(Item):
    """Accuracy in each domain of the way, by family and method."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """Every method along every corruption."""
        return unique(
            [
                run
                for name in self.families
                for variant in VARIANTS
                for group in self._groups(scale, scale.family(name), variant)
                for run in group
            ]
        )

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """The table."""
        places = [(scale.family(name), variant) for name in self.families for variant in VARIANTS]
        columns = tuple(Column(variant.label, family.title, "higher") for family, variant in places)
        rows = tuple(
            Row(
                row,
                tuple(
                    readings.cell(
                        self._groups(scale, family, variant), accuracy_at(stage), self._number(row, family, variant)
                    )
                    for family, variant in places
                ),
            )
            for stage, row in enumerate(ROWS)
        )
        notes = self.notes(readings, scale)
        return (Table(self.name, self.title, "Domain", columns, rows, notes, best_of="row"),)

    def _groups(self, scale: Scale, family: Family, variant: Variant) -> list[list[Run]]:
        if variant.method not in family.methods:
            return []
        return [
            [
                family.run(*way(name), method=variant.method, seed=seed, stream="gradual", images=family.gradual_images)
                for name in family.gradual
            ]
            for seed in scale.seeds_of(variant.method)
        ]

    def _number(self, row: str, family: Family, variant: Variant) -> float | None:
        """Of the table with TENT, which is the larger; only the other one returns to the source."""
        first = self.families.index(family.name)
        if row in WITH_TENT:
            return WITH_TENT[row][3 * first + VARIANTS.index(variant)]
        return None if variant.label == "TENT" else PRINTED[row][2 * first + VARIANTS.index(variant)]


def way(corruption: str) -> tuple[str, ...]:
    """The domains of the stream."""
    return (CLEAN, *(f"{corruption}/{severity}" for severity in SEVERITIES), CLEAN)


def accuracy_at(stage: int) -> Callable[[Sequence[Result]], float]:
    """In per cent, in the domain at this place of the way."""

    def value(results: Sequence[Result]) -> float:
        found = []
        for result in results:
            domain = str(result.run["domains"][stage])
            # The source met again is told apart from the beginning.
            found.append(result.of(domain if stage < len(ROWS) - 1 else f"{domain} again").accuracy)
        return 100 * mean(found)

    return value


ITEMS = (
    Gradual(
        name="gradual",
        title="Accuracy under gradual shift, and back on the source",
        where="Tables 4 and 13",
        labels=("tab:gradual", "tab:gradual_app"),
        order=7,
        families=("cifar10", "cifar100"),
        printed={"tab:gradual": PRINTED, "tab:gradual_app": WITH_TENT},
        remarks=(
            "Each corruption is a stream of its own, from the clean test set through severities 1 to 5 without a "
            "reset; then the model is frozen and predicts the clean test set again.",
        ),
    ),
)
