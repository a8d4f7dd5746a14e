"""The custom CPU kernels of ``kernels.c``: 3 × 3 convolution, and BatchNorm with ReLU, faster than PyTorch's.

They are compiled when the package is installed on Linux with a C compiler. They run on x86-64 processors with AVX2 but
without AVX-512, for float32 batches in channels-last layout; PyTorch's operations do everything else. The environment
variable ``CRETTA_KERNELS`` is read at each use: ``off`` disables the kernels, ``on`` enables them with AVX-512 too.
"""

from __future__ import annotations

import ctypes
import functools
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import profiler
from torch.nn.grad import conv2d_weight
from torch.profiler import record_function
from torch.utils.weak import WeakIdKeyDictionary

FILE = Path(__file__).with_name("_kernels.so")
COLUMNS = 16
"""Output channels that the convolution computes at once."""
PARTS = 8
"""Partial sums of a weight gradient, added in a fixed order."""


_P, _L, _D = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
SIGNATURES = {
    "cretta_convolve": (_P, _L, _P, _P, _P, _P, _L, _L, _L, _L, _L),
    "cretta_convolve_weight": (_P, _L, _P, _P, _P, _L, _L, _L, _L, _L),
    "cretta_batch_norm_relu": (_P, _L, _P, _P, _P, _D, _P, _P, _L, _L, _L),
    "cretta_batch_norm_relu_backward": (_P, _L, _P, _P, _P, _P, _P, _L, _L, _L),
}


class Library:
    """The compiled kernels. ``narrower``: PyTorch's own convolutions use AVX-512 on this processor."""

    def __init__(self, library: ctypes.CDLL, parallel: int | None, *, narrower: bool = False) -> None:
        self._functions = {name: getattr(library, name) for name in SIGNATURES}
        for name, signature in SIGNATURES.items():
            self._functions[name].argtypes = signature
        self._parallel = parallel
        self.narrower = narrower

    def call(self, name: str, *arguments: Tensor | float | None, label: str | None = None) -> None:
        """Run one kernel; tensors are passed as data pointers. Profilers show ``label``, or else the name."""
        values = [_address(argument) if isinstance(argument, Tensor) else argument for argument in arguments]
        # A private name of PyTorch: without it every call is recorded, which takes a few microseconds.
        profiled = getattr(profiler, "_is_profiler_enabled", True)
        with record_function(label or name) if profiled else nullcontext():
            failed = self._functions[name](self._parallel, torch.get_num_threads(), *values)
        if failed:
            raise MemoryError(f"not enough memory for {name}")


def _address(x: Tensor) -> int:
    if not _is_plain(x):
        raise RuntimeError(f"expected a float32 tensor on the CPU, got {type(x).__name__} of {x.dtype} on {x.device}")
    return x.data_ptr()


def _is_plain(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.is_cpu and type(x) in (Tensor, nn.Parameter)


def checksum() -> int:
    """Return the checksum of the C files, by which a library of another version is recognized."""
    return zlib.crc32(b"".join(file.read_bytes() for file in sorted(FILE.parent.glob("kernels*.[ch]"))))


def load(file: Path) -> Library | str:
    """Return the library, or the reason why it cannot be used."""
    if not file.exists():
        return "they were not compiled when cretta was installed: that takes Linux on x86-64 and a C compiler"
    try:
        library = ctypes.CDLL(str(file))
        interface = library.cretta_interface
        interface.restype = ctypes.c_uint
        if interface() != checksum():
            return "they were compiled for another version of cretta; install it again"
        ready = library.cretta_ready()
        if ready == 0:
            return "this processor has no AVX2"
        # From the OpenMP runtime that PyTorch loaded: a second pool of threads would compete with PyTorch's.
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (OSError, AttributeError) as error:
        return f"they could not be loaded: {error}"
    return Library(library, ctypes.cast(parallel, ctypes.c_void_p).value, narrower=ready == 1)


@functools.cache
def _library() -> Library | str:
    return load(FILE)


def missing() -> str | None:
    """Return why the kernels are not used in this process, or None if they are."""
    setting = os.environ.get("CRETTA_KERNELS")
    if setting == "off":
        return "CRETTA_KERNELS=off is set"
    library = _library()
    if isinstance(library, str):
        return library
    if library.narrower and setting != "on":
        return "PyTorch uses this processor's AVX-512; CRETTA_KERNELS=on uses the kernels all the same"
    return None


def _call(name: str, *arguments: Tensor | float | None, label: str | None = None) -> None:
    library = _library()
    if isinstance(library, str):
        raise RuntimeError(f"the custom CPU kernels cannot be used: {library}")
    library.call(name, *arguments, label=label)


_disabled: ContextVar[bool] = ContextVar("disabled", default=False)
_errors: ContextVar[list[float] | None] = ContextVar("errors", default=None)


def without(network: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callable that runs ``network`` without the kernels; a backward pass uses them if its forward did."""

    def call(*args: Any, **named: Any) -> Any:
        token = _disabled.set(True)
        try:
            return network(*args, **named)
        finally:
            _disabled.reset(token)

    return call


@contextmanager
def compared() -> Iterator[list[float]]:
    """Compare all results of the kernels in this block with PyTorch's; yield the list of their relative errors."""
    errors: list[float] = []
    token = _errors.set(errors)
    try:
        yield errors
    finally:
        _errors.reset(token)


def _add_error(errors: list[float], result: Tensor, reference: Tensor, size: Tensor | float = 0.0) -> None:
    """Add the norm of the difference, divided by the reference's norm plus ``size``."""
    errors.append(float((result - reference).norm() / (reference.norm() + size).clamp(min=1e-30)))


def _can_read(x: Tensor, *vectors: Tensor | None) -> bool:
    """True if ``x`` is a non-empty channels-last float32 CPU tensor and all ``vectors`` are contiguous float32."""
    if x.dim() != 4 or not _is_plain(x) or not x.is_contiguous(memory_format=torch.channels_last) or x.numel() == 0:
        return False
    if not all(vector is None or (_is_plain(vector) and vector.is_contiguous()) for vector in vectors):
        return False
    return not _disabled.get() and missing() is None


# Convolution.

_G = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64, device="cpu")
_transformed: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Cache: weight → (version, tensor it was computed from, {backward: transformed weight})."""


def can_convolve(layer: nn.Module, x: Tensor) -> bool:
    """True if :func:`convolve` computes ``layer(x)``, and its gradient with respect to ``x``."""
    # Parameters last: an nn.Module looks them up slowly.
    if not isinstance(layer, nn.Conv2d) or layer.kernel_size != (3, 3):
        return False
    outputs, inputs = layer.out_channels, layer.in_channels
    if outputs % COLUMNS or inputs % COLUMNS:
        return False
    weight, bias = layer.weight, layer.bias
    return (
        weight.shape == (outputs, inputs, 3, 3)
        and layer.stride == layer.padding == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and _is_plain(weight)
        and not weight.is_inference()
        and (bias is None or bias.shape == (outputs,))
        and _can_read(x, bias)
        and inputs == x.shape[1]
    )


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backward: bool = False) -> Tensor:
    """Return ``F.conv2d(x, weight, bias, padding=1)``; ``backward``: its input's gradient, from the output's, ``x``.

    By Winograd's F(2 × 2, 3 × 3) (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016): 16
    products for four pixels of a channel instead of 36. An infinite or NaN value makes all pixels NaN of the tiles that
    contain it or touch it.
    """
    inputs, outputs = weight.shape[:2] if backward else (weight.shape[1], weight.shape[0])
    images, _, height, width = x.shape
    shape, layout = (images, outputs, height, width), torch.channels_last
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
    sizes = (images, height, width, inputs, outputs)
    label = "cretta_convolve_backward" if backward else None
    _call("cretta_convolve", x, _transform(weight, backward=backward), bias, y, *sizes, label=label)
    if (errors := _errors.get()) is not None:
        plain = F.conv_transpose2d(x, weight, padding=1) if backward else F.conv2d(x, weight, bias, padding=1)
        _add_error(errors, y, plain)
    return y


def weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of the weight of ``F.conv2d(x, weight, padding=1)``, given that of its output.

    The transpose of :func:`convolve` in its weight, by Winograd: dw = Gᵀ [Σ_tiles (A g Aᵀ) (Bᵀ x B)] G.
    """
    images, inputs, height, width = x.shape
    outputs = gradient.shape[1]
    sums = x.new_empty(PARTS, 16, inputs * outputs)
    _call("cretta_convolve_weight", x, gradient, sums, images, height, width, inputs, outputs)
    taps = (torch.kron(_G, _G).t() @ sums.sum(0, dtype=torch.float64)).float()
    result = taps.view(3, 3, inputs, outputs).permute(3, 2, 0, 1)
    if (errors := _errors.get()) is not None:
        _add_error(errors, result, conv2d_weight(x, list(result.shape), gradient, padding=1))
    return result


def _transform(weight: Tensor, *, backward: bool) -> Tensor:
    """Return G w Gᵀ in the order of the kernel; for a frozen weight it is cached, in 16/9 of the weight's memory.

    A change is detected by the version that autograd counts: one made through ``.data`` is not.
    """
    if weight.requires_grad:
        return _computed_transform(weight, backward=backward)
    cached = _transformed.get(weight)
    if cached is None or cached[0] != weight._version or cached[1].data_ptr() != weight.data_ptr():
        # The detached tensor keeps the memory alive, so that no other weight can get the same address.
        cached = (weight._version, weight.detach(), {})
        _transformed[weight] = cached
    if backward not in cached[2]:
        cached[2][backward] = _computed_transform(weight, backward=backward)
    result: Tensor = cached[2][backward]
    return result


@torch.no_grad()
def _computed_transform(weight: Tensor, *, backward: bool) -> Tensor:
    # The gradient of the input is a convolution with the flipped and transposed weight.
    source = weight.flip(2, 3).transpose(0, 1) if backward else weight
    outputs, inputs = source.shape[:2]
    taps = source.permute(2, 3, 1, 0).reshape(9, inputs * outputs)
    products = (torch.kron(_G, _G) @ taps.double()).float()
    return products.view(16, inputs, outputs // COLUMNS, COLUMNS).permute(2, 0, 1, 3).contiguous()


# BatchNorm with ReLU.


def can_batch_norm_relu(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """True if :func:`batch_norm_relu` accepts these tensors."""
    fits = x.dim() == 4 and x.shape[1] % 8 == 0 and weight.shape == bias.shape == x.shape[1:2]
    return fits and _can_read(x, weight, bias)


def batch_norm_relu(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, running: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``relu(batch_norm(x))`` and its statistics, which :func:`batch_norm_relu_backward` needs.

    ``running``: mean and variance to use instead of the batch's. The statistics have four rows of one value per
    channel: mean, inverse standard deviation, scale and shift.
    """
    y, statistics = torch.empty_like(x), x.new_empty(4, x.shape[1])
    if running is not None:
        statistics[0] = running[0]
        statistics[1] = (running[1] + eps).rsqrt()
    sizes = (x.numel() // x.shape[1], x.shape[1], running is not None)
    _call("cretta_batch_norm_relu", x, weight, bias, eps, y, statistics, *sizes)
    if (errors := _errors.get()) is not None:
        mean, variance = running or (None, None)
        plain = F.batch_norm(x, mean, variance, weight, bias, running is None, 0.0, eps)
        _add_error(errors, y, plain.relu_())
    return y, statistics


def batch_norm_relu_backward(
    gradient: Tensor, x: Tensor, statistics: Tensor, *, running: bool, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias; write the gradient of ``x`` to ``out``, which may be ``gradient``.

    ``running``: the statistics were not the batch's and do not depend on ``x``.
    """
    of_parameters = x.new_empty(2, x.shape[1])
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    sizes = (x.numel() // x.shape[1], x.shape[1], running)
    errors = _errors.get()
    # Before the kernel runs, which may overwrite the gradient.
    references = _plain_gradients(gradient, x, statistics, running=running) if errors is not None else []
    _call("cretta_batch_norm_relu_backward", x, gradient, statistics, out, of_parameters, *sizes)
    for result, (reference, size) in zip((*of_parameters, out), references, strict=False):
        if errors is not None and result is not None:
            _add_error(errors, result, reference, size)
    return of_parameters[0], of_parameters[1]


def _plain_gradients(gradient: Tensor, x: Tensor, statistics: Tensor, *, running: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the gradients of weight, bias and ``x`` by PyTorch, and the norm of the terms that they are sums of."""
    mean, inverse, scale, shift = statistics
    # In float64 the sign of the ReLU's input is exact, as it is in the kernel, which rounds once.
    before = torch.addcmul(shift.double().view(-1, 1, 1), x.double(), scale.double().view(-1, 1, 1))
    gradient = torch.where(before > 0, gradient, 0.0)
    known = (mean, inverse.pow(-2), None, None) if running else (None, None, mean, inverse)
    of_input, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
        gradient, x, scale / inverse, *known, not running, 0.0, (True, True, True)
    )
    size = gradient.norm()
    return [(of_weight, size), (of_bias, size), (of_input, size * scale.abs().mean())]
