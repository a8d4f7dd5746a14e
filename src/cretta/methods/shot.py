"""SHOT, online, and SHOT-IM: information maximization, with or without pseudo-labels."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from cretta.adapter import Adapter
from cretta.functional import entropy
from cretta.method import Facts, Objective, Options
from cretta.methods.pl import confident_cross_entropy
from cretta.options import number


@dataclasses.dataclass(frozen=True, kw_only=True)
class SHOTOptions(Options):
    """Options of SHOT."""

    pseudo: float = number(0.3, "λ, the weight of the pseudo-labels", at_least=0)
    threshold: float = number(0.9, "c, least confidence of a pseudo-label", at_least=0, below=1)


class SHOT(Adapter[SHOTOptions]):
    """SHOT (Liang et al., 2020), online: L = mean H(p) − H(p̄) + λ · CE(z, argmax z) where max p > c.

    p̄ is the mean prediction of the batch. A batch without a confident sample has no pseudo-label term.
    """

    name = "shot"
    facts = Facts(updates="norm affine", statistics="batch", logits="before")
    presets = {
        "cifar10": {"lr": 1e-3},
        "cifar100": {"lr": 1e-4},
        "tiny-imagenet": {"lr": 1e-5},
    }

    def objective(self, x: Tensor) -> Objective:
        """Compute the information that predictions carry, and the cross-entropy to the confident ones."""
        logits = self.model(x)
        loss = information_loss(logits)
        pseudo = confident_cross_entropy(logits, self.options.threshold) if self.options.pseudo else None
        return Objective(loss if pseudo is None else loss + self.options.pseudo * pseudo, logits)


class SHOTIM(Adapter):
    """SHOT without its pseudo-labels: L = mean H(p) − H(p̄)."""

    name = "shot_im"
    facts = SHOT.facts
    presets = SHOT.presets

    def objective(self, x: Tensor) -> Objective:
        """Compute the information that predictions carry."""
        logits = self.model(x)
        return Objective(information_loss(logits), logits)


def information_loss(logits: Tensor) -> Tensor:
    """Return mean H(p) + Σ_k p̄_k log p̄_k, low for predictions that are each certain and together diverse."""
    mean = logits.softmax(-1).mean(0)
    return entropy(logits).mean() + (mean * (mean + 1e-5).log()).sum()
