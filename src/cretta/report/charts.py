"""Charts as PNG, SVG and PDF: readable in black and white and by the color-blind."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cretta.report.axes import MOST_HORIZONTAL, logarithmic_x, name_parts, y_limits
from cretta.report.content import Chart, Panel, Series
from cretta.report.styles import Style, styles
from cretta.storage import atomic_write

Floats = NDArray[np.float64]

FORMATS = ("png", "svg", "pdf")
COLUMNS = 3
"""Panels side by side; four stand two by two."""
PANEL_HEIGHT = 2.9
LOW_PANEL_HEIGHT = 2.1
"""Of panels below each other."""
PART_WIDTH, MOST_PARTS_WIDTH = 1.08, 1.08 * MOST_HORIZONTAL
GAP = 0.06
"""Inches around title, legend and notes."""
TITLE_LETTERS, NOTE_LETTERS = 10, 16
"""Letters per inch, for wrapping; a line that is wider makes the picture wider."""
LONG = 44
"""Letters of a name that fit in a chart."""
_MARKERS = {
    "circle": "o", "square": "s", "up": "^", "down": "v", "left": "<", "right": ">", "diamond": "D", "plus": "P",
    "cross": "X", "star": "*", "pentagon": "p", "hexagon": "h",
}  # fmt: skip
_RC_PARAMS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10,
    "legend.fontsize": 9.5,
    "hatch.linewidth": 0.7,
    # A dollar sign in a name is a dollar sign.
    "text.parse_math": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "cretta",
}


def write_chart(chart: Chart, path: Path) -> None:
    """Write a chart; the suffix of ``path`` decides the format."""
    with atomic_write(path, sync=False) as temporary:
        temporary.write_bytes(render(chart, path.suffix.lower().removeprefix(".")))


def render(chart: Chart, format: str, *, page_styles: Mapping[str, Style] | None = None) -> bytes:
    """Return a chart as a file of that format.

    ``page_styles`` are the styles of methods on a page that the chart is a part of; it then has no title and notes.
    """
    names = [series.label for panel in chart.panels for series in panel.series]
    by_label = {**styles(names), **(page_styles or {})}
    bare = page_styles is not None
    content = io.BytesIO()
    # All settings of the file are rcParams, which are restored at the end.
    with mpl.rc_context(_RC_PARAMS), warnings.catch_warnings():
        # A name in a script that the font lacks shows as boxes, one too long takes the space: no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        figure = _figure(chart, by_label, bare)
        # Title, legend and notes hang outside of the figure: the tight box includes them.
        options: Any = {"bbox_inches": "tight", "pad_inches": GAP, "dpi": 160, "transparent": bare}
        figure.savefig(content, format=format, **options)
    return content.getvalue()


def _figure(chart: Chart, by_label: Mapping[str, Style], bare: bool) -> Figure:
    """Return the panels in a figure, the title above it, the legend beside it, and the notes below."""
    columns = 1 if chart.parts else 2 if len(chart.panels) == 4 else min(COLUMNS, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    width = max(min(PART_WIDTH * len(chart.parts), MOST_PARTS_WIDTH), *map(_panel_width, chart.panels)) * columns
    height = (LOW_PANEL_HEIGHT if chart.parts else PANEL_HEIGHT) * rows
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for index, axis in enumerate(axes.flat):
        if index < len(chart.panels):
            panel = chart.panels[index]
            same = [other for other in chart.panels if other.y == panel.y] if chart.shared_y else [panel]
            _panel(axis, panel, by_label, y_limits(same))
            name_parts(axis, chart.parts)
        else:
            axis.set_axis_off()
    _legend(figure, chart, by_label)
    if not bare:
        title = textwrap.fill(chart.title, int(TITLE_LETTERS * width))
        figure.text(0.5, 1 + GAP / height, title, fontsize=12, fontweight="bold", ha="center", va="bottom")
        notes = "\n".join(textwrap.fill(note, int(NOTE_LETTERS * width)) for note in chart.notes)
        figure.text(0, -GAP / height, notes, fontsize=8, color="#444444", va="top")
    return figure


def _legend(figure: Figure, chart: Chart, by_label: Mapping[str, Style]) -> None:
    """Add the legend, beside the panels."""
    kinds = {series.label: panel.kind for panel in chart.panels for series in panel.series}
    with_data = {series.label for panel in chart.panels for series in panel.series if series.y}
    handles = [
        Patch(**_bar_options(by_label[label]))
        if kind == "bar"
        else Line2D([], [], **_line_options(by_label[label], kind))
        for label, kind in kinds.items()
    ]
    # After a space of zero width: names that begin with an underscore would be left out.
    names = [f"\u200b{_short(label, LONG)}{'' if label in with_data else ' (no data)'}" for label in kinds]
    anchor = (1 + GAP / figure.get_figwidth(), 1)
    figure.legend(
        handles, names, loc="upper left", bbox_to_anchor=anchor, frameon=False, handlelength=3.2, borderaxespad=0.0
    )


def _panel_width(panel: Panel) -> float:
    if panel.kind != "bar":
        return 4.2
    return min(12.0, max(4.2, 0.6 + 0.16 * len(_categories(panel)) * (len(panel.series) + 1)))


def _panel(axis: Axes, panel: Panel, by_label: Mapping[str, Style], limits: tuple[float, float] | None) -> None:
    axis.set_title(_short(panel.title, LONG), loc="left")
    axis.set_xlabel(_short(panel.x, LONG))
    axis.set_ylabel(_short(panel.y, LONG))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.35, axis="y" if panel.kind == "bar" else "both")
    axis.set_axisbelow(True)
    drawn = [series for series in panel.series if series.y]
    single = panel.kind == "line" and all(len(series.y) == 1 for series in drawn)
    if not drawn or single:
        message = "no data" if not drawn else "one value each: no curve to draw"
        axis.text(0.5, 0.5, message, transform=axis.transAxes, ha="center", va="center", color="#767676")
        axis.set_xticks([])
        axis.set_yticks([])
        return
    categories = _categories(panel)
    positions = {category: float(index) for index, category in enumerate(categories)}
    for index, series in enumerate(drawn):
        x = np.array([positions[_category(value)] if categories else float(value) for value in series.x])
        y = np.where(np.isfinite(series.y), series.y, np.nan)
        _draw(axis, panel.kind, x, y, series, by_label[series.label], index, len(drawn))
    _x_axis(axis, panel, categories)
    if limits:
        axis.set_ylim(limits)


def _draw(axis: Axes, kind: str, x: Floats, y: Floats, series: Series, style: Style, index: int, count: int) -> None:
    """Draw one of ``count`` series, with deviations as bands around lines and as error bars elsewhere."""
    if kind == "line":
        if series.deviation:
            deviation = np.array(series.deviation)
            axis.fill_between(x, y - deviation, y + deviation, color=style.color, alpha=0.15, linewidth=0)
        # Ten markers at most; those of neighboring lines are at different x.
        every = max(1, len(x) // 10)
        thin: dict[str, Any] = {"linewidth": 0.8, "markersize": 3, "zorder": 1.5} if series.background else {}
        axis.plot(x, y, markevery=(index % every, every), **{**_line_options(style, kind), **thin})
        return
    bars = kind == "bar"
    width = 0.82 / count
    if bars:
        x = x + (index - (count - 1) / 2) * width
    if series.deviation:
        color, cap = ("#000000", 2) if bars else (style.color, 3)
        axis.errorbar(x, y, yerr=list(series.deviation), fmt="none", ecolor=color, elinewidth=1, capsize=cap)
    if bars:
        axis.bar(x, y, width=width * 0.94, linewidth=0.7, **_bar_options(style))
    else:
        axis.plot(x, y, **_line_options(style, kind))


def _x_axis(axis: Axes, panel: Panel, categories: Sequence[str]) -> None:
    if categories:
        long = max(map(len, categories)) * len(categories) > 36
        rotated: Any = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if long else {}
        axis.set_xticks(range(len(categories)), [_short(category, LONG // 2) for category in categories], **rotated)
        return
    values = sorted({float(x) for series in panel.series for x in series.x})
    if panel.logarithmic:
        logarithmic_x(axis, values)
    elif all(x.is_integer() for x in values):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _categories(panel: Panel) -> list[str]:
    """Return the categories of bars, and of lines over words, in the order in which they appear."""
    values = [x for series in panel.series for x in series.x]
    if panel.kind != "bar" and not any(isinstance(x, str) for x in values):
        return []
    return list(dict.fromkeys(map(_category, values)))


def _category(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _short(text: str, length: int) -> str:
    """Return the text, or its beginning and end if it is too long for a chart."""
    return text if len(text) <= length else f"{text[: length // 2]}…{text[-(length // 2 - 1) :]}"


def _line_options(style: Style, kind: str) -> dict[str, Any]:
    dash = (0, style.dash) if style.dash else "-"
    return {
        "color": style.color,
        "linestyle": "none" if kind == "scatter" else dash,
        "linewidth": 1.6,
        "marker": _MARKERS[style.marker],
        "markersize": 7 if kind == "scatter" else 5.5,
        "markerfacecolor": "#ffffff" if style.hollow else style.color,
        "markeredgecolor": style.color,
    }


def _bar_options(style: Style) -> dict[str, Any]:
    if style.hollow:
        return {"facecolor": "#ffffff", "edgecolor": style.color, "hatch": style.hatch}
    # Black bars would hide their hatch.
    face = "#8c8c8c" if style.color == "#000000" else style.color
    return {"facecolor": face, "edgecolor": "#000000", "hatch": style.hatch}
