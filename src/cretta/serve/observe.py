"""What is known of a batch without labels, for metrics, the page and logs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from cretta.monitor import SourceReference

if TYPE_CHECKING:
    from cretta.adapter import Adapter

REFERENCE_IMAGES = 500


@dataclasses.dataclass(frozen=True)
class Observation:
    """One batch."""

    batch: int
    step: int
    """Updates of the model so far, that of this batch included."""
    images: int
    outcome: str
    """adapted, skipped, predicted (not learned from) or failed (an error in the update)."""
    predict_seconds: float
    adapt_seconds: float
    energy: float
    confidence: float
    classes: tuple[int, ...]
    """Predictions per class."""
    reason: str = ""
    guard: str = ""
    """What the guard detected and did."""
    accuracy: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Estimates of the adapted model over the last images, by estimator."""
    source_accuracy: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The same of the source model."""
    drift: float | None = None
    """Mean rank of the source model's energies among those of source images: 0.5 without drift."""

    @property
    def guard_action(self) -> str:
        """The action in the guard's message, in one word."""
        for words, action in (("model answers", "fallback"), ("rolled back", "rollback"), ("reset", "reset")):
            if words in self.guard:
                return action
        return "warn"


def probe(adapter: Adapter[Any], size: tuple[int, int]) -> tuple[SourceReference | None, int]:
    """Return what labeled source images say about the source model, if there are any, and its number of classes."""
    labeled = adapter.source_samples(REFERENCE_IMAGES, adapted=False)
    if labeled is not None:
        return SourceReference.of(*labeled), labeled[0].shape[1]
    with adapter.exclusive(), torch.no_grad():
        logits = adapter.frozen("running").source(torch.full((1, 3, *size), 0.5, device=adapter.device))
    return None, logits.shape[1]


def reference_values(source: SourceReference | None) -> dict[str, float]:
    """Return mean energy, confidence and accuracy of the source model on source images."""
    if source is None:
        return {}
    return {"energy": float(source.energies.mean()), "confidence": source.confidence, "accuracy": source.accuracy}
