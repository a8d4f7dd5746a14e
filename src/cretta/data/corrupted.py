"""A dataset whose images are corrupted when they are read."""

from dataclasses import dataclass

import numpy as np

from cretta.data.corruptions import check_corruption, corrupt
from cretta.data.dataset import ImageDataset, Indices, Labels, Pixels
from cretta.data.domains import domain_name


def corrupted(
    dataset: ImageDataset, corruption: str, severity: int = 5, *, seed: int = 0, parameters: str | None = None
) -> "CorruptedDataset":
    """Return ``dataset`` with every image corrupted when it is read, in any order.

    Image i depends on the seed and on i only: it is the i-th of ``corrupt(all images, …)``. The other options are
    those of :func:`corrupt`.

    >>> from cretta.data import embedded
    >>> foggy = corrupted(embedded("test"), "fog", severity=3)
    >>> foggy.domain, foggy.read([1999, 7]).shape
    ('fog/3', (2, 32, 32, 3))
    """
    return CorruptedDataset(dataset, corruption, severity, seed, parameters)


@dataclass(frozen=True, eq=False)
class CorruptedDataset:
    """The result of :func:`corrupted`. Name, labels and classes are those of the ``source``."""

    source: ImageDataset
    corruption: str
    severity: int = 5
    seed: int = 0
    parameters: str | None = None

    def __post_init__(self) -> None:
        check_corruption(self.corruption, self.severity, self.seed, self.parameters)

    @property
    def name(self) -> str:
        """The source's name; the domain distinguishes both."""
        return self.source.name

    @property
    def labels(self) -> Labels:
        """The source's labels."""
        return self.source.labels

    @property
    def classes(self) -> tuple[str, ...]:
        """The source's classes."""
        return self.source.classes

    @property
    def domain(self) -> str:
        """Corruption and severity, such as "fog/5", after the source's own domain if it has one: "sketch/fog/5"."""
        domain = domain_name(self.corruption, self.severity)
        return f"{self.source.domain}/{domain}" if self.source.domain else domain

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        # A negative index must give the same image.
        number = range(len(self))[index]
        image, label = self.source[number]
        return self._corrupt(image[None], [number])[0], label

    def read(self, indices: Indices, *, workers: int | None = None) -> Pixels:
        """Return many corrupted images at once, uint8 (N, H, W, 3), on ``workers`` threads."""
        images = self.source.read(indices, workers=workers)
        return self._corrupt(images, indices, workers) if len(images) else images

    def _corrupt(self, images: Pixels, indices: Indices, workers: int | None = None) -> Pixels:
        return corrupt(
            np.ascontiguousarray(images),
            self.corruption,
            self.severity,
            self.seed,
            parameters=self.parameters,
            indices=indices,
            workers=workers,
        )
