"""Hints about settings that are allowed, but probably not intended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cretta.adapter import Adapter
from cretta.data import FileDataset, ImageDataset
from cretta.data.folder import images_in, some
from cretta.predict.images import has_labels, may_be_classes

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
            f"the statistics of a batch of {batch_size} are unreliable; use statistics='moving' for images in mixed "
            "order, or statistics='auto', which uses those of training for such batches."
        )
    elif 0 < last < SMALL_BATCH < images:
        yield f"the last batch has {last} of {batch_size} images: its statistics are unreliable."


def loose_advice(dataset: ImageDataset, source: Path, classes: Sequence[str] = ()) -> Iterator[str]:
    """Yield a hint on images beside class folders in ``source``, from which the dataset was opened."""
    loose = images_in(source) if source.is_dir() and may_be_classes(source, classes) else []
    labeled = has_labels(dataset)
    if not loose or (not labeled and len(loose) == len(dataset)):
        return
    seen = f"images beside the class folders of {source} ({len(loose)}, such as {loose[0].name}) have no label"
    if labeled:
        yield f"{seen} and are left out."
    else:
        yield f"{seen}, so all images are taken without labels; move them elsewhere to use the folders as labels."


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
