"""Accuracy, calibration and proper scoring rules of a batch, in sums that add up over a stream.

Negative log-likelihood and Brier score are minimal where the probabilities are true, so that they penalize wrong and
badly calibrated predictions alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor

from cretta.errors import BatchError
from cretta.metrics.calibration import Bins, check_scores


@dataclasses.dataclass(frozen=True)
class BatchScores:
    """Scores of the predictions of a batch, or of several batches added up, in constant memory.

    >>> first = BatchScores.of(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    >>> second = BatchScores.of(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([1, 1]))
    >>> both = first + second
    >>> both.images, round(both.accuracy, 3), round(both.negative_log_likelihood, 3), round(both.brier_score, 3)
    (3, 0.333, 0.982, 0.693)
    """

    bins: Bins
    likelihood_sum: float
    """Sum of -log p[label], in nats."""
    brier_sum: float
    """Sum of Σ_c (p[c] - [c is the label])²."""

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, bins: int = 10) -> Self:
        """Return the scores of ``logits`` (N, C), from before the softmax; log-probabilities are logits too."""
        check_scores(logits, labels)
        _check_logits(logits)
        labels = labels.cpu().long()
        log_probabilities = logits.detach().cpu().double().log_softmax(-1)
        probabilities = log_probabilities.exp()
        confidence, predicted = probabilities.max(-1)
        truth = torch.nn.functional.one_hot(labels, logits.shape[1])
        return cls(
            Bins.from_confidence(confidence, predicted == labels, bins),
            -float(log_probabilities.gather(1, labels.unsqueeze(1)).sum()),
            float((probabilities - truth).square().sum()),
        )

    @classmethod
    def sum(cls, parts: Iterable[BatchScores]) -> Self:
        """Return the scores of all parts together; the result does not depend on their order."""
        parts = list(parts)
        return cls(
            Bins.sum(part.bins for part in parts),
            math.fsum(part.likelihood_sum for part in parts),
            math.fsum(part.brier_sum for part in parts),
        )

    def __add__(self, other: BatchScores) -> BatchScores:
        return BatchScores.sum((self, other)) if isinstance(other, BatchScores) else NotImplemented

    @property
    def images(self) -> int:
        """Number of predictions."""
        return sum(self.bins.count)

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return self.bins.accuracy

    @property
    def calibration_error(self) -> float:
        """Expected calibration error (ECE) over all predictions."""
        return self.bins.calibration_error

    @property
    def negative_log_likelihood(self) -> float:
        """Mean of -log p[label], in nats."""
        return self.likelihood_sum / self.images

    @property
    def brier_score(self) -> float:
        """Mean of Σ_c (p[c] - [c is the label])², in [0, 2]; for two classes twice the score of one of them."""
        return self.brier_sum / self.images


def _check_logits(logits: Tensor) -> None:
    # -inf is a class ruled out; every row needs one that is not.
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise BatchError("logits have rows with NaN or +inf, or with nothing but -inf; drop or repair them.")
    total = logits.double().sum(-1)
    if bool((logits >= 0).all()) and bool(((total - 1).abs() < 1e-4).all()):
        raise BatchError(
            "expected logits, got rows that are at least 0 and sum to 1, as probabilities do; pass the logits from "
            "before the softmax, or probabilities.log()."
        )
