"""Beyond the paper: long streams without a reset, where methods may collapse, with the guard off and on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median

from cretta.bench import BatchRow
from cretta.data.corruptions import CORRUPTIONS
from cretta.data.domains import Domain
from cretta.methods import get
from cretta.metrics import BatchScores
from cretta.paper.family import WORST, Family
from cretta.paper.item import Draw, Item
from cretta.paper.readings import Groups, Readings, Variant
from cretta.paper.shapes import ACCURACY, CALIBRATION_ERROR, METHODS, at_severity
from cretta.paper.values import Curve
from cretta.report.content import Chart, Column, Panel, Row, Series, Table

VISITS = 5
"""To each corruption of a recurring stream."""
GUARD = "rollback"
UNGUARDED = "guard off"
"""The group of columns, and the title of panels, without it."""
FAR = 5.0
"""Points from the median line, on average over visits: lines beyond it would make all others look the same."""
THIN = f"Thin lines, which may leave their panel, are on average more than {FAR:g} points from the median line"


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


def over_visits(readings: Readings, title: str, y: str, curve: Curve, groups: Mapping[str, Groups]) -> Panel:
    """Return a panel with a line over visits, counted from one, for each label."""
    lines = [line for label, runs in groups.items() for line in readings.curve(label, runs, curve)]
    counted = [dataclasses.replace(line, x=tuple(map(float, range(1, len(line.y) + 1)))) for line in lines]
    return Panel(title, "visit", y, "line", with_background(counted))


def with_background(lines: Sequence[Series]) -> tuple[Series, ...]:
    """Return the lines, those far from the median line in the background; none of them where half of all are far."""
    medians = [median(values) for values in zip(*(line.y for line in lines), strict=False)]
    distances = [sum(abs(y - middle) for y, middle in zip(line.y, medians, strict=False)) for line in lines]
    far = [distance > FAR * len(medians) for distance in distances]
    if sum(far) >= len(lines) / 2:
        return tuple(lines)
    return tuple(dataclasses.replace(line, background=flag) for line, flag in zip(lines, far, strict=True))


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
                for guard, change in ((UNGUARDED, lambda variant: variant), ("guard on", guarded))
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
                over_visits(readings, guard, y, curve, groups) for y, curve in CURVES for guard, groups in lines.items()
            )
            thin = dict.fromkeys(line.label for panel in panels for line in panel.series if line.background)
            notes = (f"{THIN}: {', '.join(thin)}.",) if thin else ()
            parts = tuple(
                (visit - 0.5, visit + 0.5, domain.name.replace("_", " "))
                for visit, domain in enumerate(stream, start=1)
            )
            yield Chart(f"{item.name}-{name}", f"{title}, visit by visit", panels, notes, parts, shared_y=True)

    return draw


DRAW: dict[str, Draw] = {
    "continual": without_reset(lambda family: at_severity(WORST, CORRUPTIONS)),
    "recurring": without_reset(lambda family: at_severity(WORST, family.some) * VISITS),
}
