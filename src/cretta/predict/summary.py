"""The summary of predictions, counted from their rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

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
    _sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2), repr=False)
    _bins: Bins = field(default_factory=Bins.empty, repr=False)

    @property
    def images_per_second(self) -> float:
        """The speed of this process."""
        return (self.images - self.resumed) / self.seconds if self.seconds else float("nan")

    def add(self, table: pa.Table) -> None:
        """Add rows, in constant memory; all of a batch must be in one table."""
        read = table.filter(pc.is_valid(table["prediction"]))
        self.images += len(table)
        self.unreadable += len(table) - len(read)
        self.batches += len(pc.unique(table["batch"]))
        firsts = read.select(["batch", "adapted", "note"]).group_by(["batch", "adapted", "note"]).aggregate([])
        self.adapted += int(pc.sum(firsts["adapted"]).as_py() or 0)
        self.notes.update(note for note in firsts["note"].to_pylist() if note)
        if not len(read):
            return
        counts = read.group_by(["prediction", "class"]).aggregate([([], "count_all")]).to_pylist()
        self.predicted.update({(row["prediction"], row["class"]): row["count_all"] for row in counts})
        confidence = read["confidence"].to_numpy()
        self._sums += [confidence.sum(dtype=float), read["energy"].to_numpy().sum(dtype=float)]
        predicted = self.images - self.unreadable
        self.mean_confidence, self.mean_energy = (self._sums / predicted).tolist()
        if "correct" in table.column_names:
            correct = read["correct"].to_numpy(zero_copy_only=False).astype(bool)
            self._bins += Bins.from_confidence(torch.from_numpy(confidence.copy()), torch.from_numpy(correct))
            self.accuracy, self.calibration_error = self._bins.accuracy, self._bins.calibration_error
