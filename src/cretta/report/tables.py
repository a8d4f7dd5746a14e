"""Tables as text: for terminals, Markdown, LaTeX and spreadsheets."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from csv import writer
from pathlib import Path

from rich.table import Table as Grid
from rich.text import Text

from cretta.measure import Trace
from cretta.options import unknown
from cretta.report.content import Table
from cretta.report.latex import latex
from cretta.report.markdown import markdown
from cretta.report.ranking import marks
from cretta.report.terminal import terminal

__all__ = ["FORMATS", "comparison", "csv", "latex", "markdown", "terminal", "write_table"]


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


COLUMNS: tuple[tuple[str, Callable[[Trace], float], str, Callable[..., float] | None], ...] = (
    ("accuracy %", lambda trace: 100 * trace.accuracy[-1], "{:.1f}", max),
    ("ECE %", lambda trace: 100 * trace.calibration_error[-1], "{:.1f}", min),
    ("energy", lambda trace: trace.mean_energy, "{:.2f}", None),
    ("images/s", lambda trace: trace.images_per_second, "{:.0f}", None),
)
"""Heading, value, format, and which value is best, if any is."""


def comparison(traces: Mapping[str, Mapping[str, Trace]], title: str) -> Grid:
    """Methods on each shift, by shift and then by method; the best value of a shift is bold."""
    table = Grid(title=title, title_justify="left", header_style="bold", pad_edge=False)
    table.add_column("shift")
    table.add_column("method")
    for heading, *_ in COLUMNS:
        table.add_column(heading, justify="right")
    for shift, methods in traces.items():
        for index, (method, trace) in enumerate(methods.items()):
            cells = [Text(shift if index == 0 else ""), Text(method)]
            for _, value, form, best in COLUMNS:
                text = form.format(value(trace))
                winning = best is not None and text == form.format(best(value(other) for other in methods.values()))
                cells.append(Text(text, style="bold" if winning else ""))
            table.add_row(*cells, end_section=index == len(methods) - 1)
    return table
