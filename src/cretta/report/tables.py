"""Tables as files: Markdown and CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from csv import writer

from cretta.report.content import Table
from cretta.report.ranking import brackets, cell_parts, heading, marked_rows, marks, notes


def markdown(table: Table) -> str:
    """Return a Markdown table with its title and notes; column groups are part of the headings."""
    titles = (" · ".join(filter(None, (column.group, heading(column)))) for column in table.columns)
    lines = [
        f"**{_escape_markdown(table.title)}**",
        "",
        _markdown_row([_escape_markdown(table.first), *map(_escape_markdown, titles)]),
        _markdown_row(["---", *("---:" for _ in table.columns)]),
    ]
    for group, rows in marked_rows(table):
        if group:
            lines.append(_markdown_row([f"*{_escape_markdown(group)}*", *("" for _ in table.columns)]))
        for row, row_marks in rows:
            parts = [cell_parts(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
            marked = zip(parts, row_marks, strict=True)
            cells = [(f"**{measured}**" if best else measured) + beside for (measured, beside), best in marked]
            lines.append(_markdown_row([_escape_markdown(row.label), *cells]))
    for note in [*brackets(table), *notes(table)]:
        lines += ["", _escape_markdown(note)]
    return "\n".join(lines) + "\n"


def _escape_markdown(text: str) -> str:
    """Return text with its special characters escaped, except in code."""
    escaped = r"(`[^`|]+`)|([\\`*_{}\[\]<>|#~&])"
    return re.sub(escaped, lambda match: match[1] or f"\\{match[2]}", " ".join(text.split()))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def csv(table: Table) -> str:
    """Return a line for each cell, with all digits."""
    text = io.StringIO()
    out = writer(text, lineterminator="\n")
    out.writerow(("row", "group", "column_group", "column", "value", "deviation", "printed", "note", "mark"))
    for row, row_marks in zip(table.rows, marks(table), strict=True):
        for column, cell, best in zip(table.columns, row.cells, row_marks, strict=True):
            numbers = ("" if value is None else repr(value) for value in (cell.value, cell.deviation, cell.printed))
            out.writerow(
                (row.label, row.group, column.group, column.title, *numbers, cell.note, "best" if best else "")
            )
    return text.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {".md": markdown, ".csv": csv}
"""The renderer of each format, by the suffix of the file."""
