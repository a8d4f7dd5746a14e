"""Temperatures that calibrate a model: from labeled source samples, or from mixed pairs of a batch."""

from __future__ import annotations

import math

from torch import Tensor

from cretta.functional import at_least_float32

LOWEST, HIGHEST = 0.05, 20.0
"""Bounds of a temperature; without an error among the samples, the best one would be 0."""
MIXTURE = 0.65
"""λ of PseudoCal: the share of the image whose predicted class is the label of a mixed pair."""


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T that minimizes the cross-entropy of softmax(z / T) (Guo et al., 2017).

    It is convex in 1 / T, with the derivative mean(Σ_k p_k z_k − z_y), whose zero is computed by bisection.

    >>> round(fit_temperature(Tensor([[2.0, 0.0]] * 4), Tensor([0, 0, 0, 1]).long()), 4)  # σ(2 / T) = 3 / 4
    1.8205
    """
    logits = at_least_float32(logits).double()
    target = logits.gather(1, labels.to(logits.device).unsqueeze(1)).mean()
    low, high = -math.log(HIGHEST), -math.log(LOWEST)
    for _ in range(50):
        middle = (low + high) / 2
        slope = ((logits * math.exp(middle)).softmax(-1) * logits).sum(-1).mean() - target
        low, high = (middle, high) if float(slope) < 0 else (low, middle)
    return math.exp(-(low + high) / 2)


def mixed_pairs(x: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    """Return λ x_i + (1 − λ) x_j and the class of x_i, for pairs of different classes (PseudoCal, Hu et al., 2024).

    Samples in order of their class are paired with those half a batch away. Pairs of one class are left out.
    """
    order = predicted.argsort(stable=True)
    partner = order.roll(len(order) // 2)
    differ = predicted[order] != predicted[partner]
    first, second = order[differ], partner[differ]
    return MIXTURE * x[first] + (1 - MIXTURE) * x[second], predicted[first]
