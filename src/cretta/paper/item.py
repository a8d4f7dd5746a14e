"""An item of the paper: a table or figure, the runs it needs, and what it makes of their results."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from cretta.bench import Result, Run
from cretta.paper.notes import differences
from cretta.paper.readings import Readings
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Table

Printed = Mapping[str, tuple[float, ...]]
"""The numbers of a table in the paper, row by row as they stand there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item(ABC):
    """A table or figure, or several that show the same."""

    name: str
    title: str
    where: str
    """As the paper counts: "Table 1"."""
    labels: tuple[str, ...]
    """Its labels in the paper's source."""
    order: int
    """Where it comes in the paper: the number of its first table or figure among all of them."""
    families: tuple[str, ...]
    printed: Mapping[str, Printed] = dataclasses.field(default_factory=dict)
    """By label."""
    remarks: tuple[str, ...] = ()
    """What the paper leaves open about it, and what was chosen."""

    @abstractmethod
    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """The runs it needs, each once."""

    @abstractmethod
    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """What it shows; a number that is missing says why."""

    def show(
        self, results: Mapping[Run, Result], scale: Scale, lacking: Mapping[Run, str] | None = None
    ) -> tuple[Table | Chart, ...]:
        """Tables and charts of what is there; ``lacking`` says why runs could not be done."""
        return self.draw(Readings(results, lacking or {}, comparable=scale.comparable), scale)

    def notes(self, readings: Readings, scale: Scale, *families: str) -> tuple[str, ...]:
        """What differs from the paper, what it leaves open, and what is missing; for these families, or all."""
        plan = self.plan(scale)
        return (*self.remarks, *differences(readings, scale, plan, families or self.families))


def unique(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(runs))


def joined(groups: Iterable[Sequence[Run]]) -> list[Run]:
    """The runs of all groups, one after another."""
    return [run for group in groups for run in group]
