"""Streams: batches of target samples in an order, and the loop that takes a model through them.

A stream visits every sample of its domains exactly once. It yields indices, not images: the reader decides when to
decode them. The order depends on the seed alone, and each batch says which domains its samples are from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cretta.errors import OptionError
from cretta.options import check_integer
from cretta.prefetch import prefetch

Indices = npt.NDArray[np.int64]
Extra = TypeVar("Extra")


@dataclass(frozen=True, eq=False)
class Batch:
    """The samples that come next: ``indices[k]`` of the domain number ``domains[k]``."""

    number: int
    indices: Indices
    domains: Indices
    adapts: bool = True
    """Whether the model may adapt to the batch; otherwise it only predicts."""

    def __len__(self) -> int:
        return len(self.indices)

    def parts(self) -> Iterator[tuple[int, Indices, Indices]]:
        """Yield for each domain its number, the positions of its samples in the batch, and their indices."""
        for domain in np.unique(self.domains):
            positions = np.flatnonzero(self.domains == domain)
            yield int(domain), positions, self.indices[positions]


Stream = Sequence[Batch]


def ordered(order: Sequence[int] | Indices, batch_size: int) -> Stream:
    """Return the samples in an order of the user's own.

    >>> [batch.indices.tolist() for batch in ordered([4, 2, 0, 1, 3], batch_size=2)]
    [[4, 2], [0, 1], [3]]
    """
    indices = np.asarray(order)
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or indices.size == 0 or indices.min() < 0:
        raise OptionError("order: expected a non-empty sequence of whole numbers from 0 up.")
    if len(np.unique(indices)) != len(indices):
        raise OptionError("order names a sample twice; a stream visits each once.")
    return _batches(indices.astype(np.int64), np.zeros(len(indices), dtype=np.int64), batch_size)


def iid(count: int, batch_size: int, *, seed: int = 0) -> Stream:
    """Return ``count`` samples in random order."""
    return continual([count], batch_size, seed=seed)


def dirichlet(labels: Sequence[int] | Indices, batch_size: int, delta: float, *, seed: int = 0) -> Stream:
    """Return class-imbalanced batches: each class is spread over them in proportions from a symmetric Dirichlet(δ).

    Large δ is close to i.i.d.; at small δ single classes fill entire batches. The proportions are those of
    ceil(N / batch_size) slots; the samples, slot by slot and shuffled within, are then cut into batches of equal size,
    as a deployed model receives them.
    """
    classes = np.asarray(labels)
    if classes.ndim != 1 or classes.dtype.kind not in "iu" or classes.size == 0:
        raise OptionError(
            f"labels: expected a class number per sample, got shape {classes.shape} and type {classes.dtype}."
        )
    if isinstance(delta, bool) or not 0 < delta < np.inf:
        raise OptionError(f"delta={delta!r}: must be a number above 0; the paper uses 10, 1, 0.1 and 0.01.")
    generator = np.random.default_rng(seed)
    slots = -(-len(classes) // check_integer("batch_size", batch_size, at_least=1))
    slot = np.empty(len(classes), dtype=np.int64)
    for label in np.unique(classes):
        members = generator.permutation(np.flatnonzero(classes == label))
        slot[members] = np.repeat(np.arange(slots), spread(len(members), slots, delta, generator))
    order = np.lexsort((generator.random(len(classes)), slot))
    return ordered(order, batch_size)


def spread(count: int, slots: int, delta: float, generator: np.random.Generator) -> Indices:
    """Return how many of ``count`` samples each slot gets, in proportions from a symmetric Dirichlet(δ)."""
    # In logarithms, and by G(δ) = G(δ + 1) · U^(1/δ): at small δ plain gamma variates are all zero.
    logs = np.log(generator.gamma(delta + 1, size=slots)) + np.log1p(-generator.random(slots)) / delta
    shares = np.exp(logs - logs.max())
    edges: Indices = np.rint(np.cumsum(shares) / shares.sum() * count).astype(np.int64)
    return np.asarray(np.diff(edges, prepend=0))


def continual(counts: Sequence[int], batch_size: int, *, seed: int = 0) -> Stream:
    """Return domain after domain without a reset, each in random order; ``counts`` are their numbers of samples."""
    batches: list[Batch] = []
    for domain, count in enumerate(_checked(counts)):
        order = np.random.default_rng(seed + domain).permutation(count)
        batches += _batches(order, np.full(count, domain), batch_size, first=len(batches))
    return tuple(batches)


def gradual(counts: Sequence[int], batch_size: int, *, seed: int = 0) -> Stream:
    """Return source, shifts of growing severity, and source again; on the last the model predicts without adapting.

    The order is that of :func:`continual`. The last domain measures what was forgotten, as in the paper.
    """
    last = len(counts) - 1
    return tuple(
        Batch(batch.number, batch.indices, batch.domains, adapts=bool(batch.domains[0] < last))
        for batch in continual(counts, batch_size, seed=seed)
    )


def mixed(counts: Sequence[int], batch_size: int, *, seed: int = 0) -> Stream:
    """Return all domains at once, shuffled together."""
    sizes = _checked(counts)
    domains = np.repeat(np.arange(len(sizes)), sizes)
    indices = np.concatenate([np.arange(size) for size in sizes])
    order = np.random.default_rng(seed).permutation(len(indices))
    return _batches(indices[order], domains[order], batch_size)


def _checked(counts: Sequence[int]) -> list[int]:
    if not len(counts):
        raise OptionError("counts is empty; expected the number of samples of at least one domain.")
    return [check_integer("count", count, at_least=1) for count in counts]


def _batches(indices: Indices, domains: Indices, batch_size: int, first: int = 0) -> tuple[Batch, ...]:
    size = check_integer("batch_size", batch_size, at_least=1)
    windows = [slice(start, start + size) for start in range(0, len(indices), size)]
    return tuple(Batch(first + number, indices[window], domains[window]) for number, window in enumerate(windows))


@dataclass(frozen=True)
class Step(Generic[Extra]):
    """What happened in one batch."""

    batch: Batch
    logits: Tensor
    """Empty if no image of the batch could be read."""
    extra: Extra
    """What the reader returned beside the images."""
    seconds: float
    """Time in the model, without reading."""


def follow(
    stream: Sequence[Batch],
    read: Callable[[Batch], tuple[Tensor | None, Extra]],
    model: Callable[[Tensor], Tensor],
    *,
    frozen: Callable[[Tensor], Tensor] | None = None,
    before: Callable[[Batch, Tensor], None] | None = None,
    ahead: int = 0,
) -> Generator[Step[Extra], None, None]:
    """Take ``model`` through the batches of ``stream``; yield a :class:`Step` after each, before the next is begun.

    The only loop over a stream: runs, predictions and evaluations consume its steps. ``read`` returns the images of a
    batch as the model takes them, and whatever belongs to them, such as labels; it works up to ``ahead`` batches ahead
    in a thread. ``frozen`` replaces ``model`` for batches that it must not adapt to. ``before`` is called ahead of each
    batch and is not timed. Close the generator to leave early, or use it up.
    """
    reading = prefetch(lambda batch: (batch, *read(batch)), stream, depth=ahead)
    with closing(reading):
        for batch, images, extra in reading:
            logits, seconds = torch.empty(0, 1), 0.0
            if images is not None:
                if before is not None:
                    before(batch, images)
                begun = _now(images.device)
                logits = model(images) if batch.adapts or frozen is None else frozen(images)
                seconds = _now(images.device) - begun
            yield Step(batch, logits, extra, seconds)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
