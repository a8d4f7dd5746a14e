"""PL: pseudo-labels."""

from __future__ import annotations

import dataclasses

import torch.nn.functional as F
from torch import Tensor

from cretta.adapter import Adapter
from cretta.method import Facts, Objective, Options
from cretta.options import number


@dataclasses.dataclass(frozen=True, kw_only=True)
class PLOptions(Options):
    """What PL can be told besides what every method can."""

    lr: float = number(1e-5, "learning rate", above=0)
    threshold: float = number(0.9, "least confidence of a pseudo-label", at_least=0, below=1)


class PL(Adapter[PLOptions]):
    """Pseudo-labels (Lee, 2013): L = mean CE(z, argmax z) over the samples with max p > 0.9.

    Alone among the methods it updates every parameter, and keeps the statistics of training.
    """

    name = "pl"
    facts = Facts(
        updates="all",
        statistics="running",
        source_data=False,
        logits="before",
        loss="CE(z, argmax z) where max p > 0.9",
        forwards=1,
        backwards=1,
    )
    option_type = PLOptions

    def objective(self, x: Tensor) -> Objective:
        """Cross-entropy to the confident predictions."""
        logits = self.model(x)
        loss = confident_cross_entropy(logits, self.options.threshold)
        reason = f"no sample is more confident than {self.options.threshold:g}" if loss is None else ""
        return Objective(loss, logits, reason)


def confident_cross_entropy(logits: Tensor, threshold: float) -> Tensor | None:
    """Mean cross-entropy to the model's own labels where it is sure of them; None where it never is."""
    confidence, label = logits.detach().softmax(-1).max(-1)
    sure = confidence > threshold
    return F.cross_entropy(logits[sure], label[sure]) if bool(sure.any()) else None
