"""Tables 10 and 11, Figure 1: what a step costs, and what it gains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from cretta.bench import Result
from cretta.paper import values
from cretta.paper.item import Draw, Item
from cretta.paper.printed import printed
from cretta.paper.readings import Readings
from cretta.paper.shapes import BN_ADAPT, CRETTA, SOURCE, TEA, TENT, Quantity, chart, domains, marked, method_row
from cretta.paper.values import Value
from cretta.report.content import Chart, Column, Panel, Series, Table
from cretta.report.styles import PRINTED

VARIANTS = (SOURCE, BN_ADAPT, TENT, TEA, CRETTA)
BATCH = 200
"""Images of the step that the paper counts."""
# By how much they are below the source model's, whose mCE is 100.
MCE_GAIN = Quantity("mCE", "higher", lambda results: 100 - values.corruption_error(results), base=SOURCE)
ECE_GAIN = Quantity("ECE", "higher", lambda results: -values.above_base(values.calibration_error)(results), base=SOURCE)
CIFAR10, CIFAR100 = "tab:suppl_comcost_cifar10", "tab:suppl_comcost_cifar100"


def gflops(key: str) -> Value:
    """Return the operations of a step on 200 images: they grow with the images of a batch."""
    return lambda results: results[0].cost[key] * BATCH / int(results[0].run.batch_size)


def megabytes(results: Sequence[Result]) -> float:
    """Return the peak memory of a step on a batch of the run's own size."""
    return results[0].cost["peak_megabytes"]


def cost(item: Item, readings: Readings) -> Iterator[Table]:
    """Draw a table for each family; the cost of a step comes with any of its runs."""
    for name, label in (("cifar10", CIFAR10), ("cifar100", CIFAR100)):
        family = readings.scale.family(name)
        batch = family.batch(family.images)
        columns = (
            Column("as the paper counts", f"GFLOPs per step of {BATCH} images", "lower"),
            Column("with backward passes", f"GFLOPs per step of {BATCH} images", "lower", digits=1),
            Column(f"Peak memory, MB, {batch} images", better="lower"),
            Column("Acc", family.average, "higher"),
            Column("ECE", family.average, "lower"),
        )
        rows = []
        for variant in VARIANTS:
            operations, memory, percent, error = printed(label)[variant.label]
            groups = readings.groups(family, variant, domains(family, "average", ablation=False))
            one = [group[:1] for group in groups[:1]]
            costs = (
                readings.cell(one, gflops("paper_gflops"), operations),
                readings.cell(one, gflops("gflops")),
                # The memory of a smaller batch cannot be compared.
                readings.cell(one, megabytes, memory if batch == BATCH else None),
            )
            cells = (
                *(dataclasses.replace(cell, blocks=None) for cell in costs),  # exact: all batches cost the same
                readings.cell(groups, values.accuracy, percent),
                readings.cell(groups, values.calibration_error, error),
            )
            rows.append(dataclasses.replace(method_row(variant, cells, [family]), group=""))
        smaller = f"Memory is that of {batch} images; the paper's, of {BATCH}, is not shown beside it."
        notes = (smaller,) if batch != BATCH else ()
        yield Table(f"{item.name}-{name}", f"{item.title}, {family.title}", "Method", columns, tuple(rows), notes)


def gain(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw what each method gains over the source model against what a step costs; the paper's points beside it."""
    family = readings.scale.family("cifar10")
    streams = domains(family, "average", ablation=False)
    main, costs = printed("tab:AccCompare"), printed(CIFAR10)
    panels = []
    # In Table 1, mCE and ECE over all severities of CIFAR10-C are the third and fourth number.
    for quantity, column in ((MCE_GAIN, 2), (ECE_GAIN, 3)):
        measured, paper = [], []
        for variant in VARIANTS[1:]:
            groups = readings.groups(family, variant, streams)
            x = readings.cell([group[:1] for group in groups[:1]], gflops("paper_gflops")).value
            y = quantity.cell(readings, variant, family, streams)
            if x is not None and y.value is not None:
                deviation = () if y.deviation is None else (y.deviation,)
                measured.append(Series(marked(variant, [family]), (x,), (y.value,), deviation))
            gained = round(main["Source"][column] - main[variant.label][column], 2)
            paper.append(Series(f"{variant.label}{PRINTED}", (costs[variant.label][0],), (gained,)))
        y_axis = f"gain in {quantity.title}, points ↑"
        panels.append(Panel(quantity.title, "GFLOPs per step", y_axis, "scatter", (*measured, *paper), True))
    yield chart(item, *panels)


DRAW: dict[str, Draw] = {"gain-cost": gain, "cost": cost}
