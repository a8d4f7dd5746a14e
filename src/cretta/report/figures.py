"""Figures: readable in black and white and by the colour-blind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cretta.measure import Trace

# Okabe and Ito's colours, each with a line and a marker of its own.
STYLES = (
    ("#000000", ":", "s"),
    ("#E69F00", "-.", "^"),
    ("#0072B2", "--", "D"),
    ("#D55E00", "-", "o"),
    ("#009E73", (0, (5, 1)), "v"),
    ("#CC79A7", (0, (1, 1)), "x"),
)


def adaptation_curves(traces: Mapping[str, Mapping[str, Trace]], path: str | Path) -> None:
    """Draws running calibration error and batch energy over batches.

    ``traces`` is by shift, a row each, then by method; the suffix of ``path`` decides the format.
    """
    figure = Figure(figsize=(9, 0.6 + 2.3 * len(traces)), layout="constrained")
    axes = figure.subplots(len(traces), 2, squeeze=False, sharex=True)
    for (left, right), (shift, methods) in zip(axes, traces.items(), strict=True):
        for index, (method, trace) in enumerate(methods.items()):
            color, line, marker = STYLES[index % len(STYLES)]
            batches = range(1, len(trace.sizes) + 1)
            for axis, values in ((left, [100 * e for e in trace.calibration_error]), (right, trace.energy)):
                axis.plot(batches, values, color=color, linestyle=line, marker=marker, markersize=4, label=method)
        left.set_ylabel("ECE so far (%)")
        left.set_ylim(bottom=0)
        right.set_ylabel("mean energy of the batch")
        for axis in (left, right):
            axis.set_title(shift, fontsize=10, loc="left")
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in axes[-1]:
        axis.set_xlabel("batch")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=150)
