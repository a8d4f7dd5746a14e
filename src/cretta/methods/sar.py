"""SAR: sharpness-aware and reliable entropy minimisation."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from cretta.adapter import Adapter
from cretta.functional import entropy
from cretta.learner import NOT_FINITE
from cretta.method import Facts, Objective, Options
from cretta.methods.eata import PAPER_MARGIN
from cretta.options import choice, number


@dataclasses.dataclass(frozen=True, kw_only=True)
class SAROptions(Options):
    """What SAR can be told besides what every method can."""

    lr: float = number(0.01, "learning rate", above=0)
    optimizer: str = choice("sgd", "which optimiser takes the step", among=("adam", "adamw", "sgd"))
    entropy_margin: float | None = number(None, "e: reliable is H < e; None is 0.4 · ln C", above=0)
    radius: float = number(0.05, "ρ, how far the ascent goes", at_least=0)
    decay: float = number(0.9, "how much of the moving loss is kept", at_least=0, below=1)
    reset_below: float = number(0.2, "the moving loss below which the model counts as collapsed", at_least=0)


class SAR(Adapter[SAROptions]):
    """Sharpness-aware and reliable entropy minimisation (Niu et al., 2023).

    The entropy of the reliable samples, H < e, is descended by its gradient at θ + ρ g/‖g‖, there over those of
    them that are still reliable. When the moving average of that second loss falls below 0.2, the model returns to
    the source with its optimiser, and the average is forgotten.
    """

    name = "sar"
    facts = Facts(
        updates="norm affine",
        statistics="batch",
        source_data=False,
        logits="before",
        loss="H where H < e, at θ + ρ g/‖g‖",
        forwards=2,
        backwards=2,
    )
    presets = {
        "paper": {"entropy_margin": PAPER_MARGIN},
        "tuned": {"entropy_margin": None},
        "cifar100": {"lr": 1e-3},
        "tiny-imagenet": {"lr": 1e-3},
        "imagenet": {"lr": 2.5e-4, "skip": ("layer4",)},
        "imagenet_vit": {"lr": 1e-3, "skip": ("blocks.9", "blocks.10", "blocks.11", "norm")},
    }
    option_type = SAROptions

    def objective(self, x: Tensor) -> Objective:
        """The entropy of the reliable samples, where the parameters are."""
        logits = self.model(x)
        kept = self._reliable(entropy(logits), logits.shape[1])
        loss = kept.mean() if len(kept) else None
        return Objective(loss, logits, reason="" if len(kept) else "no sample is reliable")

    def update(self, x: Tensor, objective: Objective) -> str:
        """Up the gradient, then down the gradient found there, from where the parameters were."""
        if objective.loss is None:
            return objective.reason
        first = entropy(objective.logits.detach())
        self.backward(objective.loss)
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in self.parameters.gradients()]))
        climbed = [
            f.detach() + g * (self.options.radius / (norm + 1e-12))
            for f, g in zip(self.parameters.flat, self.parameters.gradients(), strict=True)
        ]
        with self.parameters.at(climbed):
            again = entropy(self.model(x, role="probe"))[first < self._margin(objective.logits.shape[1])]
            kept = self._reliable(again, objective.logits.shape[1])
            if not len(kept):
                return "no sample is reliable after the ascent" if self.finite() else NOT_FINITE
            second = kept.mean()
            self.backward(second)
            if not self.finite():
                return NOT_FINITE
        self.step()
        self._watch_loss(second.detach(), objective)
        return ""

    def _watch_loss(self, loss: Tensor, objective: Objective) -> None:
        average = self.memory.get("loss")
        decay = self.options.decay
        average = loss if average is None else decay * average + (1 - decay) * loss
        self.memory["loss"] = average
        if float(average) < self.options.reset_below:
            self.load(self.initial)
            objective.reason = f"the moving loss fell to {float(average):.3f}: reset to the source model"

    def _reliable(self, uncertainty: Tensor, classes: int) -> Tensor:
        return uncertainty[uncertainty.detach() < self._margin(classes)]

    def _margin(self, classes: int) -> float:
        given = self.options.entropy_margin
        return 0.4 * math.log(classes) if given is None else given
