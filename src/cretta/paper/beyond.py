"""Beyond the paper: long streams without a reset, where methods may collapse, with the guard off and on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from cretta.bench import BatchRow
from cretta.data.corruptions import CORRUPTIONS
from cretta.data.domains import Domain
from cretta.methods import get
from cretta.metrics import BatchScores
from cretta.paper.family import WORST, Family
from cretta.paper.item import Draw, Item
from cretta.paper.readings import Readings, Variant
from cretta.paper.shapes import ACCURACY, CALIBRATION_ERROR, METHODS, at_severity
from cretta.paper.values import Curve
from cretta.report.content import Chart, Column, Panel, Row, Table

VISITS = 5
"""To each corruption of a recurring stream."""
GUARD = "rollback"


def by_visit(score: Callable[[BatchScores], float]) -> Curve:
    """Return a score in percent for each visit to a domain."""

    def curve(rows: Sequence[BatchRow]) -> list[float]:
        visits = groupby(rows, key=lambda row: row.domain)
        return [100 * score(BatchScores.sum(row.scores for row in visit)) for _, visit in visits]

    return curve


CURVES = (
    ("Acc, % ↑", by_visit(lambda scores: scores.accuracy)),
    ("ECE, % ↓", by_visit(lambda scores: scores.calibration_error)),
)


def guarded(variant: Variant) -> Variant:
    """Return the variant with the guard; as it is, if it learns nothing."""
    if get(variant.method).facts.updates == "nothing":
        return variant
    return dataclasses.replace(variant, options={**variant.options, "guard": GUARD})


def without_reset(visited: Callable[[Family], list[Domain]]) -> Draw:
    """Draw accuracy and ECE over all images and against time: for each family a table and a chart."""

    def draw(item: Item, readings: Readings) -> Iterator[Table | Chart]:
        for name in ("cifar10", "cifar100"):
            family = readings.scale.family(name)
            stream = tuple(visited(family))
            lines = {
                guard: {
                    label: readings.groups(
                        family,
                        change(variant),
                        [stream],
                        stream="continual",
                        images=family.continual_images,
                        batch_size=family.continual_batch_size,
                    )
                    for label, variant in METHODS.items()
                }
                for guard, change in (("guard off", lambda variant: variant), ("guard on", guarded))
            }
            quantities = [(guard, quantity) for guard in lines for quantity in (ACCURACY, CALIBRATION_ERROR)]
            columns = tuple(Column(quantity.title, guard, quantity.better) for guard, quantity in quantities)
            rows = tuple(
                Row(label, tuple(readings.cell(lines[guard][label], quantity.value) for guard, quantity in quantities))
                for label in METHODS
            )
            title = f"{item.title}, {family.title}"
            yield Table(f"{item.name}-{name}-scores", title, "Method", columns, rows)
            # The table's requests are those of the chart.
            panels = tuple(
                Panel(
                    guard,
                    "visit",
                    y,
                    "line",
                    tuple(line for label, runs in groups.items() for line in readings.curve(label, runs, curve)),
                )
                for y, curve in CURVES
                for guard, groups in lines.items()
            )
            parts = tuple((index - 0.5, index + 0.5, domain.name) for index, domain in enumerate(stream))
            yield Chart(f"{item.name}-{name}", f"{title}, visit by visit", panels, parts=parts)

    return draw


DRAW: dict[str, Draw] = {
    "continual": without_reset(lambda family: at_severity(WORST, CORRUPTIONS)),
    "recurring": without_reset(lambda family: at_severity(WORST, family.some) * VISITS),
}
