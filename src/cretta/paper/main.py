"""The methods compared: Tables 2, 3, 4 and 13, Figures 2, 3, 5, 6, 7, 10, 11 and 12."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from statistics import fmean

from cretta.data.corruptions import SEVERITIES
from cretta.data.domains import CLEAN, Domain
from cretta.data.pacs import DOMAINS
from cretta.paper import values
from cretta.paper.family import WORST
from cretta.paper.item import Draw, Item
from cretta.paper.printed import printed
from cretta.paper.readings import Readings
from cretta.paper.shapes import (
    ACCURACY,
    BENCHMARKS,
    CALIBRATION_ERROR,
    CRETTA,
    METHODS,
    TEA,
    TENT,
    at_severity,
    by_severity,
    cells_and_average,
    chart,
    curves,
    marked,
    method_row,
    sweep,
)
from cretta.paper.values import Value
from cretta.report.content import Chart, Column, Row, Table

THREE = (TENT, TEA, CRETTA)
DELTAS = (10.0, 1.0, 0.1, 0.01)
STAGES = ("Source (Q)", "1", "2", "3", "4", "5 (P)", "Source (Q) again")
"""Of gradual shift."""


def ece_by_severity(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw ECE by severity: a chart for each family, a line for each method."""
    for name in BENCHMARKS:
        family = readings.scale.family(name)
        lines = {
            marked(variant, [family]): [
                (float(severity), readings.groups(family, variant, at_severity(severity, family.some)))
                for severity in family.severities
            ]
            for variant in METHODS.values()
        }
        panel = sweep(readings, family.title, ("severity", "ECE, % ↓"), values.calibration_error, lines)
        yield chart(item, panel, family=family)


def overconfidence(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw confidence and ECE of TENT and CreTTA: a chart for each family, a line for each severity."""
    shown = (("confidence", "mean confidence, %", values.confidences), ("ECE", "ECE, % ↓", values.calibration_errors))
    for name in BENCHMARKS:
        family = readings.scale.family(name)
        panels = [
            curves(
                readings,
                f"{variant.label}: {title}",
                y,
                curve,
                by_severity(readings, family, variant, corruptions=family.some),
            )
            for title, y, curve in shown
            for variant in (TENT, CRETTA)
        ]
        yield dataclasses.replace(chart(item, *panels, family=family), shared_y=True)


def over_batches(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw ECE and accuracy of the stream so far, on ImageNet-C at severity 5."""
    family = readings.scale.family("imagenet")
    streams = at_severity(WORST, family.corruptions)
    lines = {variant.label: readings.groups(family, variant, streams) for variant in THREE}
    yield chart(
        item,
        curves(readings, "ECE", "ECE of the stream so far, % ↓", values.running_calibration_errors, lines),
        curves(readings, "Acc", "Acc of the stream so far, % ↑", values.running_accuracies, lines),
    )


def ece_by_corruption(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw ECE of each corruption of ImageNet-C, averaged over severities."""
    family = readings.scale.family("imagenet")
    lines = {
        variant.label: [
            (name, readings.groups(family, variant, [Domain(name, severity) for severity in family.severities]))
            for name in family.some
        ]
        for variant in THREE
    }
    yield chart(item, sweep(readings, "ImageNet-C", ("corruption", "ECE, % ↓"), values.calibration_error, lines, "bar"))


def pacs(item: Item, readings: Readings) -> Iterator[Table]:
    """Draw accuracy and ECE by source domain, each the mean over the other three domains."""
    numbers = printed(item.labels[0])
    family = readings.scale.family("pacs")
    titles = (*(source.replace("_", " ") for source in DOMAINS), "average")
    for quantity, words in ((ACCURACY, "accuracy"), (CALIBRATION_ERROR, "calibration error")):
        rows = []
        for variant in THREE:
            sources = [
                readings.groups(member, variant, [Domain(name) for name in member.record.domains])
                for member in family.members()
            ]
            row = numbers[f"{quantity.title} {variant.label}"]
            cells = cells_and_average(readings, sources, quantity.value, row)
            rows.append(dataclasses.replace(method_row(variant, cells, [family]), group=""))
        headings = tuple(Column(title, better=quantity.better) for title in titles)
        name, title = f"{item.name}-{quantity.title.lower()}", f"{item.title}: {words}"
        yield Table(name, title, "Method", headings, tuple(rows))


def non_iid(item: Item, readings: Readings) -> Iterator[Table]:
    """Draw accuracy by δ of the Dirichlet distribution, at severity 5."""
    family = readings.scale.family("cifar100-wide")
    streams = at_severity(WORST, family.some)
    rows = []
    for label, numbers in printed(item.labels[0]).items():
        settings = [
            readings.groups(family, METHODS[label], streams, stream="dirichlet", delta=delta) for delta in DELTAS
        ]
        rows.append(Row(label, cells_and_average(readings, settings, values.accuracy, numbers)))
    titles = (*(f"δ = {delta:g}" for delta in DELTAS), "average")
    headings = tuple(Column(title, better="higher") for title in titles)
    yield Table(item.name, item.title, "Method", headings, tuple(rows))


def gradual(item: Item, readings: Readings) -> Iterator[Table]:
    """Draw accuracy in each domain of a gradual shift, by family and method."""
    shorter, longer = (printed(label) for label in item.labels)
    numbers = {
        # Only the table without TENT returns to the source.
        stage: longer[stage] if stage in longer else (*shorter[stage][:2], None, *shorter[stage][2:], None)
        for stage in STAGES
    }
    clean = Domain(CLEAN)
    headings, groups = [], []
    for name in ("cifar10", "cifar100"):
        family = readings.scale.family(name)
        streams = [(clean, *(Domain(shift, s) for s in SEVERITIES), clean) for shift in family.gradual]
        for variant in (CRETTA, TEA, TENT):
            headings.append(Column(variant.label, family.title, "higher"))
            groups.append(readings.groups(family, variant, streams, stream="gradual", images=family.gradual_images))
    rows = []
    for index, stage in enumerate(STAGES):
        value = accuracy_at(index)
        cells = [readings.cell(runs, value, number) for runs, number in zip(groups, numbers[stage], strict=True)]
        rows.append(Row(stage, tuple(cells)))
    yield Table(item.name, item.title, "Domain", tuple(headings), tuple(rows), best_of="row")


def accuracy_at(stage: int) -> Value:
    """Return the accuracy in percent, in the domain of this stage."""
    return lambda results: 100 * fmean([r.only([r.run.label(stage)]).scores.accuracy for r in results])


DRAW: dict[str, Draw] = {
    "imagenet-batches": over_batches,
    "imagenet-corruptions": ece_by_corruption,
    "ece-severity": ece_by_severity,
    "overconfidence": overconfidence,
    "pacs": pacs,
    "non-iid": non_iid,
    "gradual": gradual,
}
