"""Checks shared by the measures."""

from __future__ import annotations

import torch
from torch import Tensor

from cretta.errors import BatchError


def check_scores(scores: Tensor, labels: Tensor) -> None:
    """Raises unless ``scores`` is (N, C), N > 0, and ``labels`` N whole numbers in [0, C)."""
    if scores.dim() != 2 or labels.shape != scores.shape[:1] or len(labels) == 0:
        raise BatchError(
            f"scores have shape {tuple(scores.shape)} and labels {tuple(labels.shape)}; needed are (N, C) and (N,), "
            "with at least one row."
        )
    if labels.is_floating_point() or bool((labels < 0).any()) or bool((labels >= scores.shape[1]).any()):
        raise BatchError(f"labels must be whole numbers from 0 to {scores.shape[1] - 1}, as class indices.")


def check_probabilities(probabilities: Tensor, labels: Tensor) -> None:
    """Raises unless the rows are distributions over the classes."""
    check_scores(probabilities, labels)
    total = probabilities.double().sum(-1)
    slack = max(1e-3, torch.finfo(probabilities.dtype).eps) if probabilities.is_floating_point() else 0.0
    if bool((probabilities < 0).any()) or not bool(((total - 1).abs() <= slack).all()):
        raise BatchError("rows of probabilities must be at least 0 and sum to 1; for logits, call .softmax(-1) first.")
