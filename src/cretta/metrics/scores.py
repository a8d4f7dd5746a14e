"""Proper scoring rules: negative log-likelihood and Brier score, of a set at once or over a stream.

Both are least where the probabilities are true, so that they punish wrong and ill-calibrated predictions alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cretta.errors import BatchError
from cretta.metrics.check import check_probabilities, check_scores


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    """Mean of -log p[label], in nats; ``logits`` (N, C), from before the softmax.

    Log-probabilities are logits too.

    >>> round(negative_log_likelihood(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])), 6)
    0.693147
    """
    running = NegativeLogLikelihood()
    running.update(logits, labels)
    return running.value


def brier_score(probabilities: Tensor, labels: Tensor) -> float:
    """Mean of Σ_c (p[c] - [c is the label])², in [0, 2]; ``probabilities`` (N, C).

    This is Brier's own score over all classes; for two classes it is twice the score of the one.

    >>> brier_score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
    0.25
    """
    running = BrierScore()
    running.update(probabilities, labels)
    return running.value


class _Mean:
    """A mean over the samples of a stream."""

    def __init__(self) -> None:
        self.total = 0.0
        self.seen = 0

    @property
    def value(self) -> float:
        """The mean over all batches so far; NaN before the first."""
        return self.total / self.seen if self.seen else float("nan")


class NegativeLogLikelihood(_Mean):
    """:func:`negative_log_likelihood` over batches, in constant memory."""

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Counts a batch in."""
        check_scores(logits, labels)
        _check_logits(logits)
        chosen = logits.detach().double().log_softmax(-1).gather(1, labels.long().unsqueeze(1))
        self.total -= float(chosen.sum())
        self.seen += len(labels)


class BrierScore(_Mean):
    """:func:`brier_score` over batches, in constant memory."""

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """Counts a batch in."""
        check_probabilities(probabilities, labels)
        truth = torch.nn.functional.one_hot(labels.long(), probabilities.shape[1])
        self.total += float((probabilities.detach().double() - truth).square().sum())
        self.seen += len(labels)


def _check_logits(logits: Tensor) -> None:
    # -inf is a class ruled out, and every row needs one that is not.
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise BatchError("logits hold rows with NaN or +inf, or with nothing but -inf; drop or repair them.")
    total = logits.double().sum(-1)
    if bool((logits >= 0).all()) and bool(((total - 1).abs() < 1e-4).all()):
        raise BatchError(
            "logits are at least 0 and sum to 1 in every row, as probabilities do; pass the logits from before the "
            "softmax, or probabilities.log()."
        )
