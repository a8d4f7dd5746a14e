"""The summary of predictions, counted from their rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import torch

from cretta.metrics import Bins


@dataclass
class Summary:
    """Counts and means of all predictions."""

    output: Path
    images: int = 0
    unreadable: int = 0
    batches: int = 0
    adapted: int = 0
    """Batches that the model adapted to."""
    notes: Counter[str] = field(default_factory=Counter)
    """The notes of batches, and of how many."""
    predicted: Counter[tuple[int, str | None]] = field(default_factory=Counter)
    """The number of images of each class, by its number and, if known, name."""
    resumed: int = 0
    """Images that an earlier process had finished."""
    seconds: float = 0.0
    """Time for the other images."""
    accuracy: float | None = None
    calibration_error: float | None = None
    mean_confidence: float = float("nan")
    mean_energy: float = float("nan")

    @property
    def images_per_second(self) -> float:
        """The speed of this process."""
        return (self.images - self.resumed) / self.seconds if self.seconds else float("nan")

    @classmethod
    def of(cls, rows: pa.Table, output: Path, *, resumed: int, seconds: float) -> Self:
        """Count the rows of an output."""
        read = rows.filter(pc.is_valid(rows["prediction"]))
        summary = cls(output, len(rows), len(rows) - len(read), resumed=resumed, seconds=seconds)
        summary.batches = len(pc.unique(rows["batch"]))
        if not len(read):
            return summary
        firsts = read.group_by(["batch", "adapted", "note"]).aggregate([])
        summary.adapted = int(pc.sum(firsts["adapted"]).as_py())
        summary.notes.update(note for note in firsts["note"].to_pylist() if note)
        counts = read.group_by(["prediction", "class"]).aggregate([([], "count_all")]).to_pylist()
        summary.predicted.update({(row["prediction"], row["class"]): row["count_all"] for row in counts})
        confidence = torch.from_numpy(read["confidence"].to_numpy().copy())
        summary.mean_confidence = float(confidence.double().mean())
        summary.mean_energy = float(read["energy"].to_numpy().mean(dtype=float))
        if "correct" in rows.column_names:
            correct = torch.from_numpy(read["correct"].to_numpy().astype(bool))
            bins = Bins.from_confidence(confidence, correct)
            summary.accuracy, summary.calibration_error = bins.accuracy, bins.calibration_error
        return summary
