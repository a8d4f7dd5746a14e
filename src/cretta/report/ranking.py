"""Which numbers of a table are best, how numbers read, and what stands below the table: the same in every format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from cretta.report.content import Cell, Column, Row, Table
from cretta.report.spread import margin, on_same_seeds

Position = tuple[int, int]
"""Row and column of a cell."""
MarkedRows = list[tuple[str, list[tuple[Row, tuple[bool, ...]]]]]
"""By group: the rows, and which of their cells are among the best."""

MISSING = "–"
ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
TEST = "paired t-test over batches, and seeds if several, 5 %"
STAR = "*"
"""Marks the best numbers where text cannot be bold."""
_BEST = f"the best and all that are not significantly behind it ({TEST})."
MEANING, MEANING_OF_STAR = f"Bold: {_BEST}", f"{STAR}: {_BEST}"
NO_BEST = f"No number is marked as best: no difference is significant ({TEST})."

OTHER_IMAGES = "Methods on fewer images are not ranked."


def marks(table: Table) -> tuple[tuple[bool, ...], ...]:
    """Return by row and column whether a cell is marked as best.

    A number is as good as the best if both read alike or if the difference is not significant
    (:func:`cretta.report.spread.margin`). Where all are as good as the best, nothing is marked.
    """
    best: set[Position] = set()
    for pool in _pools(table):
        numbers = _numbers(table, pool)
        ranking = sorted(numbers, key=numbers.__getitem__, reverse=table.columns[pool[0][1]].better == "higher")
        values = {numbers[cell] for cell in ranking if _alike(table, numbers, ranking[0], cell)}
        alike = {cell for cell in ranking if numbers[cell] in values}
        best |= alike if len(alike) < len(ranking) else set()
    return tuple(tuple((row, column) in best for column in range(len(table.columns))) for row in range(len(table.rows)))


def _alike(table: Table, numbers: Mapping[Position, float], best: Position, other: Position) -> bool:
    if numbers[best] == numbers[other]:
        return True
    a, b = (table.rows[row].cells[column] for row, column in (best, other))
    first, second = on_same_seeds(a, b)
    lead = first - second if table.columns[best[1]].better == "higher" else second - first
    return lead <= margin(a, b)


def _pools(table: Table) -> list[list[Position]]:
    """Return the cells that are compared with each other."""
    pools: dict[tuple[object, ...], list[Position]] = {}
    for row_index, row in enumerate(table.rows):
        for column_index, column in enumerate(table.columns):
            key: dict[str, tuple[object, ...]] = {
                "table": (column_index,),
                "group": (row.group, column_index),
                "row": (row_index, column.group, column.better),
            }
            if row.compared and column.better != "neither" and table.best_of != "none":
                pools.setdefault(key[table.best_of], []).append((row_index, column_index))
    return list(pools.values())


def _numbers(table: Table, pool: Sequence[Position]) -> dict[Position, float]:
    """Return the numbers that the cells show, without those that show none."""
    values = {(row, column): table.rows[row].cells[column].value for row, column in pool}
    return {
        cell: float(number(value, table.columns[cell[1]].digits))
        for cell, value in values.items()
        if value is not None and math.isfinite(value)
    }


def marked_rows(table: Table) -> MarkedRows:
    """Return the rows with their marks by group, groups in the order in which they appear."""
    groups: dict[str, list[tuple[Row, tuple[bool, ...]]]] = {}
    for row, row_marks in zip(table.rows, marks(table), strict=True):
        groups.setdefault(row.group, []).append((row, row_marks))
    return list(groups.items())


def number(value: float, digits: int, *, signed: bool = False) -> str:
    """Return a number as tables show it; what rounds to zero has no minus.

    >>> number(-0.001, 2), number(1.5, 1, signed=True)
    ('0.00', '+1.5')
    """
    return f"{value:{'+' if signed else ''}z.{digits}f}"


def cell_text(cell: Cell, column: Column) -> tuple[str, str, str, str]:
    """Return value, deviation, the paper's number and the difference, as tables show them; empty if missing.

    The deviation is empty also where it reads as zero, for seeds that do not differ.
    """
    values = (cell.value, None if cell.value is None else cell.deviation, cell.printed)
    value, deviation, printed = ("" if x is None else number(x, column.digits) for x in values)
    difference = "" if cell.difference is None else number(cell.difference, column.digits, signed=True)
    return value, deviation if deviation.strip("0.") else "", printed, difference


def cell_parts(cell: Cell, column: Column) -> tuple[str, str]:
    """Return a cell in one line: the measured number, and in brackets the paper's with the difference to it."""
    value, deviation, printed, difference = cell_text(cell, column)
    measured = (value or MISSING) + (f" ± {deviation}" if deviation else "")
    return measured, f" ({', '.join(filter(None, (printed, difference)))})" if printed else ""


def heading(column: Column) -> str:
    """Return the column's title, with an arrow to where the best numbers are."""
    return column.title + ARROWS[column.better]


def notes(table: Table, *, bold: bool = True) -> list[str]:
    """Return what stands below the table: what marks mean, its own notes, and those of cells, groups or whole rows."""
    by_note: dict[str, list[str]] = {}
    labels = Counter(row.label for row in table.rows)
    for row in table.rows:
        pairs = list(zip(table.columns, row.cells, strict=True))
        whole = len({cell.note for _, cell in pairs if cell.value is not None}) == 1
        for column, cell in pairs:
            if cell.note:
                beside = {other.note for same, other in pairs if same.group == column.group and other.value is not None}
                titles = () if whole else (column.group, "" if column.group and len(beside) == 1 else column.title)
                where = ", ".join(filter(None, (row.group if labels[row.label] > 1 else "", row.label, *titles)))
                by_note.setdefault(cell.note, []).append(MISSING if cell.value is None else where)
    below = (f"{'; '.join(dict.fromkeys(cells))}: {note}" for note, cells in by_note.items())
    return [*_meaning(table, MEANING if bold else MEANING_OF_STAR), *table.notes, *below]


def _meaning(table: Table, meaning: str) -> list[str]:
    if any(map(any, marks(table))):
        return [meaning if all(row.compared for row in table.rows) else f"{meaning} {OTHER_IMAGES}"]
    compared = (len(_numbers(table, pool)) > 1 for pool in _pools(table))
    return [NO_BEST] if any(compared) else []


def brackets(table: Table) -> list[str]:
    """Return the note on numbers in brackets, if there are any."""
    cells = [cell for row in table.rows for cell in row.cells]
    if all(cell.printed is None for cell in cells):
        return []
    differ = any(cell.difference is not None for cell in cells)
    return [f"In brackets: the paper's number{', and the measured one less it' if differ else ''}."]
