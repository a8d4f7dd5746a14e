"""A labelled set of images in memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cretta.errors import OptionError


@dataclass(frozen=True, eq=False)
class ArrayDataset:
    """Images (N, H, W, 3) as bytes, labels (N,), the class names, and the domain they come from."""

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    domain: str = ""

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[3] != 3:
            raise OptionError(
                f"images of {self.name} are {self.images.dtype} of shape {self.images.shape}: "
                "give uint8 of shape (N, H, W, 3)."
            )
        if self.labels.dtype != np.int64 or self.labels.shape != self.images.shape[:1]:
            raise OptionError(
                f"labels of {self.name} are {self.labels.dtype} of shape {self.labels.shape}: "
                f"give int64 of shape {self.images.shape[:1]}, one an image."
            )
        if len(self) and not (self.labels.min() >= 0 and self.labels.max() < len(self.classes)):
            raise OptionError(
                f"labels of {self.name} run from {self.labels.min()} to {self.labels.max()}: "
                f"give 0 to {len(self.classes) - 1}, one for each of the {len(self.classes)} classes."
            )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        return self.images[index], int(self.labels[index])
