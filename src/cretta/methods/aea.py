"""AEA: adaptive energy alignment."""

from __future__ import annotations

import dataclasses

import torch.nn.functional as F
from torch import Tensor, nn

from cretta.adapter import Adapter
from cretta.errors import ModelError, OptionError
from cretta.functional import energy, entropy
from cretta.method import Facts, Objective, Options
from cretta.options import choice, flag, number, text


@dataclasses.dataclass(frozen=True, kw_only=True)
class AEAOptions(Options):
    """What AEA can be told besides what every method can."""

    optimizer: str = choice("sgd", "which optimiser takes the step", among=("adam", "adamw", "sgd"))
    nesterov: bool = flag(True, "Nesterov momentum, for SGD")
    energy_weight: float = number(1.0, "λ2, the weight of energy alignment", at_least=0)
    similarity_weight: float = number(25.0, "λ3, the weight of logit similarity", at_least=0)
    threshold: float = number(0.99, "τ, least confidence for logit similarity", at_least=0, at_most=1)
    classifier: str | None = text(None, "name of the last linear layer; None finds it")


class AEA(Adapter[AEAOptions]):
    """Adaptive energy alignment (Choi et al., 2025).

    L = mean H + λ2 · mean softplus(E - Ē_low) + λ3 · mean over {p_max ≥ τ} of exp(p_max - τ) · (1 - cos(z, (W Wᵀ)[ŷ])),
    Ē_low the mean energy of the least-energy half and exp(p_max - τ) without gradient, W the last linear layer's
    weight. A batch without a confident sample has no similarity term; the others stay. W is that of the last
    ``nn.Linear`` in the network's order; where that is not the one that makes the logits, name it by ``classifier``.
    """

    name = "aea"
    facts = Facts(
        updates="norm affine",
        statistics="batch",
        source_data=False,
        logits="before",
        loss="H + softplus(E − Ē_low) + 25 · exp(p_max − τ)(1 − cos(z, (W Wᵀ)[ŷ]))",
        forwards=1,
        backwards=1,
    )
    option_type = AEAOptions

    def begin(self) -> None:
        """Finds the classifier's weight and what its classes would answer to their own weights."""
        weight = self._classifier_layer().weight.detach().flatten(1)
        self._prototypes = weight @ weight.T

    def objective(self, x: Tensor) -> Objective:
        """Entropy, energies drawn to the low ones, logits drawn to those of their class."""
        o = self.options
        logits = self.model(x)
        if len(self._prototypes) != logits.shape[1]:
            raise ModelError(
                f"the layer taken for the classifier has {len(self._prototypes)} outputs, the logits "
                f"{logits.shape[1]}; name the layer that makes the logits, as in classifier='head'."
            )
        energies = energy(logits, o.temperature)
        low = energies.detach().sort().values[: (len(x) + 1) // 2].mean()
        loss = entropy(logits).mean() + o.energy_weight * F.softplus(energies - low).mean()
        confidence, label = logits.detach().softmax(-1).max(-1)
        sure = confidence >= o.threshold
        if bool(sure.any()):
            apart = 1 - F.cosine_similarity(logits[sure], self._prototypes[label[sure]].to(logits.dtype), dim=-1)
            loss = loss + o.similarity_weight * ((confidence[sure] - o.threshold).exp() * apart).mean()
        return Objective(loss, logits)

    def _classifier_layer(self) -> nn.Linear | nn.Conv2d:
        name = self.options.classifier
        if name is None:
            linear = [module for module in self.net.modules() if isinstance(module, nn.Linear)]
            if not linear:
                raise ModelError(
                    f"{type(self.net).__name__} has no torch.nn.Linear to take for its classifier; name the layer that "
                    "makes the logits, as in classifier='head'."
                )
            return linear[-1]
        layer = dict(self.net.named_modules()).get(name)
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            raise OptionError(f"classifier={name!r}: net has no linear layer or convolution of that name.")
        return layer
