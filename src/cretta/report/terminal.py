"""Tables for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from cretta.report.content import Table
from cretta.report.ranking import MISSING, Mark, MarkedRows, cell_text, heading, marked_rows, notes

STYLES: dict[Mark, str] = {"best": "bold", "second": "underline", "": ""}
LEAST_LABEL = 8

Texts = Sequence[Sequence[list[Text]]]
"""By column, then by row: the texts that stand side by side."""


def terminal(table: Table, width: int = 80) -> Group:
    """Return a table for ``console.print``: its groups of columns, and columns that do not fit, below each other.

    The paper's number and the difference stand beside the measured one.
    """
    console = Console(width=100_000)
    rows = marked_rows(table)
    texts = [_column_texts(table, rows, index) for index in range(len(table.columns))]

    def measured(columns: Sequence[int], label_width: int) -> int:
        return Measurement.get(console, console.options, _grid(table, rows, texts, columns, label_width)).maximum

    # Any one column must fit beside the labels, and most of the width is for numbers.
    widest = max((measured([index], 1) for index in range(len(texts))), default=0)
    labels = min(max(LEAST_LABEL, 2 * width // 5), max(LEAST_LABEL, width - widest))
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    for group, members in groupby(range(len(texts)), key=lambda index: table.columns[index].group):
        blocks: list[list[int]] = [[]]
        for index in members:
            if blocks[-1] and measured([*blocks[-1], index], labels) > width:
                blocks.append([])
            blocks[-1].append(index)
        for block in blocks:
            parts += [Text(f"\n{group}" if group else "", style="bold"), _grid(table, rows, texts, block, labels)]
    if below := notes(table):
        parts += [Text(), *(Text(note, style="dim") for note in below)]
    return Group(*parts)


def _grid(table: Table, groups: MarkedRows, texts: Texts, columns: Sequence[int], label_width: int) -> Grid:
    """Return the labels of rows, and these columns."""
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold")
    grid.add_column(Text(table.first), max_width=label_width, no_wrap=True, overflow="ellipsis")
    for index in columns:
        titles = (heading(table.columns[index]), "paper", "Δ")
        for title in titles[: len(texts[index][0]) if texts[index] else 1]:
            grid.add_column(Text(title), justify="right", no_wrap=True)
    lines = zip(*(texts[index] for index in columns), strict=True)
    for group, rows in groups:
        if group:
            grid.add_row(Text(group))
        for row, _ in rows:
            grid.add_row(
                Text(f"  {row.label}" if group else row.label), *(text for cell in next(lines) for text in cell)
            )
    return grid


def _column_texts(table: Table, groups: MarkedRows, index: int) -> list[list[Text]]:
    """Return for each row the measured number and, if the paper has the column, its number and the difference."""
    rows = [pair for _, members in groups for pair in members]
    texts = [cell_text(row.cells[index], table.columns[index]) for row, _ in rows]
    # Decimal points stay in line where one row has a deviation and another has none.
    deviations = [f" ±{text.deviation}" if text.deviation else "" for text in texts]
    longest = max(map(cell_len, deviations), default=0)
    beside = [name for name in ("printed", "difference") if any(getattr(text, name) for text in texts)]
    return [
        [
            Text.assemble((text.value or MISSING, STYLES[row_marks[index]]), f"{deviation:<{longest}}"),
            *(Text(getattr(text, name), style="dim") for name in beside),
        ]
        for text, deviation, (_, row_marks) in zip(texts, deviations, rows, strict=True)
    ]
