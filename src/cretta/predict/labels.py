"""The labels of a dataset, if they can be the classes of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cretta.data.dataset import FileDataset, ImageDataset
from cretta.errors import OptionError


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
