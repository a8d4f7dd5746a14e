"""Hints about settings that are allowed, but probably not intended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cretta.adapter import Adapter
from cretta.data import FileDataset, ImageDataset
from cretta.data.folder import some

SMALL_BATCH = 8
"""Below so many images, the statistics of a batch are unreliable."""


def in_folders(dataset: ImageDataset) -> bool:
    """Return whether the images are files in more than one folder; images in one folder are often alike."""
    return isinstance(dataset, FileDataset) and len({file.parent for file in dataset.files}) > 1


def batch_advice(adapter: Adapter[Any], images: int, batch_size: int) -> Iterator[str]:
    """Yield hints on batches that are too small for the statistics that the adapter uses."""
    last = images % batch_size
    if adapter.statistics != "batch":
        return
    if batch_size < SMALL_BATCH:
        yield (
            f"the statistics of a batch of {batch_size} are unreliable; statistics='auto' mixes them with those of "
            "training."
        )
    elif 0 < last < SMALL_BATCH < images:
        yield f"the last batch has {last} of {batch_size} images: its statistics are unreliable."


def label_advice(dataset: ImageDataset, classes: Sequence[str]) -> Iterator[str]:
    """Yield a hint if folders of images could not be used as labels; ``classes`` are the model's, if it names them."""
    if not in_folders(dataset):
        return
    shown = f" ({some(classes)})" if classes else ""
    remedy = (
        "class_names=FILE, a list of its classes in the model's order, makes them labels"
        if classes
        else "labeled=True makes them labels"
    )
    yield f"the folders are not the classes of the model{shown}, so they are not used as labels; {remedy}."
