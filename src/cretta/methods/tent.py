"""TENT: fully test-time adaptation by entropy minimisation."""

from torch import Tensor

from cretta.adapter import Adapter
from cretta.functional import entropy
from cretta.method import Facts, Objective


class Tent(Adapter):
    """Entropy minimisation (Wang et al., 2021): L = mean H(p)."""

    name = "tent"
    facts = Facts(
        updates="norm affine", statistics="batch", source_data=False, logits="before", loss="H(p)", backwards=1
    )
    presets = {
        "cifar10": {"lr": 1e-3},
        "tiny-imagenet": {"lr": 1e-4},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd", "momentum": 0.9},
    }

    def objective(self, x: Tensor) -> Objective:
        """The mean entropy of the predictions."""
        logits = self.model(x)
        return Objective(loss=entropy(logits).mean(), logits=logits)
