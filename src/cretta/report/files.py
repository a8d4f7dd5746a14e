"""Tables and figures as files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cretta.report import charts, tables
from cretta.report.content import Chart, Table
from cretta.storage import atomic_write
from cretta.storage.files import make_folder


def write_files(content: Iterable[Table | Chart], folder: Path) -> list[Path]:
    """Write every table and chart in all formats into a folder, which is made if needed; return the files."""
    make_folder(folder)
    paths = []
    for part in content:
        if isinstance(part, Table):
            for suffix, render in tables.FORMATS.items():
                paths.append(folder / f"{part.name}{suffix}")
                with atomic_write(paths[-1], sync=False) as temporary:
                    temporary.write_text(render(part), encoding="utf-8", newline="\n")
            continue
        for format in charts.FORMATS:
            paths.append(folder / f"{part.name}.{format}")
            charts.write_chart(part, paths[-1])
    return paths
