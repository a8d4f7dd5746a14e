"""How a table's numbers read, and which of them are best and second, whatever it is rendered to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from cretta.errors import OptionError
from cretta.report.content import Cell, Column, Table
from cretta.report.spread import margin

Mark = Literal["best", "second", ""]
Place = tuple[int, int]
"""Of a cell: its row and column."""
MARKS: tuple[Mark, ...] = ("best", "second")

MISSING = "–"
ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
TEST = "paired t-test over batches and seeds, 5 %"
MEANING = f"Bold: the best and all that do not differ significantly from it ({TEST}); underlined: the second, likewise."
NO_BEST = f"Nothing is bold: no difference is significant ({TEST})."


def marks(table: Table) -> tuple[tuple[Mark, ...], ...]:
    """Return the mark of each cell, by row and column: the best is bold, the second underlined.

    A number is as good as the best, or the second, if both read alike or differ by no more than their spread tells
    apart (:func:`cretta.report.spread.margin`). Where all are as good as the best, nothing is marked.
    """
    for row in table.rows:
        if len(row.cells) != len(table.columns):
            raise OptionError(
                f"table {table.name!r}, row {row.label!r}: {len(row.cells)} cells for {len(table.columns)} columns; "
                "give one for each, Cell() where there is no number."
            )
    found: list[list[Mark]] = [["" for _ in table.columns] for _ in table.rows]
    for pool in _pools(table):
        shown = _numbers(table, pool)
        higher = table.columns[pool[0][1]].better == "higher"
        ranking = sorted(shown, key=lambda place: shown[place], reverse=higher)
        for mark in MARKS:
            values = {shown[place] for place in ranking if _alike(table, shown, ranking[0], place)}
            alike = [place for place in ranking if shown[place] in values]
            if mark == "best" and len(alike) == len(ranking):
                break
            for line, place in alike:
                found[line][place] = mark
            ranking = [place for place in ranking if place not in alike]
    return tuple(map(tuple, found))


def _alike(table: Table, shown: Mapping[Place, float], best: Place, other: Place) -> bool:
    if shown[best] == shown[other]:
        return True
    a, b = (table.rows[row].cells[column] for row, column in (best, other))
    return abs(shown[best] - shown[other]) <= margin(a, b)


def _pools(table: Table) -> list[list[Place]]:
    """Return the places of cells that are compared with each other."""
    lines = range(len(table.rows))
    places = [place for place, column in enumerate(table.columns) if column.better != "neither"]
    if table.best_of == "none":
        return []
    if table.best_of == "row":
        pools: dict[tuple[int, str, str], list[Place]] = {}
        for line in lines:
            for place in places:
                column = table.columns[place]
                pools.setdefault((line, column.group, column.better), []).append((line, place))
        return list(pools.values())
    groups = [members for _, members in grouped_rows(table)] if table.best_of == "group" else [list(lines)]
    return [[(line, place) for line in members] for members in groups if members for place in places]


def grouped_rows(table: Table) -> list[tuple[str, list[int]]]:
    """The places of rows by their group, groups in the order in which they appear."""
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(table.rows):
        groups.setdefault(row.group, []).append(place)
    return list(groups.items())


def number(value: float, digits: int, *, signed: bool = False) -> str:
    """A number as tables show it; what rounds to zero has no minus.

    >>> number(-0.001, 2), number(1.5, 1, signed=True)
    ('0.00', '+1.5')
    """
    return f"{value:{'+' if signed else ''}z.{digits}f}"


def spread(cell: Cell, column: Column) -> str:
    """Return the deviation as tables show it; nothing where it reads as zero, for seeds that do not differ."""
    told = "" if cell.value is None or cell.deviation is None else number(cell.deviation, column.digits)
    return told if told.strip("0.") else ""


def heading(column: Column) -> str:
    """The column's title, with an arrow to where the best numbers are."""
    return column.title + ARROWS[column.better]


def notes(table: Table) -> list[str]:
    """Return what stands below the table: what marks mean, its own notes, and those of cells."""
    found: dict[str, list[str]] = {}
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell.note:
                where = ", ".join(filter(None, (row.group, row.label, column.group, column.title)))
                found.setdefault(cell.note, []).append(MISSING if cell.value is None else where)
    below = (f"{'; '.join(dict.fromkeys(places))}: {note}" for note, places in found.items())
    return [*_meaning(table), *table.notes, *below]


def _meaning(table: Table) -> list[str]:
    if any(mark for row in marks(table) for mark in row):
        return [MEANING]
    compared = (len(_numbers(table, pool)) > 1 for pool in _pools(table))
    return [NO_BEST] if any(compared) else []


def brackets(table: Table) -> list[str]:
    """Return what stands in brackets, if anything does."""
    cells = [cell for row in table.rows for cell in row.cells]
    if all(cell.printed is None for cell in cells):
        return []
    differ = any(cell.difference is not None for cell in cells)
    return [f"In brackets: the paper's number{', and the measured one less it' if differ else ''}."]


def _numbers(table: Table, pool: Sequence[Place]) -> dict[Place, float]:
    """Return what the cells show, without those that show no number."""
    cells = {(row, column): table.rows[row].cells[column].value for row, column in pool}
    return {
        place: float(number(value, table.columns[place[1]].digits))
        for place, value in cells.items()
        if value is not None and math.isfinite(value)
    }
