"""Measure how many bytes of tensors are alive at once."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cretta.metrics.dispatch import DispatchMode


def peak_meter(device: torch.device) -> PeakMeter:
    """Return a context; when it is left, its ``peak`` is the most bytes alive at once, above those before it.

    On a GPU this is what PyTorch's allocator says, whose peak statistics are reset. On the CPU it is the sum of all
    tensors created in the context, each storage once, after every operation: exact and the same each time. What an
    operation allocates and frees within itself, such as the workspace of a convolution, is not seen.
    """
    return CudaPeak(device) if device.type == "cuda" else StoragePeak()


class CudaPeak:
    """The most bytes that a GPU's allocator had allocated at once, above those at the start."""

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


class StoragePeak(DispatchMode):
    """The most bytes of tensors created in this context that are alive at once.

    A storage counts from the operation that returned it until it is freed, whoever holds it: a variable, a view, or
    the graph for the backward pass, whose operations are dispatched here too. Inputs that no operation returned
    existed before and do not count.
    """

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.now = 0
        self.peak = 0
        self._finalizers: dict[int, weakref.finalize[Any, Any]] = {}
        self._gc_was_enabled = False

    def __enter__(self) -> Self:
        # Otherwise tensors in reference cycles would be freed at an arbitrary time.
        self._gc_was_enabled = gc.isenabled()
        gc.disable()
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        TorchDispatchMode.__exit__(self, *exception)
        if self._gc_was_enabled:
            gc.enable()
        for finalizer in list(self._finalizers.values()):
            finalizer.detach()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute an operation and register what it returns."""
        self._register((args, kwargs), created=False)
        out = func(*args, **(kwargs or {}))
        self._register(out, created=True)
        self.peak = max(self.peak, self.now)
        return out

    def _register(self, values: Any, *, created: bool) -> None:
        for tensor in tree_leaves(values):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta:
                storage = tensor.untyped_storage()
                # PyTorch holds one Python object per storage as long as the storage lives, so its id identifies it.
                key = id(storage)
                if key not in self._finalizers:
                    size = storage.nbytes() if created else 0
                    self._finalizers[key] = weakref.finalize(storage, self._freed, key, size)
                    self.now += size

    def _freed(self, key: int, size: int) -> None:
        self.now -= size
        del self._finalizers[key]


PeakMeter = CudaPeak | StoragePeak
