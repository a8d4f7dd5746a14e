"""Energies of source samples under the frozen source model: computed once and cached."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cretta.buffer import BLOCK, SourceBuffer


class ReferenceEnergies:
    """E_φ(x_s) of buffer samples.

    Energies are cached per sample, or per batch where batch statistics make a sample's energy depend on the other
    samples. Samples are computed in fixed blocks, so that a value does not depend on the order of reading, and the
    cache need not be saved.
    """

    def __init__(self, buffer: SourceBuffer, energy_of: Callable[[Tensor], Tensor], *, per_sample: bool) -> None:
        self._buffer = buffer
        self._energy_of = energy_of
        self._per_sample = per_sample
        self._batches: dict[tuple[int, int], Tensor] = {}
        self._samples: Tensor | None = None
        self._cached_blocks: set[int] = set()

    def __call__(self, images: Tensor, start: int) -> Tensor:
        """Return the energies of ``images``, which are the buffer's from ``start`` on."""
        if not self._per_sample:
            key = (start, len(images))
            if key not in self._batches:
                self._batches[key] = self._energy_of(images)
            return self._batches[key]
        size = len(self._buffer)
        index = torch.arange(start, start + len(images)) % size
        for block in {i // BLOCK for i in index.tolist()} - self._cached_blocks:
            first = block * BLOCK
            energies = self._energy_of(self._buffer.batch(first, min(BLOCK, size - first), like=images))
            if self._samples is None:
                self._samples = energies.new_empty(size)
            self._samples[first : first + len(energies)] = energies
            self._cached_blocks.add(block)
        assert self._samples is not None
        return self._samples[index.to(images.device)]
