"""Expected calibration error, and the bins of confidence that it is computed from.

Written by hand because the known metric libraries store every confidence of a stream; this stores three numbers per
bin. The tests compare it with torchmetrics.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor

from cretta.errors import BatchError, OptionError
from cretta.options import check_integer


@dataclasses.dataclass(frozen=True)
class Bins:
    """Predictions by confidence, in bins of equal width that are closed on the right (Guo et al., 2017).

    The bins of two sets add up to the bins of both; their calibration errors do not.

    >>> first = Bins.from_confidence(torch.tensor([0.75]), torch.tensor([True]))
    >>> second = Bins.from_confidence(torch.tensor([0.75]), torch.tensor([False]))
    >>> both = first + second
    >>> both.count, both.correct, both.calibration_error
    ((0, 0, 0, 0, 0, 0, 0, 2, 0, 0), (0, 0, 0, 0, 0, 0, 0, 1, 0, 0), 0.25)
    """

    count: tuple[int, ...]
    """Predictions per bin."""
    confidence: tuple[float, ...]
    """Sum of their confidences, per bin."""
    correct: tuple[int, ...]
    """Correct predictions per bin."""

    @classmethod
    def empty(cls, bins: int = 10) -> Self:
        """Return bins without predictions, to add others to."""
        check_integer("bins", bins, at_least=1)
        return cls((0,) * bins, (0.0,) * bins, (0,) * bins)

    @classmethod
    def from_confidence(cls, confidence: Tensor, correct: Tensor, bins: int = 10) -> Self:
        """Sort predictions by their confidence (N,); ``correct`` (N,) says which of them are correct."""
        check_integer("bins", bins, at_least=1)
        confidence, correct = confidence.detach().cpu(), correct.cpu()
        # Edges of the same precision: 0.8 in float32 is not above 0.8.
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1].to(confidence.dtype)
        index = torch.bucketize(confidence, edges)
        return cls(
            tuple(torch.bincount(index, minlength=bins).tolist()),
            tuple(torch.bincount(index, confidence.double(), minlength=bins).tolist()),
            tuple(torch.bincount(index[correct], minlength=bins).tolist()),
        )

    @classmethod
    def from_probabilities(cls, probabilities: Tensor, labels: Tensor, bins: int = 10) -> Self:
        """Sort predictions by the largest entry of their ``probabilities`` (N, C)."""
        check_probabilities(probabilities, labels)
        confidence, predicted = probabilities.max(-1)
        return cls.from_confidence(confidence, predicted.cpu() == labels.cpu(), bins)

    @classmethod
    def sum(cls, parts: Iterable[Bins]) -> Self:
        """Return the bins of all parts together; the result does not depend on their order."""
        parts = list(parts)
        numbers = sorted({len(part.count) for part in parts})
        if len(numbers) > 1:
            raise OptionError(f"expected the same number of bins in each part, got {numbers}; use the same bins=….")
        return cls(
            tuple(map(sum, zip(*(part.count for part in parts), strict=True))),
            tuple(map(math.fsum, zip(*(part.confidence for part in parts), strict=True))),
            tuple(map(sum, zip(*(part.correct for part in parts), strict=True))),
        )

    def __add__(self, other: Bins) -> Bins:
        return Bins.sum((self, other)) if isinstance(other, Bins) else NotImplemented

    @property
    def accuracy(self) -> float:
        """Share of correct predictions; NaN without predictions, as all of these."""
        return self._mean(sum(self.correct))

    @property
    def mean_confidence(self) -> float:
        """Mean confidence of all predictions."""
        return self._mean(math.fsum(self.confidence))

    @property
    def calibration_error(self) -> float:
        """Expected calibration error (ECE) of all predictions."""
        # |mean confidence - accuracy| of a bin, weighted by its share of the predictions: its count cancels.
        return self._mean(math.fsum(abs(s - c) for s, c in zip(self.confidence, self.correct, strict=True)))

    def _mean(self, total: float) -> float:
        count = sum(self.count)
        return total / count if count else math.nan


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 10) -> float:
    """Return the top-label expected calibration error: Σ_m |bin_m|/N · |confidence_m - accuracy_m|, in [0, 1].

    Bins have equal width and are closed on the right (Guo et al., 2017); the paper uses 10.

    >>> calibration_error(torch.tensor([[0.8, 0.2], [0.2, 0.8]]), torch.tensor([0, 0]))
    0.30000001192092896
    """
    return Bins.from_probabilities(probabilities, labels, bins).calibration_error


def check_scores(scores: Tensor, labels: Tensor) -> None:
    """Raise unless ``scores`` is (N, C), N > 0, and ``labels`` N integers in [0, C)."""
    if scores.dim() != 2 or labels.shape != scores.shape[:1] or len(labels) == 0:
        raise BatchError(
            f"expected scores (N, C) and labels (N,) with at least one row, got {tuple(scores.shape)} and "
            f"{tuple(labels.shape)}."
        )
    if labels.is_floating_point() or bool((labels < 0).any()) or bool((labels >= scores.shape[1]).any()):
        raise BatchError(f"expected labels that are class indices, integers from 0 to {scores.shape[1] - 1}.")


def check_probabilities(probabilities: Tensor, labels: Tensor) -> None:
    """Raise unless the rows are distributions over the classes."""
    check_scores(probabilities, labels)
    total = probabilities.double().sum(-1)
    tolerance = max(1e-3, torch.finfo(probabilities.dtype).eps) if probabilities.is_floating_point() else 0.0
    if bool((probabilities < 0).any()) or not bool(((total - 1).abs() <= tolerance).all()):
        raise BatchError(
            "expected rows of probabilities that are at least 0 and sum to 1; for logits, call .softmax(-1) first."
        )
