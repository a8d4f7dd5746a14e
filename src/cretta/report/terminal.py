"""Tables for a terminal, however narrow."""

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
from cretta.report.ranking import MISSING, Mark, grouped_rows, heading, marks, notes, number, spread

STYLES: dict[Mark, str] = {"best": "bold", "second": "underline", "": ""}
GAP = 3
"""Between groups of columns."""
LEAST_LABEL = 8


def terminal(table: Table, width: int = 80) -> Group:
    """For ``console.print``. Columns that do not fit come below the others, by their groups.

    The paper's number and the difference stand beside the measured one.
    """
    grids = _Grids(table)
    units = [
        list(members) for _, members in groupby(range(len(table.columns)), key=lambda place: table.columns[place].group)
    ]
    # However long the labels are, any one column must fit beside them, and most of the width is for numbers.
    widest = max((grids.width([place]) for unit in units for place in unit), default=0)
    labels = min(grids.label_width, max(LEAST_LABEL, min(2 * width // 5, width - GAP - widest)))
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    for block in _blocks(grids, units, width - labels):
        # Rich has no heading over several columns: a grid of grids does.
        outer = Grid(box=None, padding=(0, GAP, 0, 0), pad_edge=False, collapse_padding=True)
        outer.add_column("", vertical="bottom")
        for places in block:
            group = Text(table.columns[places[0]].group, style="bold", justify="center")
            outer.add_column(group, width=grids.width(places), vertical="bottom")
        outer.show_header = any(table.columns[places[0]].group for places in block)
        outer.add_row(grids.labels(labels), *(grids.numbers(places) for places in block))
        parts += [Text(), outer]
    if below := notes(table):
        parts += [Text(), *(Text(note, style="dim") for note in below)]
    return Group(*parts)


def _blocks(grids: _Grids, units: Sequence[list[int]], width: int) -> list[list[list[int]]]:
    """Groups of columns that fit side by side; a group that is too wide on its own is cut."""
    pieces: list[list[int]] = []
    for unit in units:
        pieces.append([])
        for place in unit:
            if pieces[-1] and GAP + grids.width([*pieces[-1], place]) > width:
                pieces.append([])
            pieces[-1].append(place)
    blocks: list[list[list[int]]] = []
    room = 0
    for piece in pieces:
        needed = GAP + grids.width(piece)
        if not blocks or needed > room:
            blocks.append([])
            room = width
        blocks[-1].append(piece)
        room -= needed
    return blocks


class _Grids:
    """The parts of a table, each with the same lines."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.marks = marks(table)
        self._wide = Console(width=100_000)
        self._label_lines = []
        for group, places in grouped_rows(table):
            names = [table.rows[place].label for place in places]
            self._label_lines += [group, *(f"  {name}" for name in names)] if group else names
        self.label_width = max(map(cell_len, (table.first, *self._label_lines)))

    def width(self, places: Sequence[int]) -> int:
        """What these columns take side by side."""
        return Measurement.get(self._wide, self._wide.options, self.numbers(places)).maximum

    def labels(self, width: int) -> Grid:
        """The labels of rows, and of their groups."""
        grid = _grid()
        grid.add_column(Text(self.table.first), width=width, no_wrap=True, overflow="ellipsis")
        for line in self._label_lines:
            grid.add_row(Text(line))
        return grid

    def numbers(self, places: Sequence[int]) -> Grid:
        """Neighbouring columns."""
        grid = _grid()
        texts = [self._texts(place) for place in places]
        for place, rows in zip(places, texts, strict=True):
            grid.add_column(Text(heading(self.table.columns[place])), justify="right", no_wrap=True)
            for title in ("paper", "Δ")[: len(rows[0]) - 1 if rows else 0]:
                grid.add_column(Text(title), justify="right", no_wrap=True)
        for group, members in grouped_rows(self.table):
            if group:
                grid.add_row()
            for row in members:
                grid.add_row(*(text for rows in texts for text in rows[row]))
        return grid

    def _texts(self, place: int) -> list[list[Text]]:
        """For each row: what was measured and, if the paper has the column, its number and the difference."""
        column = self.table.columns[place]
        cells = [row.cells[place] for row in self.table.rows]
        printed = any(cell.printed is not None for cell in cells)
        compared = any(cell.difference is not None for cell in cells)
        spreads = [f" ±{deviation}" if (deviation := spread(cell, column)) else "" for cell in cells]
        # Decimal points stay in line where one row has a deviation and another has none.
        room = max(map(len, spreads), default=0)
        texts = []
        for cell, deviation, row in zip(cells, spreads, self.marks, strict=True):
            mean = MISSING if cell.value is None else number(cell.value, column.digits)
            line = [Text.assemble((mean, STYLES[row[place]]), f"{deviation:<{room}}")]
            if printed:
                paper = "" if cell.printed is None else number(cell.printed, column.digits)
                line.append(Text(paper, style="dim"))
            if compared:
                difference = cell.difference
                less = "" if difference is None else number(difference, column.digits, signed=True)
                line.append(Text(less, style="dim"))
            texts.append(line)
        return texts


def _grid() -> Grid:
    return Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold")
