"""SHOT, online, and SHOT-IM: information maximisation, with or without pseudo-labels."""

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
    """What SHOT can be told besides what every method can."""

    pseudo: float = number(0.3, "weight of the pseudo-labels", at_least=0)
    threshold: float = number(0.9, "least confidence of a pseudo-label", at_least=0, below=1)


class SHOT(Adapter[SHOTOptions]):
    """Source hypothesis transfer (Liang et al., 2020), online: L = mean H + Σ_k p̄_k log p̄_k + c · CE of the sure.

    p̄ is the batch's mean prediction. A batch without a sure sample has no pseudo-label term; the others stay.
    """

    name = "shot"
    facts = Facts(
        updates="norm affine",
        statistics="batch",
        source_data=False,
        logits="before",
        loss="H(p) − H(p̄) + 0.3 · CE(z, argmax z) where max p > 0.9",
        forwards=1,
        backwards=1,
    )
    presets = {
        "cifar10": {"lr": 1e-3},
        "cifar100": {"lr": 1e-4},
        "tiny-imagenet": {"lr": 1e-5},
    }
    option_type = SHOTOptions

    def objective(self, x: Tensor) -> Objective:
        """Sure of every sample, even-handed over all, and true to its confident predictions."""
        logits = self.model(x)
        mean = logits.softmax(-1).mean(0)
        loss = entropy(logits).mean() + (mean * (mean + 1e-5).log()).sum()
        pseudo = confident_cross_entropy(logits, self.options.threshold) if self.options.pseudo else None
        return Objective(loss if pseudo is None else loss + self.options.pseudo * pseudo, logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SHOTIMOptions(SHOTOptions):
    """SHOT's, without pseudo-labels."""

    pseudo: float = number(0.0, "weight of the pseudo-labels", at_least=0)


class SHOTIM(SHOT):
    """SHOT without its pseudo-labels: L = mean H + Σ_k p̄_k log p̄_k."""

    name = "shot_im"
    facts = dataclasses.replace(SHOT.facts, loss="H(p) − H(p̄)")
    option_type = SHOTIMOptions
