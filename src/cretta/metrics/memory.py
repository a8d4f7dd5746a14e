"""Watches how many bytes of tensors are alive at once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def peak_meter(device: torch.device) -> PeakMeter:
    """A context that knows, when left, the most bytes that were alive in it at once above those before: ``peak``."""
    return CudaPeak(device) if device.type == "cuda" else StoragePeak()


class CudaPeak:
    """The most bytes that a GPU's allocator gave out at once, above those at the start."""

    def __init__(self, device: torch.device) -> None:
        self.peak = 0
        self._device = device
        self._before = 0

    def __enter__(self) -> Self:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *exception: object) -> None:
        self.peak = torch.cuda.max_memory_allocated(self._device) - self._before


class StoragePeak(TorchDispatchMode):
    """The most bytes of tensors made in this context that are alive at once.

    A storage counts from the operation that returned it until it is freed, whoever holds it: a variable, a view, or
    the graph for the pass back, whose operations come here too. What an operation is given, but none returned, was
    there before and does not count.
    """

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.now = 0
        self.peak = 0
        self._bytes: dict[int, int] = {}
        self._ends: dict[int, weakref.finalize[Any, Any]] = {}
        self._collects = False

    def __enter__(self) -> Self:
        # Else tensors in reference cycles would die at some time or other.
        self._collects = gc.isenabled()
        gc.disable()
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        TorchDispatchMode.__exit__(self, *exception)
        if self._collects:
            gc.enable()
        for end in list(self._ends.values()):
            end.detach()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Executes an operation and looks at what it returns."""
        for tensor in _tensors([args, kwargs]):
            self._see(tensor, ours=False)
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self._see(tensor, ours=True)
        self.peak = max(self.peak, self.now)
        return out

    def _see(self, tensor: Tensor, *, ours: bool) -> None:
        storage = tensor.untyped_storage()
        # PyTorch keeps one object for a storage as long as the storage lives, so that its identity will do.
        key = id(storage)
        if key not in self._bytes:
            self._bytes[key] = storage.nbytes() if ours else 0
            self._ends[key] = weakref.finalize(storage, self._freed, key)
            self.now += self._bytes[key]

    def _freed(self, key: int) -> None:
        self.now -= self._bytes.pop(key)
        del self._ends[key]


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors with a storage in the arguments or results of an operation."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided and not value.is_meta:
            yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


PeakMeter = CudaPeak | StoragePeak
