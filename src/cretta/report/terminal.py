"""Tables for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from cretta.report.content import Table
from cretta.report.ranking import STAR, MarkedRows, brackets, cell_parts, heading, marked_rows, notes

LEAST_LABEL = 8
GAP = 3
"""Characters between two columns."""


def terminal(table: Table, width: int = 80, *, bold: bool = True) -> Group:
    """Return a table for ``console.print``: its groups of columns, and columns that do not fit, below each other.

    The best numbers are bold, or have a star where ``bold`` is false, as in a file.
    """
    groups = marked_rows(table)
    rows = [pair for _, members in groups for pair in members]
    texts = [
        [_text(*cell_parts(row.cells[index], column), best[index], bold=bold) for row, best in rows]
        for index, column in enumerate(table.columns)
    ]
    widths = [
        GAP + max(cell_len(heading(column)), *(text.cell_len for text in column_texts), 0)
        for column, column_texts in zip(table.columns, texts, strict=True)
    ]
    # Any one column must fit beside the labels, and most of the width is for numbers.
    labels = min(max(LEAST_LABEL, 2 * width // 5), max(LEAST_LABEL, width - max(widths, default=0)))
    first = (table.first, *(group for group, _ in groups), *(f"  {row.label}" for row, _ in rows))
    labels = min(labels, max(map(cell_len, first)))
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    for group, members in groupby(range(len(texts)), key=lambda index: table.columns[index].group):
        blocks: list[list[int]] = [[]]
        for index in members:
            if blocks[-1] and labels + sum(widths[i] for i in (*blocks[-1], index)) > width:
                blocks.append([])
            blocks[-1].append(index)
        for block in blocks:
            parts += [Text(f"\n{group}" if group else "", style="bold"), _grid(table, groups, texts, block, labels)]
    if below := [*brackets(table), *notes(table, bold=bold)]:
        parts += [Text(), *(Text(note, style="dim") for note in below)]
    return Group(*parts)


def _text(measured: str, beside: str, best: bool, *, bold: bool) -> Text:
    if not bold:
        return Text(f"{measured}{STAR if best else ' '}{beside}")
    return Text.assemble((measured, "bold" if best else ""), (beside, "dim"))


def _grid(
    table: Table, groups: MarkedRows, texts: Sequence[Sequence[Text]], columns: Sequence[int], label_width: int
) -> Grid:
    """Return the labels of rows, and these columns; ``texts`` are those of all columns, by row."""
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold")
    grid.add_column(Text(table.first), max_width=label_width, no_wrap=True, overflow="ellipsis")
    for index in columns:
        grid.add_column(Text(heading(table.columns[index])), justify="right", no_wrap=True)
    lines = zip(*(texts[index] for index in columns), strict=True)
    for group, rows in groups:
        if group:
            grid.add_row(Text(group))
        for row, _ in rows:
            grid.add_row(Text(f"  {row.label}" if group else row.label), *next(lines))
    return grid
