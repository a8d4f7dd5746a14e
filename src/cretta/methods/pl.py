"""PL: pseudo-labels."""

from __future__ import annotations

import dataclasses

import torch.nn.functional as F
from torch import Tensor

from cretta.adapter import Adapter
from cretta.errors import SkipStep
from cretta.method import Facts, Objective, Options
from cretta.options import number


@dataclasses.dataclass(frozen=True, kw_only=True)
class PLOptions(Options):
    """Options of PL."""

    lr: float = number(1e-5, "learning rate", above=0)
    threshold: float = number(0.9, "c, least confidence of a pseudo-label", at_least=0, below=1)


class PL(Adapter[PLOptions]):
    """Pseudo-labels (Lee, 2013): L = mean CE(z, argmax z) where max p > c.

    It is the only method that updates all parameters, and it uses training's statistics.
    """

    name = "pl"
    facts = Facts(updates="all", statistics="running", logits="before")

    def objective(self, x: Tensor) -> Objective:
        """Compute the cross-entropy to the confident predictions."""
        logits = self.model(x)
        loss = confident_cross_entropy(logits, self.options.threshold)
        if loss is None:
            raise SkipStep(f"no sample is more confident than {self.options.threshold:g}", logits)
        return Objective(loss, logits)


def confident_cross_entropy(logits: Tensor, threshold: float) -> Tensor | None:
    """Return the mean cross-entropy to the model's own labels where it is confident; None where it is nowhere."""
    confidence, label = logits.detach().softmax(-1).max(-1)
    sure = confidence > threshold
    return F.cross_entropy(logits[sure], label[sure]) if bool(sure.any()) else None
