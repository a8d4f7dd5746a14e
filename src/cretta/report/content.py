"""What a report shows: tables and charts as data, independent of the format."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from statistics import fmean, variance
from typing import Literal

Better = Literal["higher", "lower", "neither"]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A measured number with its deviation over seeds, and the one the paper prints; either may be missing."""

    value: float | None = None
    deviation: float | None = None
    """None for a single seed."""
    printed: float | None = None
    note: str = ""
    """Instead of a missing value: why it is missing."""
    comparable: bool = dataclasses.field(default=True, compare=False, repr=False)
    """Whether the difference to the paper's number means anything."""
    seeds: Mapping[int, float] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """The value of each seed."""
    blocks: tuple[float, ...] | None = dataclasses.field(default=None, compare=False, repr=False)
    """The value on each block of batches, empty for too few batches; None for a number without spread."""

    @property
    def difference(self) -> float | None:
        """Measured less printed."""
        if self.value is None or self.printed is None or not self.comparable:
            return None
        return self.value - self.printed


def cell(
    values: Mapping[int, float], printed: float | None = None, note: str = "", blocks: tuple[float, ...] | None = None
) -> Cell:
    """Return mean and sample deviation of the values of several seeds.

    >>> cell({0: 1.0, 1: 3.0})
    Cell(value=2.0, deviation=1.4142135623730951, printed=None, note='')
    """
    if not values:
        return Cell(printed=printed, note=note)
    deviation = math.sqrt(variance(values.values())) if len(values) > 1 else None
    return Cell(fmean(values.values()), deviation, printed, note, seeds=values, blocks=blocks)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of numbers."""

    title: str
    group: str = ""
    """A heading over this column and its neighbors of the same group."""
    better: Better = "neither"
    """Which numbers are best."""
    digits: int = 2


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table."""

    label: str
    cells: tuple[Cell, ...]
    group: str = ""
    """Rows of a group stand together, under a heading."""
    compared: bool = True
    """Whether its numbers are ranked with those of other rows; not if they are of other images."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of numbers, a cell for each row and column."""

    name: str
    """Short, for files: main, pacs, …."""
    title: str
    first: str
    """Heading of the row labels."""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know: what differs from the paper, what is missing and how to get it."""
    best_of: Literal["table", "group", "row", "none"] = "table"
    """Which numbers are compared: those of a column in all rows, or in rows of the same group; those of a row in the
    columns of the same group, where methods are columns; or none."""


@dataclasses.dataclass(frozen=True)
class Series:
    """A line, a set of bars, or points."""

    label: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    deviation: tuple[float, ...] = ()
    background: bool = False
    """Whether it is a thin line, which may leave the panel: the y axis is made for the others."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    kind: Literal["line", "bar", "scatter"]
    series: tuple[Series, ...]
    logarithmic: bool = False
    """Whether the x axis is."""


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels side by side, or below each other where their x axes have parts."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    parts: tuple[tuple[float, float, str], ...] = ()
    """Parts of all x axes: where each begins and ends, and its name."""
    shared_y: bool = False
    """Whether panels with the same y label have the same limits there, to be compared."""
