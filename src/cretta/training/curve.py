"""The training curve as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from cretta.storage import atomic_write
from cretta.training.trainer import Row


def draw_curve(log: Sequence[Row], path: Path, title: str) -> None:
    """Draw training loss and held-out accuracy over epochs into the PNG file at ``path``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.add_subplot()
    epochs = [row.epoch for row in log]
    left.plot(epochs, [row.loss for row in log], color="tab:gray", marker=".", label="training loss")
    left.set(xlabel="epoch", ylabel="training loss", title=title, xlim=(0, None), ylim=(0, None))
    measured = [row for row in log if not math.isnan(row.accuracy)]
    if measured:
        right = left.twinx()
        label = f"accuracy on held-out images (last: {100 * measured[-1].accuracy:.1f} %)"
        values = [100 * row.accuracy for row in measured]
        right.plot([row.epoch for row in measured], values, color="tab:blue", marker=".", label=label)
        right.set(ylabel="accuracy, %")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
