"""The table of predictions, a row per image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from cretta.functional import energy
from cretta.method import Record


def schema(labelled: bool) -> pa.Schema:
    """Return the columns; those from prediction to energy are null for an image that could not be read."""
    columns = [
        ("path", pa.string()),
        ("batch", pa.int32()),
        ("prediction", pa.int32()),
        ("class", pa.string()),
        ("confidence", pa.float32()),
        ("energy", pa.float32()),
        ("adapted", pa.bool_()),
        ("note", pa.string()),
    ]
    return pa.schema([*columns, *([("label", pa.int32()), ("correct", pa.bool_())] if labelled else [])])


@dataclass
class Rows:
    """The predictions for the images of one batch, in order."""

    batch: int
    indices: NDArray[np.int64]
    unreadable: dict[int, str] = field(default_factory=dict)
    """Positions in the batch of images that could not be read, and why."""
    prediction: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """For those that could be read, as the next two."""
    confidence: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    energy: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    adapted: bool = False
    note: str = ""

    def set_logits(self, logits: Tensor, record: Record, temperature: float) -> None:
        """Store the logits of the images that could be read."""
        confidence, prediction = logits.softmax(-1).max(-1)
        self.prediction = prediction.to("cpu", torch.int32).numpy()
        self.confidence = confidence.to("cpu", torch.float32).numpy()
        self.energy = energy(logits, temperature).to("cpu", torch.float32).numpy()
        self.adapted = record.adapted
        self.note = "; ".join(text for text in (record.reason, record.guard) if text)


def table(
    rows: Sequence[Rows], name: Callable[[int], str], classes: Sequence[str], labels: NDArray[np.int64] | None
) -> pa.Table:
    """Return all rows as one table; ``labels`` are those of the entire dataset, if it has any that fit."""
    indices = np.concatenate([batch.indices for batch in rows])
    sizes = [len(batch.indices) for batch in rows]
    lost = np.zeros(len(indices), bool)
    notes = np.repeat(np.array([batch.note for batch in rows], object), sizes)
    adapted = np.repeat([batch.adapted for batch in rows], sizes)
    for start, batch in zip(np.cumsum([0, *sizes]), rows, strict=False):
        for position, reason in batch.unreadable.items():
            lost[start + position], notes[start + position], adapted[start + position] = True, reason, False

    def spread(values: list[NDArray[np.float32]] | list[NDArray[np.int32]]) -> pa.Array:
        column = np.zeros(len(indices), values[0].dtype)
        column[~lost] = np.concatenate(values)
        return pa.array(column, mask=lost)

    prediction = spread([batch.prediction for batch in rows])
    columns = {
        "path": pa.array([name(index) for index in indices.tolist()], pa.string()),
        "batch": pa.array(np.repeat(np.array([batch.batch for batch in rows], np.int32), sizes)),
        "prediction": prediction,
        "class": pa.array(classes, pa.string()).take(prediction) if classes else pa.nulls(len(indices), pa.string()),
        "confidence": spread([batch.confidence for batch in rows]),
        "energy": spread([batch.energy for batch in rows]),
        "adapted": pa.array(adapted),
        "note": pa.array(notes.tolist(), pa.string()),
    }
    if labels is not None:
        label = pa.array(labels[indices].astype(np.int32))
        columns |= {"label": label, "correct": pc.equal(prediction, label)}
    return pa.table(columns, schema=schema(labels is not None))
