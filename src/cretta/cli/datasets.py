"""Datasets that commands know by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cretta.cli.console import note
from cretta.data import ImageDataset, cifar10, cifar100, embedded, tiny_imagenet_200
from cretta.data.catalogue import place
from cretta.data.folder import CLASSES, some

NAMED: dict[str, tuple[Callable[[Path | None], ImageDataset], Callable[[Path | None], ImageDataset]]] = {
    "embedded": (lambda root: embedded("train"), lambda root: embedded("test")),
    "cifar10": (
        lambda root: cifar10(place("cifar10", root), "train"),
        lambda root: cifar10(place("cifar10", root), "test"),
    ),
    "cifar100": (
        lambda root: cifar100(place("cifar100", root), "train"),
        lambda root: cifar100(place("cifar100", root), "test"),
    ),
    "tiny-imagenet-200": (
        lambda root: tiny_imagenet_200(place("tiny-imagenet-200", root), "train"),
        lambda root: tiny_imagenet_200(place("tiny-imagenet-200", root), "val"),
    ),
}
"""Training and test images, of datasets below a root."""


def note_order(folder: Path, classes: Sequence[str]) -> None:
    """Say that the order of a folder's classes is a guess."""
    note(
        f"the class folders of {folder} count as the model's classes in alphabetical order: "
        f"{some([f'{number} {name}' for number, name in enumerate(classes)])}. If the model has another order, list "
        f"its classes in {folder / CLASSES}, one per line."
    )
