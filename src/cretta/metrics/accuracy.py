"""Top-1 accuracy, of a set at once or over a stream."""

from __future__ import annotations

from torch import Tensor

from cretta.metrics.check import check_scores


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Share of rows of ``scores`` (N, C), logits or probabilities, whose largest entry is the label's.

    >>> import torch
    >>> accuracy(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    0.5
    """
    running = Accuracy()
    running.update(scores, labels)
    return running.value


class Accuracy:
    """:func:`accuracy` over batches, in constant memory."""

    def __init__(self) -> None:
        self.right = 0
        self.seen = 0

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Counts a batch in."""
        check_scores(scores, labels)
        self.right += int((scores.argmax(-1) == labels).sum())
        self.seen += len(labels)

    @property
    def value(self) -> float:
        """Accuracy of all batches so far; NaN before the first."""
        return self.right / self.seen if self.seen else float("nan")
