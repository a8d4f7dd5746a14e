"""Datasets of images and the corruptions that shift them."""

from cretta.data.cifar import embedded
from cretta.data.corruptions import CORRUPTIONS, corrupt
from cretta.data.dataset import ArrayDataset

__all__ = ["CORRUPTIONS", "ArrayDataset", "corrupt", "embedded"]
