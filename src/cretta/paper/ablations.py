"""CreTTA in other settings: Tables 16, 17 and 18, Figures 4, 8 and 9."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from cretta.bench import BatchRow, Result
from cretta.errors import OptionError
from cretta.paper import values
from cretta.paper.family import WORST
from cretta.paper.item import Draw, Item
from cretta.paper.printed import printed
from cretta.paper.readings import Groups, Readings, Variant
from cretta.paper.shapes import (
    ACCURACY,
    BN_ADAPT,
    CALIBRATION_ERROR,
    CRETTA,
    TEA,
    TENT,
    Quantity,
    at_severity,
    by_severity,
    chart,
    curves,
    domains,
    marked,
    sweep,
)
from cretta.paper.values import Curve, Value
from cretta.report.content import Chart, Column, Panel, Row, Table

WITHOUT_CONTRAST = Variant("w/o Contrastive Terms", options={"objective": "target"})
WITHOUT_BIAS = Variant("without bias terms", options={"objective": "pairwise"})
TARGET_AS_SOURCE = Variant("W TRG as SRC", options={"source": "target"})
GAIN = Quantity("gain over BN Adapt", "higher", values.above_base(values.accuracy), base=BN_ADAPT)
CHANGE, AVERAGE = "Δ (Last–First)", "AVG"
"""Rows of Tables 16 and 17 that are not about one batch."""
LAST = 49
"""Number of the paper's last batch: 10 000 images in batches of 200."""


def batch_index(batch: int, count: int) -> int:
    """Return the batch at the same share of a stream of ``count`` batches.

    >>> [batch_index(batch, 50) for batch in (0, 19, 49)], [batch_index(batch, 10) for batch in (0, 19, 49)]
    ([0, 19, 49], [0, 3, 9])
    """
    return round(batch * (count - 1) / LAST)


def batch_label(row: str, count: int) -> str:
    """Return the paper's number of a batch, and the one it is compared with here.

    >>> batch_label("19", 50), batch_label("19", 10), batch_label("AVG", 10)
    ('19', '19 (here 3)', 'AVG')
    """
    if row in (CHANGE, AVERAGE):
        return row
    here = batch_index(int(row), count)
    return row if here == int(row) else f"{row} (here {here})"


def at(row: str, curve: Curve) -> Value:
    """Return the mean over runs at the batch of a row, or over all batches, or of the change from first to last."""

    def value(results: Sequence[Result]) -> float:
        lines = [curve(result.rows) for result in results]
        if row == CHANGE:
            numbers = [line[-1] - line[0] for line in lines]
        elif row == AVERAGE:
            numbers = [number for line in lines for number in line]
        else:
            numbers = [line[batch_index(int(row), len(line))] for line in lines]
        recorded = [number for number in numbers if not math.isnan(number)]
        if not recorded:
            raise OptionError("no value was recorded")
        return fmean(recorded)

    return value


def weights(rows: Sequence[BatchRow]) -> list[float]:
    """Return the mean gradient weight w of each batch; NaN for a batch without one, whose step was skipped."""
    return [math.nan if row.weight is None else row.weight for row in rows]


def complements(rows: Sequence[BatchRow]) -> list[float]:
    """Return 1 - w of each batch."""
    return [1 - weight for weight in weights(rows)]


def by_batch(columns: Sequence[tuple[Column, Variant, Curve]]) -> Draw:
    """Draw a table of single batches on CIFAR100-C at severity 5: a column for each variant and curve."""

    def draw(item: Item, readings: Readings) -> Iterator[Table]:
        family = readings.scale.family("cifar100")
        streams = at_severity(WORST, family.ablations)
        rows = []
        for row, numbers in printed(item.labels[0]).items():
            cells = [
                readings.cell(
                    readings.groups(family, variant, streams),
                    at(row, curve),
                    numbers[index] if index < len(numbers) else None,
                    by_run=True,
                )
                for index, (_, variant, curve) in enumerate(columns)
            ]
            rows.append(Row(batch_label(row, family.steps), tuple(cells)))
        headings = tuple(column for column, _, _ in columns)
        yield Table(item.name, item.title, "Batch", headings, tuple(rows), best_of="none")

    return draw


def target_as_source(item: Item, readings: Readings) -> Iterator[Table]:
    """Draw accuracy with its gain over BN Adapt, and ECE."""
    family = readings.scale.family("cifar100")
    streams = at_severity(WORST, family.ablations)
    quantities = (ACCURACY, GAIN, CALIBRATION_ERROR)
    rows = []
    for variant in (BN_ADAPT, TARGET_AS_SOURCE, CRETTA):
        percent, *gain, error = printed(item.labels[0])[variant.label]
        numbers = (percent, gain[0] if gain else None, error)  # BN Adapt has no gain printed
        pairs = zip(quantities, numbers, strict=True)
        cells = [quantity.cell(readings, variant, family, streams, number) for quantity, number in pairs]
        rows.append(Row(variant.label, tuple(cells)))
    columns = tuple(Column(quantity.title, better=quantity.better) for quantity in quantities)
    yield Table(item.name, item.title, "Method", columns, tuple(rows))


def energy(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw the mean energy of each batch, by severity, and without bias terms."""
    family = readings.scale.family("cifar100")
    streams = at_severity(WORST, family.ablations)
    bias = {variant.label: readings.groups(family, variant, streams) for variant in (CRETTA, WITHOUT_BIAS, BN_ADAPT)}
    y = "mean energy of target samples"
    yield chart(
        item,
        curves(
            readings,
            "CreTTA by severity",
            y,
            values.energies,
            by_severity(readings, family, CRETTA, corruptions=family.ablations),
        ),
        curves(readings, "severity 5, with and without bias terms", y, values.energies, bias),
    )


def beta(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw CreTTA by β: by severity on CIFAR, and averaged beside baselines on Tiny-ImageNet."""
    cifar = [panel for name in ("cifar10", "cifar100") for panel in beta_panels(name, readings)]
    yield Chart(f"{item.name}-cifar", f"{item.title}, by severity", tuple(cifar))
    tiny = tuple(beta_panels("tiny-imagenet", readings))
    yield Chart(f"{item.name}-tiny-imagenet", f"{item.title}, averaged over severities", tiny)


def beta_panels(name: str, readings: Readings) -> Iterator[Panel]:
    """Return accuracy and ECE of a family by β."""
    family, streams = readings.scale.family(name), domains(readings.scale.family(name), "average")
    lines: dict[str, list[tuple[float | str, Groups]]] = {}
    for number in readings.scale.betas:
        # Where the preset has this β, that is CreTTA as it is.
        cretta = Variant("CreTTA", options={"beta": number})
        if name == "tiny-imagenet":
            groups: dict[str, Groups] = {
                marked(variant, [family]): readings.groups(family, variant, streams) for variant in (cretta, TENT, TEA)
            }
        else:
            groups = by_severity(readings, family, cretta, corruptions=family.ablations)
        for label, runs in groups.items():
            lines.setdefault(label, []).append((number, runs))
    for y, value in (("Acc, % ↑", values.accuracy), ("ECE, % ↓", values.calibration_error)):
        yield sweep(readings, family.title, ("β", y), value, lines, logarithmic=True)


DRAW: dict[str, Draw] = {
    "contrastive-batches": by_batch(
        (
            (Column("w/ contrastive", "Target energy", digits=4), CRETTA, values.energies),
            (Column("w/o contrastive", "Target energy", digits=4), WITHOUT_CONTRAST, values.energies),
            (Column("w/ contrastive", "ECE", "lower"), CRETTA, values.calibration_errors),
            (Column("w/o contrastive", "ECE", "lower"), WITHOUT_CONTRAST, values.calibration_errors),
        )
    ),
    "target-weight": by_batch(
        (
            (Column(CRETTA.label, "w", digits=3), CRETTA, weights),
            (Column(TARGET_AS_SOURCE.label, "w", digits=3), TARGET_AS_SOURCE, weights),
            (Column(CRETTA.label, "1 - w", digits=3), CRETTA, complements),
            (Column(TARGET_AS_SOURCE.label, "1 - w", digits=3), TARGET_AS_SOURCE, complements),
        )
    ),
    "target-as-source": target_as_source,
    "energy": energy,
    "beta": beta,
}
