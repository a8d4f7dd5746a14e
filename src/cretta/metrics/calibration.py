"""Expected calibration error, of a set at once or over a stream.

Written by hand because the known metric libraries keep every confidence of the stream; this keeps three
numbers a bin. The tests compare it with torchmetrics.
"""

from __future__ import annotations

import dataclasses
from typing import Self

import torch
from torch import Tensor

from cretta.errors import OptionError
from cretta.metrics.check import check_probabilities


@dataclasses.dataclass(frozen=True, eq=False)
class Bins:
    """Predictions by their confidence, in bins of equal width: what calibration error and its diagrams are made of.

    The bins of two sets add up to those of both; their errors do not.

    >>> first = calibration_bins(torch.tensor([[0.8, 0.2]]), torch.tensor([0]))
    >>> second = calibration_bins(torch.tensor([[0.8, 0.2]]), torch.tensor([1]))
    >>> both = first + second
    >>> both.count.tolist(), both.right.tolist(), round(both.error, 6)
    ([0, 0, 0, 0, 0, 0, 0, 2, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0], 0.3)
    """

    count: Tensor
    """How many predictions there are in each bin."""
    confidence: Tensor
    """The sum of their confidences."""
    right: Tensor
    """How many of them are right."""

    @classmethod
    def empty(cls, bins: int = 10) -> Self:
        """Bins with nothing in them, to add to."""
        _check(bins)
        whole = torch.zeros(bins, dtype=torch.int64)
        return cls(whole, torch.zeros(bins, dtype=torch.float64), whole.clone())

    def __len__(self) -> int:
        return len(self.count)

    def __add__(self, other: Bins) -> Bins:
        if not isinstance(other, Bins):
            return NotImplemented
        if len(self) != len(other):
            raise OptionError(f"{len(self)} bins cannot be added to {len(other)}; bin both in the same way.")
        return Bins(self.count + other.count, self.confidence + other.confidence, self.right + other.right)

    @property
    def error(self) -> float:
        """Expected calibration error of all that is in the bins; NaN if that is nothing."""
        return float((self.confidence - self.right).abs().sum() / self.count.sum())


def calibration_bins(probabilities: Tensor, labels: Tensor, bins: int = 10) -> Bins:
    """Sorts predictions into ``bins`` of equal width by their confidence, the largest probability.

    Bins are closed on the right (Guo et al., 2017).
    """
    _check(bins)
    check_probabilities(probabilities, labels)
    confidence, predicted = probabilities.detach().max(-1)
    confidence = confidence.cpu()
    # Edges of the same precision: 0.8 in float32 is not above 0.8.
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1].to(confidence.dtype)
    index = torch.bucketize(confidence, edges)
    return Bins(
        torch.bincount(index, minlength=bins),
        torch.bincount(index, confidence.double(), minlength=bins),
        torch.bincount(index[(predicted == labels).cpu()], minlength=bins),
    )


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 10) -> float:
    """Top-label expected calibration error: Σ_m |bin_m|/N · |confidence_m - accuracy_m|, in [0, 1].

    Bins have equal width and are closed on the right (Guo et al., 2017); the paper uses 10.

    >>> calibration_error(torch.tensor([[0.8, 0.2], [0.2, 0.8]]), torch.tensor([0, 0]))
    0.30000001192092896
    """
    return calibration_bins(probabilities, labels, bins).error


class Calibration:
    """:func:`calibration_error` over batches, in constant memory."""

    def __init__(self, bins: int = 10) -> None:
        self.bins = Bins.empty(bins)

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """Counts a batch in."""
        self.bins = self.bins + calibration_bins(probabilities, labels, len(self.bins))

    @property
    def value(self) -> float:
        """Calibration error of all batches so far; NaN before the first."""
        return self.bins.error


def _check(bins: int) -> None:
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise OptionError(f"bins={bins!r}: must be a whole number, at least 1; the paper uses 10.")
