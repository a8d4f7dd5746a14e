"""Small networks without training, for the scale smoke: that everything runs can be seen without weights."""

from functools import partial

import torch

from cretta.models import build
from cretta.models.classifier import Classifier


def _network(classes: int) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build("resnet-8", classes=classes)


cifar10, cifar100, tiny_imagenet, pacs = (partial(_network, classes) for classes in (10, 100, 200, 7))
