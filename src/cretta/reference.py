"""Energies of source samples under the frozen source model: computed once and kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cretta.buffer import BLOCK, SourceBuffer


class ReferenceEnergies:
    """E_φ(x_s) of buffer samples.

    What cannot change is kept: for each sample, or, where batch statistics tie a sample's energy to its
    companions, for each batch. Samples are computed by fixed blocks, so that a value does not depend on the
    order of reading, and nothing here need be saved. A buffer that renews its augmentation is computed anew.
    """

    def __init__(self, buffer: SourceBuffer, energy_of: Callable[[Tensor], Tensor], *, per_sample: bool) -> None:
        self._buffer = buffer
        self._energy_of = energy_of
        self._per_sample = per_sample
        self._batches: dict[tuple[int, int], Tensor] = {}
        self._samples: Tensor | None = None
        self._known: set[int] = set()

    def __call__(self, images: Tensor, start: int) -> Tensor:
        """Energies of ``images``, which are the buffer's from ``start`` on."""
        if self._buffer.renews:
            return self._energy_of(images)
        if not self._per_sample:
            key = (start, len(images))
            if key not in self._batches:
                self._batches[key] = self._energy_of(images)
            return self._batches[key]
        size = len(self._buffer)
        index = torch.arange(start, start + len(images)) % size
        for block in {i // BLOCK for i in index.tolist()} - self._known:
            first = block * BLOCK
            found = self._energy_of(self._buffer.batch(first, min(BLOCK, size - first), like=images))
            if self._samples is None:
                self._samples = found.new_empty(size)
            self._samples[first : first + len(found)] = found
            self._known.add(block)
        assert self._samples is not None
        return self._samples[index.to(images.device)]
