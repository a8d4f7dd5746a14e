"""An item of the paper: a table or figure, the runs it needs, and what it shows of their results."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from cretta.bench import Result, Run
from cretta.paper.notes import notes
from cretta.paper.readings import Readings
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Table

Numbers = Mapping[str, tuple[float, ...]]
"""The numbers of a table in the paper, by row."""
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
        """Its numbers in the paper: "Table 1", "Figures 5, 6 and 7"."""
        kinds = [kind for kind, *labels in _printed()["floats"]]
        numbers = [str(kinds[: index + 1].count(kinds[index])) for index in self._positions()]
        kind = kinds[self._positions()[0]].capitalize()
        if len(numbers) == 1:
            return f"{kind} {numbers[0]}"
        return f"{kind}s {', '.join(numbers[:-1])} and {numbers[-1]}"

    @property
    def order(self) -> int:
        """Its position among all tables and figures of the paper."""
        return self._positions()[0]

    def _positions(self) -> list[int]:
        return [i for i, (_, *labels) in enumerate(_printed()["floats"]) if set(labels) & set(self.labels)]


def printed(label: str) -> Numbers:
    """Return the numbers that the paper prints in the table of that label.

    >>> printed("tab:buffersize")["1%"]
    (88.0, 64.21, 40.18)
    """
    return {row: tuple(numbers) for row, numbers in _printed()[label].items()}


@cache
def _printed() -> dict[str, Any]:
    return tomllib.loads((resources.files("cretta.paper") / "printed.toml").read_text("utf-8"))
