"""What was measured of a table or chart: the rest is omitted, and named once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from cretta.report.content import Chart, Panel, Table
from cretta.report.styles import PRINTED

OMITTED = "Omitted, because nothing was measured"


def measured(shown: Table | Chart) -> Table | Chart | None:
    """Return the table or chart without rows, columns and panels that have no measured value; None if none has.

    The last note says what is omitted; those before it say what is missing.
    """
    if isinstance(shown, Chart):
        panels = tuple(panel for panel in shown.panels if _drawn(panel))
        rest = (panel.title for panel in shown.panels if panel not in panels)
        return dataclasses.replace(shown, panels=panels, notes=_notes(shown, rest)) if panels else None
    rows = [row for row in shown.rows if any(cell.value is not None for cell in row.cells)]
    places = [place for place in range(len(shown.columns)) if any(row.cells[place].value is not None for row in rows)]
    if not rows:
        return None
    lost = [column.group or column.title for place, column in enumerate(shown.columns) if place not in places]
    lost += [row.label for row in shown.rows if row not in rows]
    return dataclasses.replace(
        shown,
        columns=tuple(shown.columns[place] for place in places),
        rows=tuple(dataclasses.replace(row, cells=tuple(row.cells[place] for place in places)) for row in rows),
        notes=_notes(shown, lost),
    )


def _drawn(panel: Panel) -> bool:
    """Return whether there is more in it than what the paper printed."""
    return any(series.y and not series.label.endswith(PRINTED) for series in panel.series)


def _notes(shown: Table | Chart, omitted: Iterable[str]) -> tuple[str, ...]:
    names = "; ".join(dict.fromkeys(omitted))
    return (*shown.notes, f"{OMITTED}: {names}.") if names else shown.notes
