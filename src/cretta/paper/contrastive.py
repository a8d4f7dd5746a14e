"""Tables 5, 15 and 16: what the contrastive terms do, against plain descent of the target's energy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cretta.bench import Result, Run
from cretta.paper.comparison import CRETTA, Comparison, Measure, Variant
from cretta.paper.family import WORST
from cretta.paper.item import Item, unique
from cretta.paper.main import BENCHMARKS
from cretta.paper.readings import Curve, Readings, calibration_errors, energies, mean
from cretta.paper.scale import Scale
from cretta.report.content import Cell, Chart, Column, Row, Table

WITH = "w/ Contrastive Terms (CreTTA)"
WITHOUT = Variant("w/o Contrastive Terms", options={"objective": "target"})

# ECE at severity 5 on the three benchmarks.
PRINTED = {
    "w/o Contrastive Terms": (5.57, 11.61, 16.21),
    "w/ Contrastive Terms": (4.15, 7.99, 13.52),
}
# For each benchmark: ECE at severity 5, and over all severities.
EXTENDED = {
    "w/ Contrastive Terms (CreTTA)": (4.15, 2.88, 7.99, 6.82, 13.52, 11.85),
    "w/o Contrastive Terms": (5.57, 4.08, 11.61, 9.65, 16.21, 14.12),
}
# By batch: target energy with and without contrastive terms, ECE with and without.
BY_BATCH = {
    "0": (-9.9781, -9.9781, 11.11, 11.56),
    "9": (-10.1208, -10.9536, 10.48, 11.64),
    "19": (-10.2124, -11.5247, 9.48, 12.97),
    "29": (-10.1896, -11.7863, 9.85, 12.35),
    "39": (-10.1856, -12.0177, 8.88, 13.35),
    "49": (-10.1904, -12.2531, 9.15, 12.92),
    "Δ (Last--First)": (-0.21, -2.28, -1.96, 1.35),
}
CHANGE = "Δ (Last--First)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByBatch(Item):
    """Energy and ECE of single batches during adaptation."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """Both variants at severity 5."""
        return unique([run for variant in (CRETTA, WITHOUT) for group in self._groups(scale, variant) for run in group])

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """The table."""
        columns = (
            Column("w/ contrastive", "Target energy", digits=4),
            Column("w/o contrastive", "Target energy", digits=4),
            Column("w/ contrastive", "ECE", "lower"),
            Column("w/o contrastive", "ECE", "lower"),
        )
        rows = tuple(Row(self._label(row, scale), self._cells(readings, scale, row)) for row in BY_BATCH)
        notes = self.notes(readings, scale)
        return (Table(self.name, self.title, "Batch", columns, rows, notes, best_of="none"),)

    def _groups(self, scale: Scale, variant: Variant) -> list[list[Run]]:
        family = scale.family("cifar100")
        return variant.groups(scale, family, [f"{name}/{WORST}" for name in family.some])

    def _cells(self, readings: Readings, scale: Scale, row: str) -> tuple[Cell, ...]:
        made = []
        for number, (variant, energy) in enumerate(
            ((CRETTA, True), (WITHOUT, True), (CRETTA, False), (WITHOUT, False))
        ):
            value = at(row, energies if energy else calibration_errors)
            made.append(readings.cell(self._groups(scale, variant), value, BY_BATCH[row][number]))
        return tuple(made)

    def _label(self, row: str, scale: Scale) -> str:
        return row if row == CHANGE else batch_label(int(row), scale.family("cifar100").steps)


LAST = 49
"""Number of the paper's last batch: 10 000 images in batches of 200."""


def place(batch: int, count: int) -> int:
    """The batch at the same share of a stream of ``count`` batches.

    >>> [place(batch, 50) for batch in (0, 19, 49)], [place(batch, 10) for batch in (0, 19, 49)]
    ([0, 19, 49], [0, 3, 9])
    """
    return round(batch * (count - 1) / LAST)


def batch_label(batch: int, count: int) -> str:
    """The paper's number of a batch, and the one it is compared with here.

    >>> batch_label(19, 50), batch_label(19, 10)
    ('19', '19 (here 3)')
    """
    here = place(batch, count)
    return str(batch) if here == batch else f"{batch} (here {here})"


def at(row: str, of: Curve) -> Callable[[Sequence[Result]], float]:
    """The mean over runs at the batch that a row is about, or of the change from first to last."""

    def value(results: Sequence[Result]) -> float:
        curves = [of(result.rows) for result in results]
        if row == CHANGE:
            return mean([curve[-1] - curve[0] for curve in curves])
        return mean([curve[place(int(row), len(curve))] for curve in curves])

    return value


ITEMS = (
    Comparison(
        name="contrastive",
        title="Calibration error with and without contrastive terms",
        where="Tables 5 and 15",
        labels=("tab:contrastive_ablation_ece_extend", "tab:contrastive_ablation_ece", "tab:contrastive_ablation"),
        order=9,
        families=BENCHMARKS,
        variants=(dataclasses.replace(CRETTA, label=WITH), WITHOUT),
        measures=(Measure("calibration error", "worst"), Measure("calibration error", "average")),
        first="Objective",
        printed={"tab:contrastive_ablation_ece_extend": EXTENDED, "tab:contrastive_ablation_ece": PRINTED},
    ),
    ByBatch(
        name="contrastive-batches",
        title="Target energy and ECE of single batches, CIFAR100-C at severity 5",
        where="Table 16",
        labels=("tab:contrastive_ablation_energy",),
        order=23,
        families=("cifar100",),
        printed={"tab:contrastive_ablation_energy": BY_BATCH},
        remarks=(
            "Each number is the mean over corruptions of one batch. In a shorter stream it is the batch at the same "
            "share of the way.",
            "Energies are those of the logits returned, which CreTTA gives after the update; the paper's are equal in "
            "batch 0, so from before it.",
        ),
    ),
)
