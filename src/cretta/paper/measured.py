"""Leave out of a table or chart what was not measured, and name it once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from itertools import compress

from cretta.report.content import Chart, Panel, Table
from cretta.report.styles import PRINTED

OMITTED = "Not measured yet"
INCOMPLETE = "Measured in part, and not shown before all runs are done"
_PART = re.compile(r"\d+ of \d+ runs")


def measured(shown: Table | Chart) -> Table | Chart | None:
    """Return the table or chart without rows, columns and panels that have no measured value; None if none has.

    The last notes name what was measured in part only, and what is omitted; those before them say what is missing.
    """
    if isinstance(shown, Chart):
        panels = tuple(panel for panel in shown.panels if _has_measured(panel))
        omitted = [panel.title for panel in shown.panels if panel not in panels]
        return dataclasses.replace(shown, panels=panels, notes=_notes(shown, omitted)) if panels else None
    rows = [row for row in shown.rows if any(cell.value is not None for cell in row.cells)]
    if not rows:
        return None
    columns = [any(row.cells[index].value is not None for row in rows) for index in range(len(shown.columns))]
    omitted = [column.group or column.title for column, has in zip(shown.columns, columns, strict=True) if not has]
    omitted += [row.label for row in shown.rows if row not in rows]
    return dataclasses.replace(
        shown,
        columns=tuple(compress(shown.columns, columns)),
        rows=tuple(dataclasses.replace(row, cells=tuple(compress(row.cells, columns))) for row in rows),
        notes=_notes(shown, omitted),
    )


def incomplete(shown: Table | Chart) -> tuple[str, ...]:
    """Name the numbers of a table of which some runs are done but not all: one note, or none."""
    if isinstance(shown, Chart):
        return ()
    parts: dict[str, dict[str, str]] = {}
    for row in shown.rows:
        for column, cell in zip(shown.columns, row.cells, strict=True):
            if cell.value is None and _PART.fullmatch(cell.note):
                counts = parts.setdefault(column.group or column.title, {})
                counts[row.label] = counts.get(row.label, cell.note)
    texts = (f"{where}: {', '.join(map(' '.join, counts.items()))}" for where, counts in parts.items())
    return (f"{INCOMPLETE}: {'; '.join(texts)}.",) if parts else ()


def _has_measured(panel: Panel) -> bool:
    """Return whether a panel shows more than what the paper printed."""
    return any(series.y and not series.label.endswith(PRINTED) for series in panel.series)


def _notes(shown: Table | Chart, omitted: Iterable[str]) -> tuple[str, ...]:
    names = "; ".join(dict.fromkeys(omitted))
    return (*shown.notes, *incomplete(shown), *([f"{OMITTED}: {names}."] if names else ()))
