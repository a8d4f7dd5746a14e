"""Estimates of the accuracy on images without labels, by labeled source images and the logits of both."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cretta.errors import BatchError
from cretta.functional import at_least_float32, energy, entropy
from cretta.monitor.calibration import fit_temperature
from cretta.options import unknown

ESTIMATES = ("confidence", "doc", "atc", "atc_entropy", "cot")
ENOUGH = 20
"""Source images below which an accuracy near chance says nothing."""
AT_ONCE = 1000
"""Samples per assignment of COT, whose time grows with the cube of their number."""


def estimate_accuracy(logits: Tensor, source_logits: Tensor, source_labels: Tensor, *, method: str = "atc") -> float:
    """Return an estimate of the accuracy of the predictions ``logits`` (N, C), for which there are no labels.

    ``source_logits`` (M, C) and ``source_labels`` (M,) are the same model's on labeled source images, best those that
    it was not trained on. ``method``:

    - ``"confidence"``: the mean confidence after temperature scaling on the source images.
    - ``"doc"``: difference of confidences (Guillory et al., 2021): source accuracy + mean confidence − that on source.
    - ``"atc"``: average thresholded confidence (Garg et al., 2022): the share of predictions whose confidence is at
      least t, where as many source predictions are below t as are wrong. ``"atc_entropy"`` takes −H instead.
    - ``"cot"``: confidence optimal transport (Lu et al., 2023): see :func:`cot`.

    >>> source = torch.tensor([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    >>> estimate_accuracy(torch.tensor([[1.5, 0.0], [2.5, 0.0]]), source, torch.tensor([0, 0, 0, 1]), method="atc")
    0.5
    """
    if method not in ESTIMATES:
        raise unknown("estimate", method, ESTIMATES)
    return SourceReference.of(source_logits, source_labels).estimate(logits, method)


def cot(probabilities: Tensor, frequencies: Tensor) -> float:
    """Return 1 − the least mean cost of assigning labels to predictions (N, C), with given label frequencies (C,).

    The cost of a label y is ½‖e_y − p‖₁ = 1 − p_y. A model that answers few classes with confidence has to pay for
    every label it does not predict. More than 1000 predictions are assigned in parts.
    """
    from scipy.optimize import linear_sum_assignment

    parts = -(-len(probabilities) // AT_ONCE)
    total = 0.0
    for part in range(parts):
        rows = probabilities[part::parts].double().cpu().numpy()
        assigned = rows[:, label_counts(frequencies, len(rows))]
        total += float(assigned[linear_sum_assignment(assigned, maximize=True)].sum())
    return total / len(probabilities)


def label_counts(frequencies: Tensor, count: int) -> NDArray[np.int64]:
    """Return ``count`` labels whose frequencies are nearest to ``frequencies``: those of the largest remainders."""
    exact = frequencies.double().cpu().numpy() * (count / float(frequencies.sum()))
    whole_part = np.floor(exact + 1e-9).astype(np.int64)
    largest = np.argsort(whole_part - exact, kind="stable")[: count - whole_part.sum()]
    whole_part[largest] += 1
    return np.repeat(np.arange(len(exact)), whole_part)


@dataclasses.dataclass(frozen=True)
class SourceReference:
    """What labeled source images say about a model: all that the estimates need."""

    accuracy: float
    confidence: float
    """Mean confidence on the source images, after temperature scaling."""
    temperature: float
    thresholds: dict[str, float]
    """t of ATC, by its score."""
    frequencies: Tensor
    """Of the labels; classes without an image count as half an image."""
    energies: Tensor
    """Of the source images, sorted."""

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Self:
        """Return the reference of a model with these logits (M, C) on source images with these labels (M,)."""
        logits, labels = at_least_float32(logits.detach()).cpu(), labels.cpu().long()
        if logits.dim() != 2 or labels.shape != logits.shape[:1] or len(labels) == 0:
            raise BatchError(
                f"expected source logits (M, C) and labels (M,) with at least one row, got {tuple(logits.shape)} and "
                f"{tuple(labels.shape)}."
            )
        if int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
            raise BatchError(
                f"expected source labels from 0 to {logits.shape[1] - 1}, the classes of the logits, got "
                f"{int(labels.min())} to {int(labels.max())}."
            )
        correct = logits.argmax(-1) == labels
        temperature = fit_temperature(logits, labels)
        scaled, errors = logits / temperature, int((~correct).sum())
        return cls(
            accuracy=float(correct.double().mean()),
            confidence=float(scaled.softmax(-1).amax(-1).mean()),
            temperature=temperature,
            thresholds={name: _threshold(score(scaled), errors) for name, score in SCORES.items()},
            frequencies=torch.bincount(labels, minlength=logits.shape[1]).double().clamp(min=0.5),
            energies=energy(logits).sort().values,
        )

    @property
    def at_chance(self) -> bool:
        """Whether the accuracy on 20 images or more is below 50 % and twice chance, as with labels in another order."""
        return len(self.energies) >= ENOUGH and self.accuracy < min(0.5, 2 / len(self.frequencies))

    def estimate(self, logits: Tensor, method: str = "atc") -> float:
        """Return one estimate of the accuracy of ``logits``; see :func:`estimate_accuracy`."""
        if logits.dim() != 2 or len(logits) == 0 or logits.shape[1] != len(self.frequencies):
            raise BatchError(
                f"expected logits (N, {len(self.frequencies)}) with at least one row, got {tuple(logits.shape)}."
            )
        scaled = at_least_float32(logits.detach()).cpu() / self.temperature
        if method == "cot":
            return cot(scaled.softmax(-1), self.frequencies)
        if method in SCORES:
            return float((SCORES[method](scaled) >= self.thresholds[method]).double().mean())
        confidence = float(scaled.softmax(-1).amax(-1).mean())
        if method == "confidence":
            return confidence
        if method == "doc":
            return min(1.0, max(0.0, self.accuracy + confidence - self.confidence))
        raise unknown("estimate", method, ESTIMATES)

    def estimates(self, logits: Tensor) -> dict[str, float]:
        """Return all estimates, by name."""
        return {method: self.estimate(logits, method) for method in ESTIMATES}


def _confidence(logits: Tensor) -> Tensor:
    return logits.softmax(-1).amax(-1)


def _negative_entropy(logits: Tensor) -> Tensor:
    return -entropy(logits)


SCORES: dict[str, Any] = {"atc": _confidence, "atc_entropy": _negative_entropy}


def _threshold(scores: Tensor, errors: int) -> float:
    """Return the score below which there are ``errors`` scores."""
    return float(scores.sort().values[errors]) if errors < len(scores) else float("inf")
