"""Tables and figures as files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cretta.report import charts, tables
from cretta.report.content import Chart, Table


def write_files(content: Iterable[Table | Chart], folder: Path) -> list[Path]:
    """Write every table and chart in all formats into a folder, which is made if needed; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for part in content:
        if isinstance(part, Table):
            for suffix, render in tables.FORMATS.items():
                paths.append(folder / f"{part.name}{suffix}")
                paths[-1].write_text(render(part), encoding="utf-8", newline="\n")
            continue
        for format in charts.FORMATS:
            paths.append(folder / f"{part.name}.{format}")
            charts.write_chart(part, paths[-1])
    return paths
