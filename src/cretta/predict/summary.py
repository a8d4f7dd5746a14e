"""What a run came to, counted from its rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from cretta.metrics import Bins


@dataclass
class Summary:
    """What a run came to."""

    output: Path
    images: int = 0
    unreadable: int = 0
    batches: int = 0
    adapted: int = 0
    """Batches that the model learned from."""
    notes: Counter[str] = field(default_factory=Counter)
    """What happened to batches, and to how many."""
    predicted: Counter[tuple[int, str | None]] = field(default_factory=Counter)
    """How many images of each class, by number and, where it is known, name."""
    resumed: int = 0
    """Images that an earlier process had done."""
    seconds: float = 0.0
    """What the other images took."""
    accuracy: float | None = None
    calibration_error: float | None = None
    mean_confidence: float = float("nan")
    mean_energy: float = float("nan")

    @property
    def images_per_second(self) -> float:
        """Of this process."""
        return (self.images - self.resumed) / self.seconds if self.seconds else float("nan")


class Counting:
    """Counts tables into a :class:`Summary`, in constant memory."""

    def __init__(self, output: Path) -> None:
        self.summary = Summary(output)
        self._sums = np.zeros(2)
        self._bins = Bins.empty()

    def add(self, table: pa.Table) -> None:
        """Counts rows in; all of a batch must come in one table."""
        s = self.summary
        read = table.filter(pc.is_valid(table["prediction"]))
        s.images += len(table)
        s.unreadable += len(table) - len(read)
        s.batches += len(pc.unique(table["batch"]))
        firsts = read.select(["batch", "adapted", "note"]).group_by(["batch", "adapted", "note"]).aggregate([])
        s.adapted += int(pc.sum(firsts["adapted"]).as_py() or 0)
        s.notes.update(note for note in firsts["note"].to_pylist() if note)
        if not len(read):
            return
        counts = read.group_by(["prediction", "class"]).aggregate([([], "count_all")]).to_pylist()
        s.predicted.update({(each["prediction"], each["class"]): each["count_all"] for each in counts})
        confidence = read["confidence"].to_numpy()
        self._sums += [confidence.sum(dtype=float), read["energy"].to_numpy().sum(dtype=float)]
        answered = s.images - s.unreadable
        s.mean_confidence, s.mean_energy = (self._sums / answered).tolist()
        if "correct" in table.column_names:
            correct = read["correct"].to_numpy(zero_copy_only=False).astype(bool)
            self._bins += Bins.from_confidence(torch.from_numpy(confidence.copy()), torch.from_numpy(correct))
            s.accuracy, s.calibration_error = self._bins.accuracy, self._bins.calibration_error
