"""An item of the paper: a table or figure, the runs it needs, and what it shows of their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from cretta.bench import Result, Run
from cretta.paper.notes import notes
from cretta.paper.printed import paper_data
from cretta.paper.readings import Readings
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Table

Draw = Callable[["Item", Readings], Iterable[Table | Chart]]
"""Yield the tables and charts of an item, one at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure, or several that show the same."""

    name: str
    title: str
    labels: tuple[str, ...]
    """Its labels in the paper's source."""
    draw: Draw
    remarks: tuple[str, ...] = ()
    """What the paper leaves open about it, and what was chosen."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """Return the runs it needs, each once: those that drawing it asks for."""
        readings = Readings(scale)
        for _ in self.draw(self, readings):
            pass
        return tuple(dict.fromkeys(run for runs in readings.requests().values() for run in runs))

    def show(
        self, results: Mapping[Run, Result], scale: Scale, missing: Mapping[Run, str] | None = None
    ) -> tuple[Table | Chart, ...]:
        """Return tables and charts of the results; ``missing`` says why runs could not be done."""
        readings = Readings(scale, results, missing or {})
        return tuple(
            dataclasses.replace(shown, notes=(*shown.notes, *self.remarks, *notes(readings)))
            for shown in self.draw(self, readings)
        )

    @property
    def where(self) -> str:
        """Its numbers in the paper: "Table 1", "Figures 5, 6 and 7"; of an item without labels, "not in the paper"."""
        if not self.labels:
            return "not in the paper"
        floats = [(kind, set(labels)) for kind, *labels in paper_data()["floats"]]
        kind = next(kind for kind, labels in floats if labels & set(self.labels))
        same = [labels for other, labels in floats if other == kind]
        *most, last = [str(number) for number, labels in enumerate(same, 1) if labels & set(self.labels)]
        return f"{kind.capitalize()}s {', '.join(most)} and {last}" if most else f"{kind.capitalize()} {last}"
