"""Tables as text: for terminals, Markdown, LaTeX and spreadsheets."""

from __future__ import annotations

import io
from collections.abc import Callable
from csv import writer
from pathlib import Path

from cretta.options import unknown
from cretta.report.content import Table
from cretta.report.latex import latex
from cretta.report.markdown import markdown
from cretta.report.ranking import marks
from cretta.report.terminal import terminal

__all__ = ["FORMATS", "csv", "latex", "markdown", "terminal", "write_table"]


def csv(table: Table) -> str:
    """Return a line for each cell, with all digits."""
    text = io.StringIO()
    out = writer(text, lineterminator="\n")
    out.writerow(("row", "group", "column_group", "column", "value", "deviation", "printed", "note", "mark"))
    for row, marked in zip(table.rows, marks(table), strict=True):
        for column, cell, mark in zip(table.columns, row.cells, marked, strict=True):
            numbers = ("" if each is None else repr(each) for each in (cell.value, cell.deviation, cell.printed))
            out.writerow((row.label, row.group, column.group, column.title, *numbers, cell.note, mark))
    return text.getvalue()


FORMATS: dict[str, tuple[str, Callable[[Table], str]]] = {
    "md": (".md", markdown),
    "latex": (".tex", latex),
    "csv": (".csv", csv),
}
"""Ending of the file and renderer, by format."""


def write_table(table: Table, folder: Path, format: str) -> Path:
    """Writes ``<name>.md``, ``.tex`` or ``.csv`` into the folder."""
    if format not in FORMATS:
        raise unknown("format of tables", format, FORMATS)
    ending, render = FORMATS[format]
    path = folder / f"{table.name}{ending}"
    path.write_text(render(table), encoding="utf-8", newline="\n")
    return path
