"""Streams: batches of target samples in an order that may hurt.

A stream visits every sample of its domains exactly once. It yields indices, not images: who reads it decides when to
decode them. The order depends on the seed alone, and each batch says which domains its samples are of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cretta.errors import OptionError

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Which samples come next: ``indices[k]`` of the domain ``names[domains[k]]``."""

    indices: Indices
    domains: Indices
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def domain(self) -> str:
        """The domain's name; several are joined by +."""
        return "+".join(name for name, _, _ in self.parts())

    def parts(self) -> Iterator[tuple[str, Indices, Indices]]:
        """For each domain in the batch: its name, the positions of its samples in the batch, and their indices."""
        for domain in np.unique(self.domains):
            positions = np.flatnonzero(self.domains == domain)
            yield self.names[domain], positions, self.indices[positions]


class Stream:
    """Batches in a fixed order."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = tuple(batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __add__(self, other: Stream) -> Stream:
        """One stream and then the other, without a pause between."""
        return Stream([*self, *other])

    @property
    def images(self) -> int:
        """How many samples come in all."""
        return sum(map(len, self))


def ordered(order: Sequence[int] | Indices, batch_size: int, *, domain: str = "") -> Stream:
    """Samples in an order of the user's own.

    >>> [batch.indices.tolist() for batch in ordered([4, 2, 0, 1, 3], batch_size=2)]
    [[4, 2], [0, 1], [3]]
    """
    found = np.asarray(order)
    if found.ndim != 1 or found.dtype.kind not in "iu" or found.size == 0 or found.min() < 0:
        raise OptionError("order must be a non-empty sequence of whole numbers from 0 up.")
    if len(np.unique(found)) != len(found):
        raise OptionError("order names a sample twice; a stream visits each once.")
    return _cut(found.astype(np.int64), np.zeros(len(found), dtype=np.int64), (domain,), batch_size)


def iid(count: int, batch_size: int, *, seed: int = 0, domain: str = "") -> Stream:
    """``count`` samples in random order."""
    return ordered(np.random.default_rng(seed).permutation(_whole("count", count)), batch_size, domain=domain)


def dirichlet(
    labels: Sequence[int] | Indices, batch_size: int, delta: float, *, seed: int = 0, domain: str = ""
) -> Stream:
    """Class-imbalanced batches: each class is spread over the batches in proportions from a symmetric Dirichlet(δ).

    Large δ is close to i.i.d.; at small δ single classes fill whole batches. There are ceil(N / batch_size) places for
    the proportions to fall on; the samples, place by place and shuffled within, are then cut into batches of equal
    size, as a deployed model receives them.
    """
    found = np.asarray(labels)
    if found.ndim != 1 or found.dtype.kind not in "iu" or found.size == 0:
        raise OptionError(f"labels have shape {found.shape} and type {found.dtype}; needed is a class number a sample.")
    if isinstance(delta, bool) or not 0 < delta < np.inf:
        raise OptionError(f"delta={delta!r}: must be a number above 0; the paper uses 10, 1, 0.1 and 0.01.")
    generator = np.random.default_rng(seed)
    places = -(-len(found) // _whole("batch_size", batch_size))
    place = np.empty(len(found), dtype=np.int64)
    for label in np.unique(found):
        members = generator.permutation(np.flatnonzero(found == label))
        place[members] = np.repeat(np.arange(places), spread(len(members), places, delta, generator))
    order = np.lexsort((generator.random(len(found)), place))
    return ordered(order, batch_size, domain=domain)


def spread(count: int, places: int, delta: float, generator: np.random.Generator) -> Indices:
    """How many of ``count`` samples fall on each place, in proportions from a symmetric Dirichlet(δ)."""
    # In logarithms, and by G(δ) = G(δ + 1) · U^(1/δ): at small δ plain gamma variates are all zero.
    logs = np.log(generator.gamma(delta + 1, size=places)) + np.log1p(-generator.random(places)) / delta
    shares = np.exp(logs - logs.max())
    edges: Indices = np.rint(np.cumsum(shares) / shares.sum() * count).astype(np.int64)
    return np.asarray(np.diff(edges, prepend=0))


def continual(counts: Mapping[str, int], batch_size: int, *, seed: int = 0) -> Stream:
    """Domain after domain without a reset, each in random order; ``counts`` says how many samples each has.

    Gradual shift is the same with domains in the order of their severity: :func:`gradual`.
    """
    if not counts:
        raise OptionError("counts is empty; needed is the number of samples of at least one domain.")
    streams = [
        iid(count, batch_size, seed=seed + number, domain=domain)
        for number, (domain, count) in enumerate(counts.items())
    ]
    return sum(streams[1:], streams[0])


def gradual(count: int, batch_size: int, *, severities: Sequence[int] = (1, 2, 3, 4, 5), seed: int = 0) -> Stream:
    """Source, the severities upwards, and source again, ``count`` samples each.

    Domains are named "source", "severity 1", …, "source again". For the last the paper freezes the model, to measure
    what was forgotten: predict without adapting.
    """
    names = ["source", *(f"severity {severity}" for severity in severities), "source again"]
    return continual(dict.fromkeys(names, count), batch_size, seed=seed)


def mixed(counts: Mapping[str, int], batch_size: int, *, seed: int = 0) -> Stream:
    """All domains at once, shuffled together."""
    if not counts:
        raise OptionError("counts is empty; needed is the number of samples of at least one domain.")
    sizes = [_whole(f"counts[{name!r}]", count) for name, count in counts.items()]
    domains = np.repeat(np.arange(len(sizes)), sizes)
    indices = np.concatenate([np.arange(size) for size in sizes])
    order = np.random.default_rng(seed).permutation(len(indices))
    return _cut(indices[order], domains[order], tuple(counts), batch_size)


def _cut(indices: Indices, domains: Indices, names: tuple[str, ...], batch_size: int) -> Stream:
    size = _whole("batch_size", batch_size)
    windows = [slice(start, start + size) for start in range(0, len(indices), size)]
    return Stream([Batch(indices[window], domains[window], names) for window in windows])


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise OptionError(f"{name}={value!r}: must be a whole number, at least 1.")
    return int(value)
