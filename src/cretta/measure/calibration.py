"""Expected calibration error, of a set at once or over a stream.

Written by hand because the known metric libraries keep every confidence of the stream; this keeps three
numbers a bin. The tests compare it with torchmetrics.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cretta.errors import OptionError
from cretta.measure.check import check_probabilities


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 10) -> float:
    """Top-label expected calibration error: Σ_m |bin_m|/N · |confidence_m - accuracy_m|, in [0, 1].

    Bins have equal width and are closed on the right (Guo et al., 2017); the paper uses 10.

    >>> calibration_error(torch.tensor([[0.8, 0.2], [0.2, 0.8]]), torch.tensor([0, 0]))
    0.30000001192092896
    """
    running = Calibration(bins)
    running.update(probabilities, labels)
    return running.value


class Calibration:
    """:func:`calibration_error` over batches, in constant memory."""

    def __init__(self, bins: int = 10) -> None:
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
            raise OptionError(f"bins={bins!r}: must be a whole number, at least 1; the paper uses 10.")
        self.edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
        self.count = torch.zeros(bins, dtype=torch.float64)
        self.confidence = torch.zeros(bins, dtype=torch.float64)
        self.right = torch.zeros(bins, dtype=torch.float64)

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """Counts a batch in."""
        check_probabilities(probabilities, labels)
        confidence, predicted = probabilities.max(-1)
        confidence = confidence.cpu()
        # Edges of the same precision: 0.8 in float32 is not above 0.8.
        bins = torch.bucketize(confidence, self.edges.to(confidence.dtype))
        confidence = confidence.double()
        self.count += torch.bincount(bins, minlength=len(self.count))
        self.confidence += torch.bincount(bins, confidence, minlength=len(self.count))
        self.right += torch.bincount(bins, (predicted == labels).double().cpu(), minlength=len(self.count))

    @property
    def value(self) -> float:
        """Calibration error of all batches so far; NaN before the first."""
        return float((self.confidence - self.right).abs().sum() / self.count.sum())
