"""Networks for RGB in [0, 1], by name or by class, with weights that ship or come from elsewhere."""

from cretta.models.open import open_model
from cretta.models.resnet import ResNet
from cretta.models.weights import build, load, load_checkpoint, names
from cretta.models.wide_resnet import WideResNet

__all__ = ["ResNet", "WideResNet", "build", "load", "load_checkpoint", "names", "open_model"]
