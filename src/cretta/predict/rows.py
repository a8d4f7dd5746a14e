"""The table that predictions go into, a row an image."""

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
    """The columns; those of an image that could not be read are null from prediction to energy."""
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
    """What happened to the images of one batch, in order."""

    batch: int
    indices: NDArray[np.int64]
    unreadable: dict[int, str] = field(default_factory=dict)
    """Places in the batch of images that could not be read, and why."""
    prediction: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """Of those that could; the next two as well."""
    confidence: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    energy: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    adapted: bool = False
    note: str = ""

    def answer(self, logits: Tensor, record: Record, temperature: float) -> None:
        """Takes what the adapter said of the images that could be read."""
        confidence, prediction = logits.softmax(-1).max(-1)
        self.prediction = prediction.to("cpu", torch.int32).numpy()
        self.confidence = confidence.to("cpu", torch.float32).numpy()
        self.energy = energy(logits, temperature).to("cpu", torch.float32).numpy()
        self.adapted = record.adapted
        self.note = "; ".join(text for text in (record.reason, record.guard) if text)


def table(
    rows: Sequence[Rows], name: Callable[[int], str], classes: Sequence[str], labels: NDArray[np.int64] | None
) -> pa.Table:
    """All rows as one table; ``labels`` of the whole dataset, if it has any that fit."""
    indices = np.concatenate([each.indices for each in rows])
    sizes = [len(each.indices) for each in rows]
    lost = np.zeros(len(indices), bool)
    notes = np.repeat(np.array([each.note for each in rows], object), sizes)
    adapted = np.repeat([each.adapted for each in rows], sizes)
    for start, each in zip(np.cumsum([0, *sizes]), rows, strict=False):
        for place, reason in each.unreadable.items():
            lost[start + place], notes[start + place], adapted[start + place] = True, reason, False

    def spread(values: list[NDArray[np.float32]] | list[NDArray[np.int32]]) -> pa.Array:
        found = np.zeros(len(indices), values[0].dtype)
        found[~lost] = np.concatenate(values)
        return pa.array(found, mask=lost)

    prediction = spread([each.prediction for each in rows])
    columns = {
        "path": pa.array([name(index) for index in indices.tolist()], pa.string()),
        "batch": pa.array(np.repeat(np.array([each.batch for each in rows], np.int32), sizes)),
        "prediction": prediction,
        "class": pa.array(classes, pa.string()).take(prediction) if classes else pa.nulls(len(indices), pa.string()),
        "confidence": spread([each.confidence for each in rows]),
        "energy": spread([each.energy for each in rows]),
        "adapted": pa.array(adapted),
        "note": pa.array(notes.tolist(), pa.string()),
    }
    if labels is not None:
        found = pa.array(labels[indices].astype(np.int32))
        columns |= {"label": found, "correct": pc.equal(prediction, found)}
    return pa.table(columns, schema=schema(labels is not None))
