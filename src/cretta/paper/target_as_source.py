"""Tables 17 and 18: low-energy target samples in place of source samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cretta.bench import Result, Run
from cretta.errors import OptionError
from cretta.paper.comparison import CRETTA, Variant
from cretta.paper.contrastive import batch_label, place
from cretta.paper.family import WORST
from cretta.paper.item import Item, unique
from cretta.paper.readings import Readings, accuracy, calibration_error, mean
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Column, Row, Table

TARGET = Variant("W TRG as SRC", options={"source": "target"})
BASE = Variant("BN Adapt", "bn_adapt")

# By batch: the gradient weight of CreTTA, and with target samples as source.
WEIGHTS = {
    "0": (0.490, 0.304),
    "9": (0.535, 0.406),
    "19": (0.580, 0.456),
    "29": (0.580, 0.465),
    "39": (0.627, 0.518),
    "49": (0.608, 0.522),
    "AVG": (0.572, 0.454),
}
ALL = "AVG"
# Accuracy, its gain over BN Adapt where printed, and ECE.
ACCURACIES = {
    "BN Adapt": (60.74, 8.32),
    "W TRG as SRC": (61.39, 0.65, 8.19),
    "CreTTA": (64.52, 3.78, 7.99),
}


def _groups(scale: Scale, variant: Variant) -> list[list[Run]]:
    family = scale.family("cifar100")
    return variant.groups(scale, family, [f"{name}/{WORST}" for name in family.some])


def weight_at(row: str, *, complement: bool = False) -> Callable[[Sequence[Result]], float]:
    """The mean weight w of a batch, or of all; or what it lacks to 1."""

    def value(results: Sequence[Result]) -> float:
        found = []
        for result in results:
            rows = result.rows if row == ALL else (result.rows[place(int(row), len(result.rows))],)
            found += [each.weight for each in rows if each.weight is not None]
        if not found:
            raise OptionError("no weight was recorded")
        return 1 - mean(found) if complement else mean(found)

    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights(Item):
    """The gradient weight during adaptation."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """Both variants at severity 5."""
        return unique([run for variant in (CRETTA, TARGET) for group in _groups(scale, variant) for run in group])

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """The table, and 1 - w beside it."""
        columns = tuple(
            Column(variant.label, group, digits=3) for group in ("w", "1 - w") for variant in (CRETTA, TARGET)
        )
        rows = []
        for row, printed in WEIGHTS.items():
            weight = weight_at(row)
            cells = [
                readings.cell(_groups(scale, variant), weight, number)
                for variant, number in zip((CRETTA, TARGET), printed, strict=True)
            ]
            cells += [
                readings.cell(_groups(scale, variant), weight_at(row, complement=True)) for variant in (CRETTA, TARGET)
            ]
            label = row if row == ALL else batch_label(int(row), scale.family("cifar100").steps)
            rows.append(Row(label, tuple(cells)))
        notes = self.notes(readings, scale)
        return (Table(self.name, self.title, "Batch", columns, tuple(rows), notes, best_of="none"),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accuracies(Item):
    """Accuracy with its gain, and ECE."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """The three rows at severity 5."""
        return unique([run for variant in (BASE, TARGET, CRETTA) for group in _groups(scale, variant) for run in group])

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """The table."""
        columns = (
            Column("Acc", better="higher"),
            Column("gain over BN Adapt", better="higher"),
            Column("ECE", better="lower"),
        )
        base = _groups(scale, BASE)
        rows = []
        for variant in (BASE, TARGET, CRETTA):
            printed = ACCURACIES[variant.label]
            groups = _groups(scale, variant)
            both = [[*group, *of_base] for group, of_base in zip(groups, base, strict=True)]
            cells = (
                readings.cell(groups, accuracy, printed[0]),
                readings.cell(both, gain, printed[1] if len(printed) == 3 else None),
                readings.cell(groups, calibration_error, printed[-1]),
            )
            rows.append(Row(variant.label, cells))
        return (Table(self.name, self.title, "Method", columns, tuple(rows), self.notes(readings, scale)),)


def gain(results: Sequence[Result]) -> float:
    """Accuracy of the first half of the results less that of the second, in points."""
    half = len(results) // 2
    return accuracy(results[:half]) - accuracy(results[half:])


ITEMS = (
    Weights(
        name="target-weight",
        title="Gradient weight with source samples and with target samples as source, CIFAR100-C at severity 5",
        where="Table 17",
        labels=("tab:trgassrc_ablation_grad",),
        order=24,
        families=("cifar100",),
        printed={"tab:trgassrc_ablation_grad": WEIGHTS},
        remarks=(
            "w is σ(-l) as in Eq. 5, the mean over a batch and over corruptions. It falls as the loss falls; the "
            "paper's rises, as 1 - w = σ(l) does.",
            "In a shorter stream a row is the batch at the same share of the way.",
        ),
    ),
    Accuracies(
        name="target-as-source",
        title="Target samples of low energy in place of source samples, CIFAR100-C at severity 5",
        where="Table 18",
        labels=("tab:trgassrc_ablation_accece",),
        order=25,
        families=("cifar100",),
        printed={"tab:trgassrc_ablation_accece": ACCURACIES},
        remarks=("How the half of the batch is paired with the whole is not printed: here in order, cycling.",),
    ),
)
