"""The labels of a dataset, if they can be the classes of the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cretta.data.dataset import FileDataset, ImageDataset
from cretta.errors import OptionError


class Labels:
    """The labels, if there are any and they fit the model, which the number of its first logits decides."""

    def __init__(self, dataset: ImageDataset, classes: tuple[str, ...], requested: bool | None) -> None:
        self._dataset = dataset
        self._requested = requested
        self.known = False
        """Whether that is decided."""
        self.classes = classes
        self.values: NDArray[np.int64] | None = None
        if requested and not self._exist:
            raise OptionError(
                f"labelled=True, but {dataset.name} has no labels; move the images into one folder per class, or take "
                "them without labels by labelled=False."
            )

    @property
    def _exist(self) -> bool:
        return bool((self._dataset.labels >= 0).all())

    def decide(self, outputs: int) -> None:
        """Decide by the number of classes of the model."""
        if self.known:
            return
        if self.classes and len(self.classes) != outputs:
            raise OptionError(
                f"the model has {outputs} classes, and {len(self.classes)} are named; name each of them, in order."
            )
        dataset = self._dataset
        if self._requested is not False and self._exist:
            # Written labels are meant as such; folders may have been named for another reason.
            written = self._requested or not isinstance(dataset, FileDataset)
            most = int(dataset.labels.max()) + 1
            if self._requested and most > outputs:
                raise OptionError(
                    f"labelled=True, but {dataset.name} has {most} classes and the model {outputs}; take the images "
                    "without labels by labelled=False."
                )
            if most <= outputs if written else len(dataset.classes) == outputs:
                self.values = dataset.labels
                if len(dataset.classes) == outputs:
                    self.classes = self.classes or dataset.classes
        self.known = True
