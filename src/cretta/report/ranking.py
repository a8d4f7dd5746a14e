"""How a table's numbers read, and which of them are best and second, whatever it is rendered to."""

from __future__ import annotations

import math
from typing import Literal

from cretta.errors import OptionError
from cretta.report.content import Column, Table

Mark = Literal["best", "second", ""]

MISSING = "–"
ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
BESIDE = "In brackets: the paper's number, and the measured one less it."


def marks(table: Table) -> tuple[tuple[Mark, ...], ...]:
    """The mark of each cell, by row and column: the best is bold, the second underlined.

    Numbers that read alike are alike: all that show the best are best, all that show the next one are second. Where
    fewer than two have a number, or more than half of several share the best, nothing stands out and nothing is marked.
    """
    for row in table.rows:
        if len(row.cells) != len(table.columns):
            raise OptionError(
                f"table {table.name!r}, row {row.label!r}: {len(row.cells)} cells for {len(table.columns)} columns; "
                "give one for each, Cell() where there is no number."
            )
    found: list[list[Mark]] = [["" for _ in table.columns] for _ in table.rows]
    for pool in _pools(table):
        better = table.columns[pool[0][1]].better
        shown = {place: value for place in pool if (value := _shown(table, *place)) is not None}
        if better == "neither" or len(shown) < 2:
            continue
        ranking = sorted(set(shown.values()), reverse=better == "higher")
        if 2 * sum(value == ranking[0] for value in shown.values()) > len(shown):
            continue
        for (line, place), value in shown.items():
            if value in ranking[:2]:
                found[line][place] = "best" if value == ranking[0] else "second"
    return tuple(map(tuple, found))


def _pools(table: Table) -> list[list[tuple[int, int]]]:
    """Places of cells, by row and column, that are compared with each other."""
    lines, places = range(len(table.rows)), range(len(table.columns))
    if table.best_of == "none":
        return []
    if table.best_of == "row":
        pools: dict[tuple[int, str, str], list[tuple[int, int]]] = {}
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


def heading(column: Column) -> str:
    """The column's title, with an arrow to where the best numbers are."""
    return column.title + ARROWS[column.better]


def notes(table: Table) -> list[str]:
    """What stands below the table: its own notes, and those of cells."""
    found: dict[str, list[str]] = {}
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell.note:
                where = ", ".join(filter(None, (row.group, row.label, column.group, column.title)))
                found.setdefault(cell.note, []).append(MISSING if cell.value is None else where)
    return [*table.notes, *(f"{'; '.join(dict.fromkeys(places))}: {note}" for note, places in found.items())]


def has_printed(table: Table) -> bool:
    """Whether the paper's numbers stand in it."""
    return any(cell.printed is not None for row in table.rows for cell in row.cells)


def _shown(table: Table, row: int, column: int) -> float | None:
    value = table.rows[row].cells[column].value
    if value is None or not math.isfinite(value):
        return None
    return float(number(value, table.columns[column].digits))
