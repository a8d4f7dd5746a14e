"""What a report shows: tables and charts as data, whatever they are rendered to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
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

    @property
    def difference(self) -> float | None:
        """Measured less printed."""
        return None if self.value is None or self.printed is None else self.value - self.printed


def cell(values: Sequence[float], printed: float | None = None, note: str = "") -> Cell:
    """Mean and sample deviation of the values of several seeds.

    >>> cell([1.0, 3.0])
    Cell(value=2.0, deviation=1.4142135623730951, printed=None, note='')
    """
    if not values:
        return Cell(printed=printed, note=note)
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Cell(mean, None, printed, note)
    return Cell(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)), printed, note)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of numbers."""

    title: str
    group: str = ""
    """A heading over this column and its neighbours of the same group."""
    better: Better = "neither"
    """Which numbers are best: the best is bold, the second underlined."""
    digits: int = 2


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table."""

    label: str
    cells: tuple[Cell, ...]
    group: str = ""
    """Rows of a group stand together, under a heading."""


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
    """Among which numbers the best is sought: a column's in all rows, or in those of the same group; or a row's in the
    columns of the same group, where methods are columns; or not at all."""


@dataclasses.dataclass(frozen=True)
class Series:
    """A line, a set of bars, or points."""

    label: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    deviation: tuple[float, ...] = ()
    x_deviation: tuple[float, ...] = ()
    """Of points: how far their x is from certain, too."""


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
