"""Tables and figures as files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cretta.options import unknown
from cretta.report import charts, tables
from cretta.report.content import Chart, Table


def check_formats(table: Sequence[str] | None, figure: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the formats of tables and of figures; None stands for all."""
    for kind, formats, known in (("table", table, tables.FORMATS), ("figure", figure, charts.FORMATS)):
        for format in formats or ():
            if format not in known:
                raise unknown(f"{kind} format", format, known)
    return tuple(table or tables.FORMATS), tuple(figure or charts.FORMATS)


def write_files(
    content: Iterable[Table | Chart], folder: Path, table_formats: Sequence[str], figure_formats: Sequence[str]
) -> list[Path]:
    """Write every table and chart in all formats into a folder, which is made if needed; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for part in content:
        if isinstance(part, Table):
            for suffix, render in (tables.FORMATS[format] for format in table_formats):
                paths.append(folder / f"{part.name}{suffix}")
                paths[-1].write_text(render(part), encoding="utf-8", newline="\n")
            continue
        for format in figure_formats:
            paths.append(folder / f"{part.name}.{format}")
            charts.write_chart(part, paths[-1])
    return paths
