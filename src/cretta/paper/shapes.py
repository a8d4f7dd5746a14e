"""The shapes that most items have: a table that compares variants, curves over batches, and sweeps of a setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from cretta.data.domains import CLEAN, Domain
from cretta.paper import values
from cretta.paper.family import FEWER, WORST, Family
from cretta.paper.item import Item
from cretta.paper.printed import paper_data, printed
from cretta.paper.readings import Groups, Readings, Variant, with_base
from cretta.paper.values import Curve, Value
from cretta.report.content import Better, Cell, Chart, Column, Panel, Row, Table

Where = Literal["clean", "worst", "average"]
"""Clean images, severity 5, or the average over severities."""

BENCHMARKS = ("cifar10", "cifar100", "tiny-imagenet")


def variants(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Variant]:
    """Return the variants of methods that a table of paper.toml has, by label."""
    return {label: Variant(label, **record) for label, record in records.items()}


METHODS = variants(paper_data()["methods"])
"""Those that the main tables compare, by label."""
SOURCE, BN_ADAPT, TENT, TEA, CRETTA = (METHODS[label] for label in ("Source", "BN Adapt", "TENT", "TEA", "CreTTA"))


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A number that tables have a column for."""

    title: str
    better: Better
    value: Value
    base: Variant | None = None
    """What it is relative to: the base's results follow those of a variant."""

    def cell(
        self,
        readings: Readings,
        variant: Variant,
        family: Family,
        streams: Sequence[Domain],
        number: float | None = None,
    ) -> Cell:
        """Return the measured number of a variant beside the printed one."""
        groups = readings.groups(family, variant, streams)
        if self.base is not None and groups:
            # On the same images, where a scale has fewer for a method.
            base = readings.groups(family, self.base, streams, images_of=variant.method)
            if any(
                run in readings.results for group in groups for run in group
            ):  # else it is the variant that is missing
                groups = with_base(groups, base)
        return readings.cell(groups, self.value, number)


ACCURACY = Quantity("Acc", "higher", values.accuracy)
CALIBRATION_ERROR = Quantity("ECE", "lower", values.calibration_error)
CORRUPTION_ERROR = Quantity("mCE", "lower", values.corruption_error, base=SOURCE)
QUANTITIES = {quantity.title: quantity for quantity in (ACCURACY, CALIBRATION_ERROR, CORRUPTION_ERROR)}


def comparison(item: Item, readings: Readings) -> Iterator[Table]:
    """Draw the table of an item that has rows in paper.toml: for each family the columns in the paper's order.

    The printed numbers are those of the item's first label, if it has any.
    """
    record = paper_data()["items"][item.name]
    rows = METHODS if record["rows"] == "methods" else variants(record["rows"])
    ablation = not record.get("all_corruptions", False)
    cases = [
        (readings.scale.family(name), QUANTITIES[title], where)
        for name in record.get("families", BENCHMARKS)
        for where, titles in record["columns"].items()
        for title in titles
    ]
    numbers = printed(item.labels[0]) if item.labels else {}
    lines = []
    for label, variant in rows.items():
        cells = [
            quantity.cell(readings, variant, family, domains(family, where, ablation=ablation), number)
            for (family, quantity, where), number in zip(
                cases, numbers[label] if numbers else [None] * len(cases), strict=True
            )
        ]
        lines.append(method_row(variant, cells, [family for family, _, _ in cases]))
    words = {"clean": "clean", "worst": f"severity {WORST}"}
    headings = [
        Column(quantity.title, f"{family.title}, {words.get(where, family.average)}", quantity.better)
        for family, quantity, where in cases
    ]
    yield Table(item.name, item.title, record.get("first", "Method"), tuple(headings), tuple(lines))


def method_row(variant: Variant, cells: Sequence[Cell], families: Sequence[Family]) -> Row:
    """Return the row of a method, marked and not ranked where it has fewer images than others."""
    label = marked(variant, families)
    return Row(label, tuple(cells), variant.group, compared=label == variant.label)


def marked(variant: Variant, families: Sequence[Family]) -> str:
    """Return the label of a variant, with a mark where its method has fewer images than others."""
    return variant.label + FEWER * any(variant.method in family.fewer for family in families)


def domains(family: Family, where: Where, *, ablation: bool = True) -> list[Domain]:
    """Return the domains that a number is the mean over; ablations have fewer corruptions where a scale has fewer."""
    if where == "clean":
        return [Domain(CLEAN)]
    if where == "worst":
        return at_severity(WORST, family.ablations if ablation else family.corruptions)
    averaged = family.ablations if ablation else family.some
    return [Domain(name, severity) for name in averaged for severity in family.severities]


def at_severity(severity: int, corruptions: Sequence[str]) -> list[Domain]:
    """Return the domains of the corruptions at a severity.

    >>> [str(domain) for domain in at_severity(5, ("fog", "snow"))]
    ['fog/5', 'snow/5']
    """
    return [Domain(name, severity) for name in corruptions]


def by_severity(
    readings: Readings, family: Family, variant: Variant, *, corruptions: Sequence[str]
) -> dict[str, Groups]:
    """Return the runs of a variant on these corruptions at each severity, by label."""
    return {
        f"severity {severity}": readings.groups(family, variant, at_severity(severity, corruptions))
        for severity in family.severities
    }


def cells_and_average(
    readings: Readings, settings: Sequence[Groups], value: Value, numbers: Sequence[float]
) -> tuple[Cell, ...]:
    """Return the cell of each setting and of their average; all settings must have the same number of runs."""
    averaged = [[run for group in groups for run in group] for groups in zip(*settings, strict=True)]
    return tuple(
        readings.cell(groups, value, number) for groups, number in zip((*settings, averaged), numbers, strict=True)
    )


def curves(readings: Readings, title: str, y: str, curve: Curve, lines: Mapping[str, Groups]) -> Panel:
    """Return a panel with a line over batches for each label."""
    series = [series for label, groups in lines.items() for series in readings.curve(label, groups, curve)]
    return Panel(title, "batch", y, "line", tuple(series))


def sweep(
    readings: Readings,
    title: str,
    axes: tuple[str, str],
    value: Value,
    lines: Mapping[str, Sequence[tuple[float | str, Groups]]],
    kind: Literal["line", "bar"] = "line",
    *,
    logarithmic: bool = False,
) -> Panel:
    """Return a panel with a line, or bars, for each label: a value for each setting on the x axis."""
    series = [series for label, points in lines.items() for series in readings.series(label, points, value)]
    return Panel(title, *axes, kind, tuple(series), logarithmic)


def chart(item: Item, *panels: Panel, family: Family | None = None) -> Chart:
    """Return the chart of an item, or that of one family."""
    if family is None:
        return Chart(item.name, item.title, panels)
    return Chart(f"{item.name}-{family.name}", f"{item.title}, {family.title}", panels)
