"""Open the images to predict, a folder of files or a file of many, and their labels if a model can have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cretta.data.dataset import FileDataset, ImageDataset, Size
from cretta.data.folder import class_file, image_folder, images_in, numpy_file, subfolders
from cretta.errors import OptionError, StateError


def open_images(
    path: str | Path,
    *,
    size: Size = None,
    labeled: bool | None = None,
    classes: Sequence[str] = (),
) -> ImageDataset:
    """Open a folder of images, flat, nested or by class, or a .npy file of them.

    ``labeled=None`` takes folders for classes if they are among the names in ``classes``, or if none are given; other
    folders only hold images. A file classes.txt that :func:`~cretta.data.image_folder` reads names the folders where
    ``classes`` does not. ``size`` scales the images of a folder as :class:`~cretta.data.FileDataset` says.
    """
    source = Path(path)
    if source.is_dir():
        return _folder(source, size, labeled, classes)
    if source.suffix != ".npy" or not source.is_file():
        state = "a file of another kind" if source.exists() else "not there"
        raise StateError(f"{source} is {state}: give a folder of images, or a .npy file of many.")
    if size is not None:
        raise OptionError(f"images of {source} keep the size they have, and size {size} was given; leave it out.")
    return numpy_file(source)


def _folder(source: Path, size: Size, labeled: bool | None, classes: Sequence[str]) -> FileDataset:
    folders = {folder.name for folder in subfolders(source)}
    if not folders <= set(classes) and class_file(source) is not None:
        classes = ()
    if labeled or (labeled is None and may_be_classes(source, classes) and not images_in(source)):
        try:
            return image_folder(source, labeled=True, classes=classes or None, size=size)
        except StateError:
            if labeled or class_file(source) is not None:
                raise
            # A folder without images: the folders are not classes.
    return image_folder(source, labeled=False, size=size)


def may_be_classes(source: Path, classes: Sequence[str]) -> bool:
    """Return whether the folders in ``source`` could be classes: by the model's names, if known, or classes.txt."""
    folders = {folder.name for folder in subfolders(source)}
    return bool(folders) and (not classes or folders <= set(classes) or class_file(source) is not None)


def usable_labels(
    dataset: ImageDataset, requested: bool | None, outputs: int, classes: Sequence[str]
) -> tuple[NDArray[np.int64] | None, Sequence[str]]:
    """Return the labels, or None, and the names of the classes of a model with so many ``outputs``.

    ``requested=None`` takes labels if they fit. ``classes`` are the names, if known; otherwise they are the dataset's.
    """
    if classes and len(classes) != outputs:
        raise OptionError(
            f"the model has {outputs} classes, and {len(classes)} are named; name each of them, in order."
        )
    if requested is False or not has_labels(dataset):
        return None, classes
    count = int(dataset.labels.max()) + 1
    if requested and count > outputs:
        raise OptionError(
            f"labeled=True, but {dataset.name} has {count} classes and the model {outputs}; take the images without "
            "labels by labeled=False."
        )
    # Written labels are meant as such; folders may have been named for another reason.
    written = requested or not isinstance(dataset, FileDataset)
    if not (count <= outputs if written else len(dataset.classes) == outputs):
        return None, classes
    return dataset.labels, classes or (dataset.classes if len(dataset.classes) == outputs else ())


def has_labels(dataset: ImageDataset) -> bool:
    """Return whether the images have labels."""
    return bool((dataset.labels >= 0).all())
