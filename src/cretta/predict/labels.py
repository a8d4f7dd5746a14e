"""Labels, if a dataset has any that are the model's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cretta.data.dataset import FileDataset, ImageDataset
from cretta.errors import OptionError


class Labels:
    """The labels, if there are any and they can be the model's, which the first answer shows."""

    def __init__(self, dataset: ImageDataset, classes: tuple[str, ...], wanted: bool | None) -> None:
        self._dataset = dataset
        self._wanted = wanted
        self.known = False
        """Whether there was an answer."""
        self.classes = classes
        self.values: NDArray[np.int64] | None = None
        if wanted and not self._there:
            raise OptionError(
                f"labelled=True, but {dataset.name} has no labels; move the images into one folder per class, or take "
                "them without labels by labelled=False."
            )

    @property
    def _there(self) -> bool:
        return bool((self._dataset.labels >= 0).all())

    def look_at(self, outputs: int) -> None:
        """Decides, by the number of classes that the model tells apart."""
        if self.known:
            return
        if self.classes and len(self.classes) != outputs:
            raise OptionError(
                f"the model has {outputs} classes, and {len(self.classes)} are named; name each of them, in order."
            )
        dataset = self._dataset
        if self._wanted is not False and self._there:
            # Labels that somebody wrote are meant as such; folders may have been named for another reason.
            written = self._wanted or not isinstance(dataset, FileDataset)
            most = int(dataset.labels.max()) + 1
            if self._wanted and most > outputs:
                raise OptionError(
                    f"labelled=True, but {dataset.name} has {most} classes and the model {outputs}; take the images "
                    "without labels by labelled=False."
                )
            if most <= outputs if written else len(dataset.classes) == outputs:
                self.values = dataset.labels
                if len(dataset.classes) == outputs:
                    self.classes = self.classes or dataset.classes
        self.known = True
