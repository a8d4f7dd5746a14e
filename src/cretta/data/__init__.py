"""Datasets of images and the corruptions that shift them."""

from cretta.data.cifar import embedded
from cretta.data.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS, corrupt
from cretta.data.dataset import ArrayDataset

__all__ = ["CORRUPTIONS", "VALIDATION_CORRUPTIONS", "ArrayDataset", "corrupt", "embedded"]
