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
from cretta.report.ranking import MISSING, Mark, cell_text, heading, marked_rows, notes

STYLES: dict[Mark, str] = {"best": "bold", "second": "underline", "": ""}
GAP = 3
"""Characters between groups of columns."""
LEAST_LABEL = 8


def terminal(table: Table, width: int = 80) -> Group:
    """Return a table for ``console.print``. Columns that do not fit come below the others, by their groups.

    The paper's number and the difference stand beside the measured one.
    """
    grids = _Grids(table)
    columns = range(len(table.columns))
    units = [list(members) for _, members in groupby(columns, key=lambda index: table.columns[index].group)]
    # Any one column must fit beside the labels, and most of the width is for numbers.
    widest = max((grids.width([index]) for index in columns), default=0)
    label_width = min(grids.label_width, max(LEAST_LABEL, min(2 * width // 5, width - GAP - widest)))
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    for block in _blocks(grids, units, width - label_width):
        # Rich has no heading over several columns, so each group of columns is a grid in a cell of another grid.
        outer = Grid(box=None, padding=(0, GAP, 0, 0), pad_edge=False, collapse_padding=True)
        outer.add_column("", vertical="bottom")
        for members in block:
            group = Text(table.columns[members[0]].group, style="bold", justify="center")
            outer.add_column(group, width=grids.width(members), vertical="bottom")
        outer.show_header = any(table.columns[members[0]].group for members in block)
        outer.add_row(grids.labels(label_width), *map(grids.numbers, block))
        parts += [Text(), outer]
    if below := notes(table):
        parts += [Text(), *(Text(note, style="dim") for note in below)]
    return Group(*parts)


def _blocks(grids: _Grids, units: Sequence[list[int]], width: int) -> list[list[list[int]]]:
    """Return the groups of columns that fit side by side; a group that is too wide on its own is cut."""
    pieces: list[list[int]] = []
    for unit in units:
        pieces.append([])
        for index in unit:
            if pieces[-1] and GAP + grids.width([*pieces[-1], index]) > width:
                pieces.append([])
            pieces[-1].append(index)
    blocks: list[list[list[int]]] = []
    free = 0
    for piece in pieces:
        required = GAP + grids.width(piece)
        if not blocks or required > free:
            blocks.append([])
            free = width
        blocks[-1].append(piece)
        free -= required
    return blocks


class _Grids:
    """The labels and the columns of a table, as grids with the same lines."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._groups = marked_rows(table)
        self._texts = [self._column_texts(index) for index in range(len(table.columns))]
        self._console = Console(width=100_000)
        self._label_lines: list[str] = []
        for group, rows in self._groups:
            self._label_lines += [group] if group else []
            self._label_lines += [f"  {row.label}" if group else row.label for row, _ in rows]
        self.label_width = max(map(cell_len, (table.first, *self._label_lines)))

    def width(self, columns: Sequence[int]) -> int:
        """Return the width of these columns side by side."""
        return Measurement.get(self._console, self._console.options, self.numbers(columns)).maximum

    def labels(self, width: int) -> Grid:
        """Return the labels of rows, and of their groups."""
        grid = _grid()
        grid.add_column(Text(self._table.first), width=width, no_wrap=True, overflow="ellipsis")
        for line in self._label_lines:
            grid.add_row(Text(line))
        return grid

    def numbers(self, columns: Sequence[int]) -> Grid:
        """Return neighboring columns, without labels."""
        grid = _grid()
        texts = [self._texts[index] for index in columns]
        for index, rows in zip(columns, texts, strict=True):
            titles = (heading(self._table.columns[index]), "paper", "Δ")
            for title in titles[: len(rows[0]) if rows else 1]:
                grid.add_column(Text(title), justify="right", no_wrap=True)
        lines = zip(*texts, strict=True)
        for group, members in self._groups:
            if group:
                grid.add_row()
            for _ in members:
                grid.add_row(*(text for cell in next(lines) for text in cell))
        return grid

    def _column_texts(self, index: int) -> list[list[Text]]:
        """Return for each row the measured number and, if the paper has the column, its number and the difference."""
        rows = [pair for _, members in self._groups for pair in members]
        texts = [cell_text(row.cells[index], self._table.columns[index]) for row, _ in rows]
        # Decimal points stay in line where one row has a deviation and another has none.
        deviations = [f" ±{text.deviation}" if text.deviation else "" for text in texts]
        room = max(map(len, deviations), default=0)
        beside = [name for name in ("printed", "difference") if any(getattr(text, name) for text in texts)]
        return [
            [
                Text.assemble((text.value or MISSING, STYLES[row_marks[index]]), f"{deviation:<{room}}"),
                *(Text(getattr(text, name), style="dim") for name in beside),
            ]
            for text, deviation, (_, row_marks) in zip(texts, deviations, rows, strict=True)
        ]


def _grid() -> Grid:
    return Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold")
