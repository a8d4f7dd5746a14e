"""Gentle entropy: minimize the entropy of the predictions that are neither certain nor hopeless."""

from __future__ import annotations

import dataclasses
import math

from torch import Tensor

from cretta.adapter import Adapter
from cretta.errors import SkipStep
from cretta.functional import entropy
from cretta.method import Facts, Objective, Options
from cretta.options import number


@dataclasses.dataclass(frozen=True, kw_only=True)
class GentleOptions(Options):
    """Options of Gentle."""

    strength: float = number(1.0, "λ, the weight of the loss", above=0)


class Gentle(Adapter[GentleOptions]):
    """L = λ · mean H(p) where 0.1 ln C < H < 0.7 ln C."""

    name = "gentle"
    facts = Facts(updates="norm affine", statistics="batch", logits="before")

    def objective(self, x: Tensor) -> Objective:
        """Compute the mean entropy of the selected predictions."""
        logits = self.model(x)
        share = entropy(logits) / math.log(logits.shape[1])
        selected = (share > 0.1) & (share < 0.7)
        if not selected.any():
            raise SkipStep("no prediction is between certain and hopeless", logits)
        return Objective(loss=self.options.strength * entropy(logits)[selected].mean(), logits=logits)
