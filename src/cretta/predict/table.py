"""The table of predictions, a row per image, and the file that it is written to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor

from cretta.functional import energy
from cretta.method import Record
from cretta.streams import Batch

ENDINGS = (".parquet", ".csv")
ROWS = 1 << 16
"""Rows of a row group of Parquet, and at most of an unsaved part."""


def schema(labeled: bool) -> pa.Schema:
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
    return pa.schema([*columns, *([("label", pa.int32()), ("correct", pa.bool_())] if labeled else [])])


def batch_table(
    batch: Batch, unreadable: Mapping[int, str], logits: Tensor, record: Record, temperature: float
) -> pa.Table:
    """Return what is known after a batch: ``logits`` are those of the readable images, in order.

    ``unreadable`` says by position in the batch why the others could not be read.
    """
    positions = range(len(batch))
    lost = np.array([position in unreadable for position in positions])
    note = "; ".join(text for text in (record.reason, record.guard) if text) if len(logits) else ""

    def column(values: Tensor, dtype: type[np.generic]) -> pa.Array:
        entries = np.zeros(len(batch), dtype)
        entries[~lost] = values.cpu().numpy()
        return pa.array(entries, mask=lost)

    confidence, prediction = logits.softmax(-1).max(-1)
    return pa.table(
        {
            "index": batch.indices,
            "batch": np.full(len(batch), batch.number, np.int32),
            "prediction": column(prediction, np.int32),
            "confidence": column(confidence, np.float32),
            "energy": column(energy(logits, temperature), np.float32),
            "adapted": record.adapted & ~lost,
            "note": [unreadable.get(position, note) for position in positions],
        }
    )


def complete(
    rows: pa.Table, name: Callable[[int], str], classes: Sequence[str], labels: NDArray[np.int64] | None
) -> pa.Table:
    """Return rows of :func:`batch_table` with the names of images and classes, and with labels if there are any."""
    indices, prediction = rows["index"].to_pylist(), rows["prediction"]
    columns = {column: rows[column] for column in rows.column_names} | {
        "path": pa.array(map(name, indices), pa.string()),
        "class": pa.array(classes, pa.string()).take(prediction) if classes else pa.nulls(len(rows), pa.string()),
    }
    if labels is not None:
        label = pa.array(labels[indices].astype(np.int32))
        columns |= {"label": label, "correct": pc.equal(prediction, label)}
    described = schema(labels is not None)
    return pa.table([columns[column] for column in described.names], schema=described)


def write(path: Path, ending: str, rows: pa.Table, facts: Mapping[str, Any]) -> None:
    """Write a file, whose bytes do not depend on the parts that the rows were read from.

    ``facts`` go into the metadata of a Parquet file under "cretta".
    """
    if ending == ".csv":
        with path.open("wb") as file:
            file.write(f"{','.join(rows.column_names)}\n".encode())
            options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
            pa.csv.write_csv(rows, file, options)
        return
    # Pages end where chunks do.
    rows = rows.combine_chunks().replace_schema_metadata({"cretta": json.dumps(facts, sort_keys=True)})
    pq.write_table(rows, path, row_group_size=ROWS)
