"""The result of a run: a row for each batch, and the measures of many rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from torch import Tensor

from cretta.bench.run import Run
from cretta.functional import energy
from cretta.method import Record
from cretta.metrics import BatchScores, Bins


@dataclasses.dataclass(frozen=True)
class BatchRow:
    """What happened in one batch. Sums, not means: rows of a stream add up to the measures of the stream."""

    batch: int
    domain: str
    images: int
    right: int
    """Correct predictions."""
    confidence: float
    """Sum of the predicted class's probability."""
    negative_log_likelihood: float
    """Sum."""
    brier: float
    """Sum of squared differences to the label."""
    energy: float
    """Mean of the target samples, under the logits returned."""
    bin_images: tuple[int, ...]
    """Images per bin of confidence; ten bins of equal width."""
    bin_confidence: tuple[float, ...]
    bin_right: tuple[int, ...]
    source_energy: float | None
    """Mean of the source samples under the adapting model."""
    weight: float | None
    """Mean gradient weight w (Eq. 5)."""
    loss: float | None
    adapted: bool
    skipped: bool
    """Whether an update was due and left out."""
    reason: str
    seconds: float

    @property
    def scores(self) -> BatchScores:
        """Sums of the batch, which add up over a stream."""
        bins = Bins(self.bin_images, self.bin_confidence, self.bin_right)
        return BatchScores(bins, self.negative_log_likelihood, self.brier)


def batch_row(
    batch: int, domain: str, logits: Tensor, labels: Tensor, record: Record | None, seconds: float
) -> BatchRow:
    """Return the row of a batch; ``record`` is the adapter's, or None where it only predicted."""
    scores = BatchScores.of(logits, labels)
    bins = scores.bins
    return BatchRow(
        batch=batch,
        domain=domain,
        images=scores.images,
        right=sum(bins.correct),
        confidence=math.fsum(bins.confidence),
        negative_log_likelihood=scores.likelihood_sum,
        brier=scores.brier_sum,
        energy=float(energy(logits.detach().double()).mean()),
        bin_images=bins.count,
        bin_confidence=bins.confidence,
        bin_right=bins.correct,
        source_energy=record.source_energy if record else None,
        weight=record.weight if record else None,
        loss=record.loss if record else None,
        adapted=bool(record and record.adapted),
        skipped=bool(record and record.skipped),
        reason=record.reason if record else "predicted only",
        seconds=seconds,
    )


_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "float | None": pa.float64(),
    "tuple[int, ...]": pa.list_(pa.int64()),
    "tuple[float, ...]": pa.list_(pa.float64()),
}
_SCHEMA = pa.schema([(field.name, _TYPES[str(field.type)]) for field in dataclasses.fields(BatchRow)])


def table_of(rows: Sequence[BatchRow]) -> pa.Table:
    """Return rows as a table, a column per field."""
    return pa.Table.from_pylist([dataclasses.asdict(row) for row in rows], schema=_SCHEMA)


def rows_of(table: pa.Table) -> tuple[BatchRow, ...]:
    """Return the rows of a table that :func:`table_of` made."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row |= {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    return tuple(BatchRow(**row) for row in rows)


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished run, as the store has it."""

    key: str
    run: Run
    rows: tuple[BatchRow, ...]
    clean_after: float | None
    """Accuracy on clean images after the stream."""
    cost: dict[str, float]
    """GFLOPs of a step by both countings, peak memory."""
    provenance: dict[str, Any]
    """Versions, commit, machine, fingerprints of the inputs."""

    def of(self, domain: str | None = None) -> Measures:
        """Return the measures of the rows of a domain, by its label, or of all."""
        return measures([row for row in self.rows if domain is None or row.domain == domain])


@dataclasses.dataclass(frozen=True)
class Measures:
    """Measures of a stream, or a part of it; accuracy and such are shares from 0 to 1."""

    images: int
    accuracy: float
    error: float
    calibration_error: float
    """ECE with ten bins over all images."""
    negative_log_likelihood: float
    brier: float
    confidence: float
    energy: float
    skipped: int
    """Batches whose update was due and left out."""
    seconds: float
    images_per_second: float


def measures(rows: Sequence[BatchRow]) -> Measures:
    """Return the measures of all rows together."""
    if not rows:
        raise ValueError("no rows to add up")
    scores = BatchScores.sum(row.scores for row in rows)
    images, seconds = scores.images, math.fsum(row.seconds for row in rows)
    return Measures(
        images=images,
        accuracy=scores.accuracy,
        error=1 - scores.accuracy,
        calibration_error=scores.calibration_error,
        negative_log_likelihood=scores.negative_log_likelihood,
        brier=scores.brier_score,
        confidence=scores.bins.mean_confidence,
        energy=math.fsum(row.energy * row.images for row in rows) / images,
        skipped=sum(row.skipped for row in rows),
        seconds=seconds,
        images_per_second=images / seconds if seconds else math.nan,
    )
