"""The result of a run: a row for each batch, and the scores of all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from torch import Tensor

from cretta.bench.run import Run
from cretta.functional import energy
from cretta.method import Record
from cretta.metrics import BatchScores, Bins


@dataclasses.dataclass(frozen=True)
class BatchRow:
    """What happened in one batch. Sums, not means: rows of a stream add up to the scores of the stream."""

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
    cost: dict[str, float]
    """GFLOPs of a step by both countings, peak memory."""
    provenance: dict[str, Any]
    """Versions, commit, machine, fingerprints of the inputs."""

    def only(self, domains: Collection[str]) -> Result:
        """Return the result with only the batches of these domains, by their labels."""
        return dataclasses.replace(self, rows=tuple(row for row in self.rows if row.domain in domains))

    @cached_property
    def scores(self) -> BatchScores:
        """Scores of all images together."""
        return BatchScores.sum(row.scores for row in self.rows)

    @property
    def energy(self) -> float:
        """Mean energy of the images, under the logits returned."""
        return math.fsum(row.energy * row.images for row in self.rows) / self.scores.images

    @property
    def seconds(self) -> float:
        """Time in the model."""
        return math.fsum(row.seconds for row in self.rows)
