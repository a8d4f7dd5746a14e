"""Tables that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.table import Table
from rich.text import Text

from cretta.measure import Trace

COLUMNS: tuple[tuple[str, Callable[[Trace], float], str, Callable[..., float] | None], ...] = (
    ("accuracy %", lambda trace: 100 * trace.accuracy[-1], "{:.1f}", max),
    ("ECE %", lambda trace: 100 * trace.calibration_error[-1], "{:.1f}", min),
    ("energy", lambda trace: trace.mean_energy, "{:.2f}", None),
    ("images/s", lambda trace: trace.images_per_second, "{:.0f}", None),
)
"""Heading, value, format, and which value is best, if any is."""


def comparison(traces: Mapping[str, Mapping[str, Trace]], title: str) -> Table:
    """Methods on each shift, by shift and then by method; the best value of a shift is bold."""
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False)
    table.add_column("shift")
    table.add_column("method")
    for heading, *_ in COLUMNS:
        table.add_column(heading, justify="right")
    for shift, methods in traces.items():
        for index, (method, trace) in enumerate(methods.items()):
            cells = [Text(shift if index == 0 else ""), Text(method)]
            for _, value, form, best in COLUMNS:
                text = form.format(value(trace))
                winning = best is not None and text == form.format(best(value(other) for other in methods.values()))
                cells.append(Text(text, style="bold" if winning else ""))
            table.add_row(*cells, end_section=index == len(methods) - 1)
    return table
