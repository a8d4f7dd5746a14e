"""Tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import starmap

from cretta.report.content import Cell, Column, Table
from cretta.report.ranking import MISSING, Mark, brackets, grouped_rows, heading, marks, notes, number, spread


def markdown(table: Table) -> str:
    """A Markdown table with its title and notes; groups are part of the headings, underlining is HTML's."""
    marked = marks(table)
    titles = (" · ".join(filter(None, (column.group, heading(column)))) for column in table.columns)
    lines = [
        f"**{escape(table.title)}**",
        "",
        _row([escape(table.first), *map(escape, titles)]),
        _row(["---", *("---:" for _ in table.columns)]),
    ]
    for group, places in grouped_rows(table):
        if group:
            lines.append(_row([f"*{escape(group)}*", *("" for _ in table.columns)]))
        for place in places:
            row = table.rows[place]
            cells = starmap(_cell, zip(row.cells, table.columns, marked[place], strict=True))
            lines.append(_row([escape(row.label), *cells]))
    for note in [*brackets(table), *notes(table)]:
        lines += ["", escape(note)]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Plain text, on one line, whatever characters Markdown has a meaning for."""
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", " ".join(text.split()))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell, column: Column, mark: Mark) -> str:
    text = MISSING if cell.value is None else number(cell.value, column.digits)
    if deviation := spread(cell, column):
        text += f" ± {deviation}"
    text = {"best": f"**{text}**", "second": f"<u>{text}</u>", "": text}[mark]
    if cell.printed is None:
        return text
    difference = "" if cell.difference is None else f", {number(cell.difference, column.digits, signed=True)}"
    return f"{text} ({number(cell.printed, column.digits)}{difference})"
