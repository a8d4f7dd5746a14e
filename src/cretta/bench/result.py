"""What a run left behind: a row for each batch, and what they amount to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cretta.functional import energy
from cretta.method import Record
from cretta.metrics import calibration_bins

BINS = 10


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
    """Images a bin of confidence; ten bins of equal width."""
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


def batch_row(
    batch: int, domain: str, logits: Tensor, labels: Tensor, record: Record | None, seconds: float
) -> BatchRow:
    """Measures a batch; ``record`` is the adapter's, or None where it only predicted."""
    scores = logits.detach().double().cpu()
    logs = scores.log_softmax(-1)
    probabilities = logs.exp()
    confidence, predicted = probabilities.max(-1)
    truth = torch.nn.functional.one_hot(labels, scores.shape[-1])
    bins = calibration_bins(probabilities, labels, BINS)
    return BatchRow(
        batch=batch,
        domain=domain,
        images=len(labels),
        right=int((predicted == labels).sum()),
        confidence=float(confidence.sum()),
        negative_log_likelihood=-float(logs.gather(1, labels.unsqueeze(1)).sum()),
        brier=float((probabilities - truth).square().sum()),
        energy=float(energy(scores).mean()),
        bin_images=tuple(bins.count.tolist()),
        bin_confidence=tuple(bins.confidence.tolist()),
        bin_right=tuple(bins.right.tolist()),
        source_energy=record.source_energy if record else None,
        weight=record.weight if record else None,
        loss=record.loss if record else None,
        adapted=bool(record and record.adapted),
        skipped=bool(record and record.skipped),
        reason=record.reason if record else "predicted only",
        seconds=seconds,
    )


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished run, as the store keeps it."""

    key: str
    run: dict[str, Any]
    """Its description."""
    rows: tuple[BatchRow, ...]
    clean_after: float | None
    """Accuracy on clean images after the stream."""
    cost: dict[str, float]
    """GFLOPs of a step by both countings, peak memory."""
    provenance: dict[str, Any]
    """Versions, commit, machine, materials."""

    def of(self, domain: str | None = None) -> Measures:
        """What the rows of a domain, or all, amount to."""
        return measures([row for row in self.rows if domain is None or row.domain == domain])


@dataclasses.dataclass(frozen=True)
class Measures:
    """Of a stream, or a part of it. Shares from 0 to 1."""

    images: int
    accuracy: float
    error: float
    calibration_error: float
    """ECE with ten bins over all of it."""
    negative_log_likelihood: float
    brier: float
    confidence: float
    energy: float
    skipped: int
    """Batches that were to be learnt from, and were not."""
    seconds: float
    images_per_second: float


def measures(rows: Sequence[BatchRow]) -> Measures:
    """Adds rows up."""
    images = sum(row.images for row in rows)
    if not images:
        raise ValueError("no rows to add up")
    right = sum(row.right for row in rows)
    seconds = math.fsum(row.seconds for row in rows)
    # Fraction right less mean confidence of each bin, weighted by its images: the images cancel.
    gaps = (
        abs(sum(row.bin_right[place] for row in rows) - math.fsum(row.bin_confidence[place] for row in rows))
        for place in range(BINS)
    )
    return Measures(
        images=images,
        accuracy=right / images,
        error=1 - right / images,
        calibration_error=math.fsum(gaps) / images,
        negative_log_likelihood=math.fsum(row.negative_log_likelihood for row in rows) / images,
        brier=math.fsum(row.brier for row in rows) / images,
        confidence=math.fsum(row.confidence for row in rows) / images,
        energy=math.fsum(row.energy * row.images for row in rows) / images,
        skipped=sum(row.skipped for row in rows),
        seconds=seconds,
        images_per_second=images / seconds if seconds else math.nan,
    )
