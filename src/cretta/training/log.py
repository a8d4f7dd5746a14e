"""The log of a training: a row per epoch."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

from cretta.storage import atomic_write


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the training log."""

    epoch: float
    step: int
    minutes: float
    lr: float
    side: int
    loss: float
    accuracy: float
    """On the held-out images; NaN without any."""
    calibration_error: float


def write_log(path: Path, log: list[Row]) -> None:
    """Replace the CSV file at ``path`` by these rows."""
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in dataclasses.fields(Row)])
        for row in log:
            values = dataclasses.astuple(row)
            writer.writerow(["" if isinstance(v, float) and math.isnan(v) else f"{v:.6g}" for v in values])
