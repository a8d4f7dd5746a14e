"""Charts as PNG, SVG and PDF: readable in black and white and by the colour-blind, the same bytes every time."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from cretta.errors import OptionError
from cretta.options import unknown
from cretta.report.content import Chart, Panel, Series
from cretta.report.styles import Style, styles

FORMATS = ("png", "svg", "pdf")
ACROSS = 3
"""Panels side by side."""
SQUARE = 4
"""So many panels stand two by two."""
PANEL_HEIGHT = 2.9
LOW_PANEL_HEIGHT = 2.1
"""Of panels below each other."""
PART_WIDTH = 1.08
GAP = 0.06
"""Inches around title, legend and notes."""
LEAST = 20
"""Letters of a line of title or notes, however narrow the figure is."""
MANY = 5
"""Series beyond which the legend stands beside the panels and not below them."""
APART = 1.5
"""How far two numbers on a logarithmic axis must be from each other to be written there."""
LONG = 44
"""Letters of a name that a chart has room for."""
_MARKERS = {
    "circle": "o", "square": "s", "up": "^", "down": "v", "left": "<", "right": ">", "diamond": "D", "plus": "P",
    "cross": "X", "star": "*", "pentagon": "p", "hexagon": "h",
}  # fmt: skip
_NO_DATES: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
_LOOK: Any = {
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
    "svg.hashsalt": "cretta",
}


def write_chart(chart: Chart, path: str | Path, **options: Any) -> None:
    """Writes a chart; the ending of ``path`` decides the format. ``options`` are those of :func:`render`."""
    path = Path(path)
    path.write_bytes(render(chart, path.suffix.lower().removeprefix("."), **options))


def render(
    chart: Chart,
    format: str = "svg",
    *,
    looks: Mapping[str, Style] | None = None,
    selectable: bool = False,
    bare: bool = False,
) -> bytes:
    """A chart as a file of that format.

    ``looks`` gives series their styles, for names that are not methods to look alike in several charts;
    ``selectable`` keeps an SVG's text as text, in whatever font the reader has; ``bare`` leaves out title and notes.
    """
    if format not in FORMATS:
        raise unknown("format of figures", format, FORMATS)
    if not chart.panels:
        raise OptionError(f"chart {chart.name!r} has no panels: give at least one.")
    names = [series.label for panel in chart.panels for series in panel.series]
    look = {**styles(names), **(looks or {})}
    made = io.BytesIO()
    # The file's settings are rcParams and nothing else: they are put back at the end.
    with mpl.rc_context(_LOOK | {"svg.fonttype": "none" if selectable else "path"}), warnings.catch_warnings():
        # A name in a script that the font lacks shows as boxes, one too long takes the room: no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        figure = _figure(chart, look, bare)
        figure.savefig(made, format=format, dpi=160, metadata=_NO_DATES[format], transparent=bare)
    return made.getvalue()


def _figure(chart: Chart, look: Mapping[str, Style], bare: bool) -> Figure:
    """Title, panels, legend and notes below each other, or the legend beside; each has the room that it measures."""
    across = 1 if chart.parts else 2 if len(chart.panels) == SQUARE else min(ACROSS, len(chart.panels))
    down = math.ceil(len(chart.panels) / across)
    width = max(PART_WIDTH * len(chart.parts), *map(_panel_width, chart.panels)) * across
    panels = (LOW_PANEL_HEIGHT if chart.parts else PANEL_HEIGHT) * down
    figure = Figure(figsize=(width, panels))
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]

    def measured(part: Text | Legend) -> tuple[float, float]:
        """Width and height in inches, with a gap."""
        box = part.get_window_extent(renderer)
        return box.width / figure.dpi + 2 * GAP, box.height / figure.dpi + 2 * GAP

    def written(text: Sequence[str], **looks: Any) -> Text:
        """Wrapped to the figure's width."""
        letters = int(width * 20)
        part = figure.text(0, 0, "", **looks)
        while True:
            part.set_text("\n".join(line for each in text for line in textwrap.wrap(each, letters)))
            if measured(part)[0] <= width or letters <= LEAST:
                return part
            letters = max(LEAST, int(letters * 0.95))

    legend, beside = _legend(figure, chart, look, across=width, measured=measured)
    side, lower = measured(legend) if legend is not None else (0.0, 0.0)
    if beside:
        width, panels = width + side, max(panels, lower)
    title = written([chart.title], fontsize=12, fontweight="bold", ha="center", va="top") if not bare else None
    notes = written(chart.notes, fontsize=8, color="#444444", va="bottom") if chart.notes and not bare else None
    top = measured(title)[1] if title is not None else 0.0
    bottom = measured(notes)[1] if notes is not None else 0.0
    below = bottom if beside else bottom + lower
    height = top + panels + below
    figure.set_size_inches(width, height)
    if title is not None:
        title.set_position((0.5, 1 - GAP / height))
    if notes is not None:
        notes.set_position((GAP / width, GAP / height))
    if legend is not None and beside:
        legend.set_loc("upper right")
        legend.set_bbox_to_anchor((1 - GAP / width, 1 - (top + GAP) / height))
    elif legend is not None:
        legend.set_loc("lower center")
        legend.set_bbox_to_anchor((0.5, (bottom + GAP) / height))
    room = (0, below / height, 1 - (side / width if beside else 0), panels / height)
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=room))
    axes = figure.subplots(down, across, squeeze=False)
    for place, axis in enumerate(axes.flat):
        if place < len(chart.panels):
            _panel(axis, chart.panels[place], look)
            _name_parts(axis, chart.parts)
        else:
            axis.set_axis_off()
    return figure


def _legend(
    figure: Figure,
    chart: Chart,
    look: Mapping[str, Style],
    *,
    across: float,
    measured: Callable[[Legend], tuple[float, float]],
) -> tuple[Legend | None, bool]:
    """The legend, and whether it must stand beside the panels: it has many names, or long ones."""
    kinds: dict[str, str] = {}
    drawn: set[str] = set()
    for panel in chart.panels:
        kinds.update((series.label, panel.kind) for series in panel.series)
        drawn.update(series.label for series in panel.series if series.y)
    if not kinds:
        return None, False
    handles = [_handle(kind, look[label]) for label, kind in kinds.items()]
    # Behind a space of no width: names that begin with an underscore would be left out.
    told = [f"\u200b{_short(label, LONG)}{'' if label in drawn else ' (no data)'}" for label in kinds]
    looks: Any = {"frameon": False, "handlelength": 3.2, "borderaxespad": 0.0}
    if len(told) <= MANY:
        row = figure.legend(handles, told, ncols=len(told), **looks)
        if measured(row)[0] <= across:
            return row, False
        row.remove()
    return figure.legend(handles, told, ncols=1, **looks), True


def _panel_width(panel: Panel) -> float:
    if panel.kind != "bar":
        return 4.2
    return min(12.0, max(4.2, 0.6 + 0.16 * len(_categories(panel)) * (len(panel.series) + 1)))


def _handle(kind: str, style: Style) -> Line2D | Patch:
    if kind == "bar":
        return Patch(**_bar_look(style))
    line = {"linestyle": "none"} if kind == "scatter" else {"linestyle": _dashes(style), "linewidth": 1.6}
    return Line2D([], [], **_marker_look(style), **line)


def _panel(axis: Axes, panel: Panel, look: Mapping[str, Style]) -> None:
    axis.set_title(_short(panel.title, LONG), loc="left")
    axis.set_xlabel(_short(panel.x, LONG))
    axis.set_ylabel(_short(panel.y, LONG))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.35, axis="y" if panel.kind == "bar" else "both")
    axis.set_axisbelow(True)
    for series in panel.series:
        _check(series)
    drawn = [series for series in panel.series if series.y]
    single = panel.kind == "line" and all(len(series.y) == 1 for series in drawn)
    if not drawn or single:
        told = "no data" if not drawn else "one value each: no curve to draw"
        axis.text(0.5, 0.5, told, transform=axis.transAxes, ha="center", va="center", color="#767676")
        axis.set_xticks([])
        axis.set_yticks([])
        return
    categories = _categories(panel)
    positions = {category: float(place) for place, category in enumerate(categories)}
    for place, series in enumerate(drawn):
        style = look[series.label]
        x = [positions[_category(value)] if categories else float(value) for value in series.x]
        y = [value if math.isfinite(value) else math.nan for value in series.y]
        if panel.kind == "bar":
            _bars(axis, x, y, series.deviation, style, place, len(drawn))
        elif panel.kind == "scatter":
            _points(axis, x, y, series, style)
        else:
            _line(axis, x, y, series.deviation, style, place)
    _x_axis(axis, panel, categories)


def _line(
    axis: Axes, x: Sequence[float], y: Sequence[float], deviation: Sequence[float], style: Style, place: int
) -> None:
    if deviation:
        low = [value - spread for value, spread in zip(y, deviation, strict=True)]
        high = [value + spread for value, spread in zip(y, deviation, strict=True)]
        axis.fill_between(x, low, high, color=style.color, alpha=0.15, linewidth=0)
    # Ten markers at most, those of neighbouring lines at different places.
    every = max(1, len(x) // 10)
    axis.plot(x, y, linestyle=_dashes(style), linewidth=1.6, markevery=(place % every, every), **_marker_look(style))


def _points(axis: Axes, x: Sequence[float], y: Sequence[float], series: Series, style: Style) -> None:
    if series.deviation or series.x_deviation:
        up, across = list(series.deviation) or None, list(series.x_deviation) or None
        axis.errorbar(x, y, yerr=up, xerr=across, fmt="none", ecolor=style.color, elinewidth=1, capsize=3)
    axis.plot(x, y, linestyle="none", **{**_marker_look(style), "markersize": 7})


def _bars(
    axis: Axes,
    x: Sequence[float],
    y: Sequence[float],
    deviation: Sequence[float],
    style: Style,
    place: int,
    count: int,
) -> None:
    width = 0.82 / count
    middle = [value + (place - (count - 1) / 2) * width for value in x]
    axis.bar(middle, y, width=width * 0.94, linewidth=0.7, **_bar_look(style))
    if deviation:
        axis.errorbar(middle, y, yerr=list(deviation), fmt="none", ecolor="#000000", elinewidth=1, capsize=2)


def _x_axis(axis: Axes, panel: Panel, categories: Sequence[str]) -> None:
    if categories:
        long = max(map(len, categories)) * len(categories) > 36
        axis.set_xticks(range(len(categories)), [_short(category, LONG // 2) for category in categories])
        if long:
            axis.tick_params(axis="x", labelrotation=40)
            for label in axis.get_xticklabels():
                label.set_horizontalalignment("right")
                label.set_rotation_mode("anchor")
        return
    values = sorted({float(x) for series in panel.series for x in series.x})
    if panel.logarithmic:
        if values[0] > 0:
            axis.set_xscale("log")
        else:  # zero, too, has a place
            axis.set_xscale("symlog", linthresh=min((abs(x) for x in values if x), default=1.0))
        if len(values) <= 8 and all(high > APART * low for low, high in pairwise(values) if low > 0):
            axis.set_xticks(values, [f"{x:g}" for x in values])
        else:
            axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_locator(NullLocator())
    elif all(x.is_integer() for x in values):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _name_parts(axis: Axes, parts: Sequence[tuple[float, float, str]]) -> None:
    """Draw lines between the parts of the x axis; the first panel has their names, the last the numbers."""
    if not parts:
        return
    edges = [parts[0][0], *(end for _, end, _ in parts)]
    axis.set_xlim(edges[0], edges[-1])
    axis.set_xticks(edges, [f"{edge:g}" for edge in edges])
    axis.grid(axis="x", color="#8c8c8c", alpha=1)
    axis.label_outer()
    spec = axis.get_subplotspec()
    for start, end, name in parts if spec is None or spec.is_first_row() else ():
        wrapped, over = name.replace(" ", "\n"), axis.get_xaxis_transform()
        axis.text((start + end) / 2, 1.03, wrapped, transform=over, ha="center", va="bottom")


def _categories(panel: Panel) -> list[str]:
    """The places of bars, and of lines over words, in the order in which they appear."""
    values = [x for series in panel.series for x in series.x]
    if panel.kind != "bar" and not any(isinstance(x, str) for x in values):
        return []
    return list(dict.fromkeys(map(_category, values)))


def _category(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _short(text: str, length: int) -> str:
    """Its beginning and end, where it is too long to stand in a chart."""
    return text if len(text) <= length else f"{text[: length // 2]}…{text[-(length // 2 - 1) :]}"


def _check(series: Series) -> None:
    counts = [len(series.x), len(series.y), len(series.deviation), len(series.x_deviation)]
    if counts[0] != counts[1] or not set(counts[2:]) <= {0, counts[1]}:
        raise OptionError(
            f"series {series.label!r}: {counts[0]} of x, {counts[1]} of y, {counts[2]} deviations of y, {counts[3]} of "
            "x; give as many of each, or no deviations."
        )


def _dashes(style: Style) -> Any:
    return (0, style.dash) if style.dash else "-"


def _marker_look(style: Style) -> dict[str, Any]:
    return {
        "color": style.color,
        "marker": _MARKERS[style.marker],
        "markersize": 5.5,
        "markerfacecolor": "#ffffff" if style.hollow else style.color,
        "markeredgecolor": style.color,
    }


def _bar_look(style: Style) -> dict[str, Any]:
    if style.hollow:
        return {"facecolor": "#ffffff", "edgecolor": style.color, "hatch": style.hatch}
    # Black bars would hide their hatch.
    face = "#8c8c8c" if style.color == "#000000" else style.color
    return {"facecolor": face, "edgecolor": "#000000", "hatch": style.hatch}
