"""The axes of a panel: limits that do not mislead, ticks that can be read, and names of parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from cretta.report.content import Panel

MARGIN = 0.05
"""Of the range of the data, below and above it."""
LEAST_PERCENT = 2.0
"""Points that a y axis in percent spans at least: smaller differences are often noise, and would look like a result."""
MOST_TICKS = 8
"""Of a logarithmic axis."""
MOST_HORIZONTAL = 15
"""Names of parts beside each other; more are rotated, and there are no more numbers below them either."""
MOST_NAMES = 90
LONGEST_WORD = 12
"""Letters that a name of a part has in one line, unless it is rotated."""


def y_limits(panels: Sequence[Panel]) -> tuple[float, float] | None:
    """Return the limits of the y axis that these panels have in common; None where matplotlib's are right.

    They are those of all values with their deviations, except lines in the background.
    """
    values = [] if any(panel.kind == "bar" for panel in panels) else list(_values(panels))
    if not values:
        return None
    low, high = min(values), max(values)
    percent = any("%" in panel.y for panel in panels)
    span = max(high - low, LEAST_PERCENT if percent else 0.0)
    if not span:
        return None
    middle = (low + high) / 2
    if percent and low >= 0 and high <= 100:
        middle = min(max(middle, span / 2), 100 - span / 2)
    half = span * (0.5 + MARGIN)
    return middle - half, middle + half


def _values(panels: Sequence[Panel]) -> Iterator[float]:
    every = [series for panel in panels for series in panel.series]
    for series in [series for series in every if not series.background] or every:
        deviations = series.deviation or (0.0,) * len(series.y)
        ends = (y + sign * deviation for y, deviation in zip(series.y, deviations, strict=True) for sign in (-1, 1))
        yield from filter(math.isfinite, ends)


def logarithmic_x(axis: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with round ticks; linear from zero to the smallest value where there is a zero.

    ``values`` are those on the axis, in order.
    """
    smallest = min((abs(x) for x in values if x), default=1.0)
    if min(values, default=0.0) > 0:
        axis.set_xscale("log")
    else:
        axis.set_xscale("symlog", linthresh=smallest)
    low, high = axis.get_xlim()
    ticks = round_ticks(low, high, low if low > 0 else smallest)
    if len(ticks) < 2:
        ticks = sorted({values[0], values[-1]})
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())


def round_ticks(low: float, high: float, smallest: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between two limits, and zero; where these are many, powers only.

    >>> round_ticks(110.0, 5200.0, 110.0), round_ticks(-0.1, 120.0, 1.0), round_ticks(0.9, 1.1e6, 0.9)[1:4]
    ([200.0, 500.0, 1000.0, 2000.0, 5000.0], [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0], [10.0, 100.0, 1000.0])
    """
    exponents = range(math.floor(math.log10(smallest)), math.floor(math.log10(max(-low, high))) + 1)
    for factors in ((1, 2, 5), (1,)):
        sizes = [float(f"{factor}e{exponent}") for exponent in exponents for factor in factors]
        signed = sorted({0.0} | {sign * size for size in sizes if size >= smallest for sign in (-1, 1)})
        ticks = [tick for tick in signed if low <= tick <= high]
        if len(ticks) <= MOST_TICKS:
            return ticks
    return ticks[:: math.ceil(len(ticks) / MOST_TICKS)]


def name_parts(axis: Axes, parts: Sequence[tuple[float, float, str]]) -> None:
    """Draw lines between the parts of the x axis; the first panel has their names, the last the numbers."""
    if not parts:
        return
    edges = [parts[0][0], *(end for _, end, _ in parts)]
    axis.set_xlim(edges[0], edges[-1])
    axis.grid(visible=False, axis="x")
    for edge in edges[1:]:
        axis.axvline(edge, color="#8c8c8c", linewidth=0.8, zorder=0.5)
    if all(edge.is_integer() for edge in edges):
        shown = edges[:: math.ceil(len(parts) / MOST_HORIZONTAL)]
        axis.set_xticks(shown, [f"{edge:g}" for edge in shown])
    else:  # what is counted is in the middle of its part
        axis.xaxis.set_major_locator(MaxNLocator(MOST_HORIZONTAL + 1, integer=True))
    axis.label_outer()
    spec = axis.get_subplotspec()
    if spec is None or spec.is_first_row():
        _names_above(axis, parts)


def _names_above(axis: Axes, parts: Sequence[tuple[float, float, str]]) -> None:
    """Write the names on an axis of their own: the title of the panel then moves above them."""
    words = [word for _, _, name in parts for word in name.split()]
    rotated = len(parts) > MOST_HORIZONTAL or max(map(len, words), default=0) > LONGEST_WORD
    options: Any = {"rotation": 90, "fontsize": 8} if rotated else {}
    shown = parts[:: math.ceil(len(parts) / MOST_NAMES)]
    names = [name if rotated else name.replace(" ", "\n") for _, _, name in shown]
    above = axis.secondary_xaxis("top")
    above.set_xticks([(start + end) / 2 for start, end, _ in shown], names, **options)
    above.tick_params(length=0)
    above.spines["top"].set_visible(False)
