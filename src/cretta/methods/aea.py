"""AEA: adaptive energy alignment."""

from __future__ import annotations

import dataclasses

import torch.nn.functional as F
from torch import Tensor, nn

from cretta.adapter import Adapter
from cretta.errors import ModelError, OptionError
from cretta.functional import energy, entropy
from cretta.method import OPTIMIZERS, Facts, Objective, Options
from cretta.options import choice, flag, number, text


@dataclasses.dataclass(frozen=True, kw_only=True)
class AEAOptions(Options):
    """Options of AEA."""

    optimizer: str = choice("sgd", "which optimizer takes the step", among=OPTIMIZERS)
    nesterov: bool = flag(True, "Nesterov momentum, for SGD")
    energy_weight: float = number(1.0, "λ2, the weight of energy alignment", at_least=0)
    similarity_weight: float = number(25.0, "λ3, the weight of logit similarity", at_least=0)
    threshold: float = number(0.99, "τ, least confidence for logit similarity", at_least=0, at_most=1)
    classifier: str | None = text(None, "name of the last linear layer; None finds it")


class AEA(Adapter[AEAOptions]):
    """Adaptive energy alignment (Choi et al., 2025).

    L = H(p) + λ2 · softplus(E − Ē_low) + λ3 · exp(p_max − τ)(1 − cos(z, (W Wᵀ)[ŷ])) where p_max ≥ τ.

    Each term is a mean. Ē_low is the mean energy of the half with the lowest energies; exp(p_max − τ) has no gradient.
    W is the weight of the last ``nn.Linear`` in the network's order; where another layer makes the logits, name it by
    ``classifier``. A batch without a confident sample has no similarity term.
    """

    name = "aea"
    facts = Facts(updates="norm affine", statistics="batch", logits="before")

    def begin(self) -> None:
        """Compute the logits that each class would give to its own weights."""
        weight = self._classifier_layer().weight.detach().flatten(1)
        self._prototypes = weight @ weight.T

    def objective(self, x: Tensor) -> Objective:
        """Compute entropy, alignment to low energies, and similarity to the logits of the class."""
        o = self.options
        logits = self.model(x)
        if len(self._prototypes) != logits.shape[1]:
            raise ModelError(
                f"expected a classifier layer with {logits.shape[1]} outputs, as many as logits, got "
                f"{len(self._prototypes)}; name the layer that makes the logits, as in classifier='head'."
            )
        energies = energy(logits, o.temperature)
        low = energies.detach().sort().values[: (len(x) + 1) // 2].mean()
        loss = entropy(logits).mean() + o.energy_weight * F.softplus(energies - low).mean()
        confidence, label = logits.detach().softmax(-1).max(-1)
        sure = confidence >= o.threshold
        if bool(sure.any()):
            distance = 1 - F.cosine_similarity(logits[sure], self._prototypes[label[sure]].to(logits.dtype), dim=-1)
            loss = loss + o.similarity_weight * ((confidence[sure] - o.threshold).exp() * distance).mean()
        return Objective(loss, logits)

    def _classifier_layer(self) -> nn.Linear | nn.Conv2d:
        name = self.options.classifier
        if name is None:
            linear = [module for module in self.net.modules() if isinstance(module, nn.Linear)]
            if not linear:
                raise ModelError(
                    f"expected a torch.nn.Linear as classifier, {type(self.net).__name__} has none; name the layer "
                    "that makes the logits, as in classifier='head'."
                )
            return linear[-1]
        layer = dict(self.net.named_modules()).get(name)
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            raise OptionError(f"classifier={name!r}: net has no linear layer or convolution of that name.")
        return layer
