"""Random numbers that belong to an image, and do not depend on the batch."""

import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cretta.data.corruptions.pixels import Floats

Generator = np.random.Generator


class Draws:
    """One counter-based generator per image, keyed by seed, corruption and the image's own index."""

    def __init__(self, seed: int, name: str, severity: int, indices: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        self.seed, self.name, self.severity = seed, name, severity
        self.indices = np.asarray(indices, dtype=np.uint64)
        self.count = len(self.indices)

    @cached_property
    def generators(self) -> list[Generator]:
        """The generators, made only when a corruption is random."""
        stream = zlib.crc32(self.name.encode()) << 32
        # The highest counter word, so that no severity reuses the numbers of another.
        counter = np.array([0, 0, 0, self.severity], dtype=np.uint64)
        keys = np.empty((self.count, 2), dtype=np.uint64)
        keys[:, 0] = self.seed
        keys[:, 1] = self.indices + np.uint64(stream)
        return [Generator(np.random.Philox(key=key, counter=counter)) for key in keys]

    def uniform(self, low: float, high: float, *shape: int) -> Floats:
        """Return (count, *shape) values from U[low, high)."""
        values = self._filled(Generator.random, shape)
        if (low, high) != (0, 1):
            values *= np.float32(high - low)
            values += np.float32(low)
        return values

    def normal(self, *shape: int) -> Floats:
        """Return (count, *shape) values from N(0, 1)."""
        return self._filled(Generator.standard_normal, shape)

    def _filled(self, draw: Callable[..., Any], shape: tuple[int, ...]) -> Floats:
        values = np.empty((self.count, *shape), dtype=np.float32)
        for generator, row in zip(self.generators, values.reshape(self.count, -1), strict=True):
            draw(generator, out=row, dtype=np.float32)
        return values

    def integers(self, low: int, high: int, *shape: int) -> NDArray[np.int16]:
        """Return (count, *shape) integers from [low, high)."""
        return np.stack([generator.integers(low, high, shape, dtype=np.int16) for generator in self.generators])

    def poisson(self, rates: Floats) -> NDArray[np.int64]:
        """Return Poisson counts for (count, …) rates."""
        return np.stack([generator.poisson(rate) for generator, rate in zip(self.generators, rates, strict=True)])
