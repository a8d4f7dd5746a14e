"""A dataset whose images are corrupted when they are read."""

import numpy as np

from cretta.data.corruptions import check_corruption, corrupt
from cretta.data.dataset import ImageDataset, Indices, Pixels
from cretta.data.domains import domain_name


class CorruptedDataset:
    """A dataset with every image of ``source`` corrupted when it is read, in any order.

    Image i depends on the seed and on i only: it is the i-th of ``corrupt(all images, …)``. The other options are
    those of :func:`corrupt`. Name, labels and classes are those of the source; ``domain`` is corruption and severity,
    after the source's own domain if it has one: "sketch/fog/5".

    >>> from cretta.data import embedded
    >>> foggy = CorruptedDataset(embedded("test"), "fog", severity=3)
    >>> foggy.domain, foggy.read([1999, 7]).shape
    ('fog/3', (2, 32, 32, 3))
    """

    def __init__(
        self, source: ImageDataset, corruption: str, severity: int = 5, seed: int = 0, parameters: str | None = None
    ) -> None:
        check_corruption(corruption, severity, seed, parameters)
        self.source, self.corruption, self.severity = source, corruption, severity
        self.seed, self.parameters = seed, parameters
        self.name, self.labels, self.classes = source.name, source.labels, source.classes
        domain = domain_name(corruption, severity)
        self.domain = f"{source.domain}/{domain}" if source.domain else domain

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        # A negative index must give the same image.
        number = range(len(self))[index]
        return self.read([number], workers=1)[0], int(self.labels[number])

    def read(self, indices: Indices, *, workers: int | None = None) -> Pixels:
        """Return many corrupted images at once, uint8 (N, H, W, 3), on ``workers`` threads."""
        images = np.ascontiguousarray(self.source.read(indices, workers=workers))
        if len(images) == 0:
            return images
        return corrupt(
            images,
            self.corruption,
            self.severity,
            self.seed,
            parameters=self.parameters,
            indices=indices,
            workers=workers,
        )
