"""SAR: sharpness-aware and reliable entropy minimization."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from cretta.adapter import Adapter
from cretta.errors import SkipStep
from cretta.functional import entropy, entropy_margin
from cretta.method import OPTIMIZERS, Facts, Objective, Options
from cretta.options import choice, number


@dataclasses.dataclass(frozen=True, kw_only=True)
class SAROptions(Options):
    """Options of SAR."""

    lr: float = number(0.01, "learning rate", above=0)
    optimizer: str = choice("sgd", "which optimizer takes the step", among=OPTIMIZERS)
    entropy_margin: float | None = number(None, "e: reliable is H < e; None is 0.4 · ln C", above=0)
    radius: float = number(0.05, "ρ, how far the ascent goes", at_least=0)
    decay: float = number(0.9, "weight of the past in the moving loss", at_least=0, below=1)
    reset_below: float = number(0.2, "the moving loss below which the model counts as collapsed", at_least=0)


class SAR(Adapter[SAROptions]):
    """Sharpness-aware and reliable entropy minimization (Niu et al., 2023): L = mean H(p) where H < e, at θ + ρ g/‖g‖.

    g is the gradient of the same loss at θ; at θ + ρ g/‖g‖ only samples count that are reliable at both. When the
    moving average of that second loss falls below ``reset_below``, the model and its optimizer return to the source.
    """

    name = "sar"
    facts = Facts(updates="norm affine", statistics="batch", logits="before", forwards=2, backwards=2)
    presets = {
        "paper": {"entropy_margin": entropy_margin(1000)},
        "tuned": {"entropy_margin": None},
        "cifar100": {"lr": 1e-3},
        "tiny-imagenet": {"lr": 1e-3},
        "imagenet": {"lr": 2.5e-4, "skip": ("layer4",)},
        "imagenet_vit": {"lr": 1e-3, "skip": ("blocks.9", "blocks.10", "blocks.11", "norm")},
    }

    def objective(self, x: Tensor) -> Objective:
        """Compute the entropy of the reliable samples at θ."""
        logits = self.model(x)
        entropies = entropy(logits)
        reliable = entropies.detach() < entropy_margin(logits.shape[1], self.options.entropy_margin)
        if not bool(reliable.any()):
            raise SkipStep("no sample is reliable", logits)
        return Objective(entropies[reliable].mean(), logits)

    def update(self, x: Tensor, objective: Objective) -> None:
        """Move to θ + ρ g/‖g‖, compute the gradient there, and take the step from θ."""
        margin = entropy_margin(objective.logits.shape[1], self.options.entropy_margin)
        self.backward(*objective.terms)
        gradients = self.learnable.gradients()
        scale = self.options.radius / (torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients])) + 1e-12)
        ascended = [flat.detach() + g * scale for flat, g in zip(self.learnable.flat, gradients, strict=True)]
        with self.learnable.at(ascended):
            again = entropy(self.model.probe(x))[entropy(objective.logits.detach()) < margin]
            reliable = again[again.detach() < margin]
            if not len(reliable):
                raise SkipStep("no sample is reliable after the ascent")
            loss = reliable.mean()
            self.backward(loss)
        self.step()
        average, decay = self.memory.get("loss"), self.options.decay
        self.memory["loss"] = loss.detach() if average is None else decay * average + (1 - decay) * loss.detach()
        if float(self.memory["loss"]) < self.options.reset_below:
            self.restart(f"the moving loss fell to {float(self.memory['loss']):.3f}: reset to the source model")
