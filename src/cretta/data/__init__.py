"""Datasets of images and the corruptions that shift them."""

from cretta.data.cifar import cifar10, cifar100, cifar_c, embedded
from cretta.data.corrupted import CorruptedDataset
from cretta.data.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS, corrupt
from cretta.data.dataset import ArrayDataset, FileDataset, ImageDataset
from cretta.data.folder import image_folder, labeled_csv, numpy_file
from cretta.data.imagenet import imagenet_c, imagenet_validation, tiny_imagenet, tiny_imagenet_c
from cretta.data.pacs import pacs_domain
from cretta.data.registry import dataset_path

__all__ = [
    "CORRUPTIONS",
    "VALIDATION_CORRUPTIONS",
    "ArrayDataset",
    "CorruptedDataset",
    "FileDataset",
    "ImageDataset",
    "cifar10",
    "cifar100",
    "cifar_c",
    "corrupt",
    "dataset_path",
    "embedded",
    "image_folder",
    "imagenet_c",
    "imagenet_validation",
    "labeled_csv",
    "numpy_file",
    "pacs_domain",
    "tiny_imagenet",
    "tiny_imagenet_c",
]
