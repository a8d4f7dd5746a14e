"""TENT: fully test-time adaptation by entropy minimization."""

from torch import Tensor

from cretta.adapter import Adapter
from cretta.functional import entropy
from cretta.method import Facts, Objective


class Tent(Adapter):
    """Entropy minimization (Wang et al., 2021): L = mean H(p)."""

    name = "tent"
    facts = Facts(updates="norm affine", statistics="batch", logits="before")
    presets = {
        "cifar10": {"lr": 1e-3},
        "tiny-imagenet": {"lr": 1e-4},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd", "momentum": 0.9},
    }

    def objective(self, x: Tensor) -> Objective:
        """Compute the mean entropy of the predictions."""
        logits = self.model(x)
        return Objective(loss=entropy(logits).mean(), logits=logits)
