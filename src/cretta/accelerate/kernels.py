"""The custom CPU kernels of ``kernels.c``: 3 × 3 convolution, and BatchNorm with sum and ReLU, faster than PyTorch's.

They are compiled when the package is installed on Linux with a C compiler, and come with its wheel for Linux. They run
on x86-64 processors with AVX2, and with AVX-512 where there is one, for float32 batches in channels-last layout;
PyTorch's operations do everything else. The environment variable ``CRETTA_KERNELS`` is read at each use: ``auto``, the
default, times all paths and PyTorch at the first use of each shape (:mod:`cretta.accelerate.choices`); ``off`` disables
the kernels; ``avx2`` and ``avx512`` use one path without timing; the name of a JSON file pins recorded choices.
``emulated`` runs the code of sixteen lanes on eight, for tests.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import profiler
from torch.nn.grad import conv2d_weight
from torch.profiler import record_function

from cretta.accelerate import choices
from cretta.errors import OptionError

FILE = Path(__file__).with_name("_kernels.so")
COLUMNS = 16
"""Output channels that the convolution computes at once."""
PARTS = 8
"""Partial sums of a weight gradient, added in a fixed order."""
PATHS = {"avx512": 1, "avx2": 0, "emulated": 2}
"""Number of each path in the library, the widest first."""
LANES = {"avx512": 16, "avx2": 8, "emulated": 16}
TENSORS = (Tensor, nn.Parameter)
"""Types of tensors that are memory and nothing else."""
LARGE_TILES = " 4x4"
"""After a path's name: F(4 × 4, 3 × 3) instead of F(2 × 2, 3 × 3)."""
LARGEST_WEIGHT = 128 * 128
"""Channels in times channels out up to which larger tiles are used without timing: beyond, weights exceed the cache."""

_P, _L, _D = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
SIGNATURES = {
    "cretta_convolve": (_P, _L, _L, _L, _P, _P, _P, _P, _L, _L, _L, _L, _L),
    "cretta_convolve_weight": (_P, _L, _L, _P, _P, _P, _L, _L, _L, _L, _L),
    "cretta_batch_norm_relu": (_P, _L, _L, _P, _P, _P, _D, _P, _P, _P, _L, _L, _L, _L),
    "cretta_batch_norm_relu_backward": (_P, _L, _L, _P, _P, _P, _P, _P, _P, _P, _P, _L, _L, _L, _L),
}


class Library:
    """The compiled kernels, the paths that this processor can run, and OpenMP's entry point."""

    def __init__(
        self, library: ctypes.CDLL, paths: tuple[str, ...], parallel: int | None, one_thread: str = ""
    ) -> None:
        self._functions = {name: getattr(library, name) for name in SIGNATURES}
        for name, signature in SIGNATURES.items():
            self._functions[name].argtypes = signature
        self._parallel = parallel
        self.paths = paths
        self.one_thread = one_thread
        """Why the kernels run in one thread, if they do."""

    def call(self, name: str, *arguments: Tensor | float | None, label: str | None = None) -> None:
        """Run one kernel; tensors are passed as data pointers. Profilers show ``label``, or else the name."""
        # ctypes raises for a tensor of another type, which has no address to pass. By type() because isinstance() on
        # tensors takes longer; mypy does not follow that.
        values = [value.data_ptr() if type(value) in TENSORS else value for value in arguments]  # type: ignore[union-attr]
        run, threads = self._functions[name], torch.get_num_threads()
        # A private name of PyTorch: without it every call is recorded, which takes a few microseconds.
        if getattr(profiler, "_is_profiler_enabled", True):
            with record_function(label or name):
                failed = run(self._parallel, threads, *values)
        else:
            failed = run(self._parallel, threads, *values)
        if failed:
            raise MemoryError(f"not enough memory for {name}")


def _require_plain(x: Tensor) -> None:
    if not _is_plain(x):
        raise RuntimeError(f"expected a float32 tensor on the CPU, got {type(x).__name__} of {x.dtype} on {x.device}")


def _is_plain(x: Tensor) -> bool:
    return type(x) in TENSORS and x.dtype is torch.float32 and x.is_cpu


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
        bits = library.cretta_paths()
    except (OSError, AttributeError) as error:
        return f"they could not be loaded: {error}"
    paths = tuple(name for name, number in PATHS.items() if bits >> number & 1)
    if not paths:
        return "this processor has no AVX2"
    parallel = openmp()
    return Library(library, paths, None, parallel) if isinstance(parallel, str) else Library(library, paths, parallel)


def openmp() -> int | str:
    """Return the address of GOMP_parallel in the OpenMP runtime that PyTorch uses, or why there is none to use.

    The threads of another runtime would compete with PyTorch's for the cores.
    """
    file = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # A handle of a library that is loaded: symbols are looked up in it and in what it depends on.
        of_torch = ctypes.CDLL(str(file), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).GOMP_parallel
        # PyTorch's own calls are bound to the first runtime in the process, which may be a preloaded one.
        of_process = getattr(ctypes.CDLL(None), "GOMP_parallel", of_torch)
    except (OSError, AttributeError) as error:
        return f"the OpenMP runtime of PyTorch was not identified ({error})"
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in (of_torch, of_process)]
    if addresses[0] is None or addresses[0] != addresses[1]:
        return "there are two OpenMP runtimes in this process, and which one PyTorch uses is not certain"
    return addresses[0]


@functools.cache
def _library() -> Library | str:
    return load(FILE)


_forced: ContextVar[str | None] = ContextVar("forced", default=None)
_errors: ContextVar[list[float] | None] = ContextVar("errors", default=None)
_layers: ContextVar[set[choices.Shape] | None] = ContextVar("layers", default=None)


def setting() -> str:
    """Return the value of ``CRETTA_KERNELS``, ``auto`` if it is not set, or what this context uses instead."""
    return _forced.get() or os.environ.get("CRETTA_KERNELS") or "auto"


@functools.cache
def _paths(value: str) -> tuple[str, ...] | str:
    """Return the paths that a setting allows, or the reason why there is none."""
    if value not in ("auto", "off", *PATHS):
        try:
            choices.pin({str(shape): str(kernel) for shape, kernel in json.loads(Path(value).read_text()).items()})
        except (OSError, ValueError, AttributeError) as error:
            raise OptionError(
                f"CRETTA_KERNELS: expected auto, off, avx2, avx512, or a JSON file of what model.backend.record() "
                f"returned, got {value!r} ({error})."
            ) from error
    if value == "off":
        return "CRETTA_KERNELS=off is set"
    library = _library()
    if isinstance(library, str):
        return library
    if value in PATHS:
        return (value,) if value in library.paths else f"CRETTA_KERNELS={value} is set, and this processor has none"
    return tuple(path for path in library.paths if path != "emulated")


def paths(value: str | None = None) -> tuple[str, ...]:
    """Return the paths that the setting allows, the preferred one first; none if the kernels are not used."""
    allowed = _paths(value or setting())
    return () if isinstance(allowed, str) else allowed


def missing() -> str | None:
    """Return why the kernels are not used in this process, or None if they are."""
    allowed = _paths(setting())
    return allowed if isinstance(allowed, str) else None


def describe() -> str:
    """Return which paths are used, and why in one thread if that is so; or why none is used."""
    library, allowed = _library(), _paths(setting())
    if isinstance(library, str) or isinstance(allowed, str):
        return f"not in use: {missing()}"
    return ", ".join(allowed) + (f", in one thread because {library.one_thread}" if library.one_thread else "")


def _call(name: str, *arguments: Tensor | float | None, label: str | None = None) -> None:
    library = _library()
    if isinstance(library, str):
        raise RuntimeError(f"the custom CPU kernels cannot be used: {library}")
    library.call(name, *arguments, label=label)


@contextmanager
def use(value: str) -> Iterator[None]:
    """Use this setting instead of ``CRETTA_KERNELS`` in this block, in this thread."""
    token = _forced.set(value)
    try:
        yield
    finally:
        _forced.reset(token)


def without(network: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callable that runs ``network`` without the kernels; a backward pass uses them if its forward did."""

    def call(*args: Any, **named: Any) -> Any:
        with use("off"):
            return network(*args, **named)

    return call


@contextmanager
def compared(path: str) -> Iterator[tuple[list[float], set[choices.Shape]]]:
    """Use one path in this block and compare all its results with PyTorch's; yield relative errors, and layers."""
    errors: list[float] = []
    layers: set[choices.Shape] = set()
    tokens = _errors.set(errors), _layers.set(layers)
    try:
        with use(path):
            yield errors, layers
    finally:
        _errors.reset(tokens[0])
        _layers.reset(tokens[1])


def _add_error(errors: list[float], result: Tensor, reference: Tensor, size: Tensor | float = 0.0) -> None:
    """Add the norm of the difference, divided by the reference's norm plus ``size``."""
    errors.append(float((result - reference).norm() / (reference.norm() + size).clamp(min=1e-30)))


def _can_read(x: Tensor, *vectors: Tensor | None) -> bool:
    """True if ``x`` is a non-empty channels-last float32 CPU tensor and all ``vectors`` are contiguous float32."""
    if x.dim() != 4 or not _is_plain(x) or not x.is_contiguous(memory_format=torch.channels_last) or x.numel() == 0:
        return False
    for vector in vectors:
        if vector is not None and not (_is_plain(vector) and vector.is_contiguous()):
            return False
    return bool(paths())


# Convolution.


class _Transforms(NamedTuple):
    """The transforms of a weight; the detached tensor keeps its memory from being used by another weight."""

    weight: weakref.ref[Tensor]
    version: int
    values: Tensor
    by_use: dict[tuple[int, bool], Tensor]
    """By the side of a tile, and whether it is for the backward pass."""


_G = {
    2: torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64, device="cpu"),
    4: torch.tensor(
        [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], dtype=torch.float64, device="cpu"
    )
    / 24,
}
"""G of the transform G w Gᵀ of a weight, by the side of a tile."""
_transformed: dict[int, _Transforms] = {}
"""Cache, by the id of the weight, as long as that exists."""


def weights(layer: nn.Module) -> tuple[Any, Any]:
    """Return ``layer.weight`` and ``layer.bias``, three times faster than by attribute."""
    parameters = layer._parameters
    return parameters["weight"], parameters["bias"]


def can_convolve(layer: nn.Module, x: Tensor) -> bool:
    """True if :func:`convolve` computes ``layer(x)``, and its gradient with respect to ``x``."""
    # Parameters last: an nn.Module looks them up slowly.
    if not isinstance(layer, nn.Conv2d) or layer.kernel_size != (3, 3):
        return False
    outputs, inputs = layer.out_channels, layer.in_channels
    if outputs % COLUMNS or inputs % COLUMNS:
        return False
    weight, bias = weights(layer)
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


def convolution_kernel(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    value: str,
    *,
    backward: bool = False,
    large: bool = False,
) -> str:
    """Return the name of the kernel for :func:`convolve`, or ``choices.PYTORCH``, with ``value`` as the setting.

    ``large`` allows larger tiles, which round worse: for results that have no gradient.
    """
    key = (value, x.shape, weight.shape, backward, large, weight.requires_grad)
    known = choices.decided.get(key)
    if known is not None and _layers.get() is None:
        return known
    images, inputs, height, width = x.shape
    outputs = weight.shape[1 if backward else 0]
    operation = "convolution backward" if backward else "convolution without gradient" if large else "convolution"
    if value in PATHS:
        if (layers := _layers.get()) is not None:
            layers.add(choices.Shape(operation, 0, inputs, outputs, height, width))
        products = [36 * -(-height // 4) * -(-width // 4), 16 * -(-height // 2) * -(-width // 2)]
        large = large and inputs * outputs <= LARGEST_WEIGHT and products[0] < 0.75 * products[1]
        kernel = choices.decided[key] = value + LARGE_TILES if large else value
        return kernel
    count = choices.sampled(images, inputs, height, width)
    shape = choices.Shape(operation, count, inputs, outputs, height, width)

    def candidates() -> dict[str, Callable[[], object]]:
        few = x.detach()[:count]
        names = [path + LARGE_TILES for path in paths(value)] * large + [*paths(value)]
        runs: dict[str, Callable[[], object]] = {
            name: functools.partial(convolve, few, weight, bias, name, backward=backward) for name in names
        }
        runs[choices.PYTORCH] = functools.partial(plain_convolution, few, weight, bias, backward=backward)
        return runs

    # A weight that learns is transformed for each batch; training times entire steps and chooses for all layers.
    kernel = paths(value)[0] if weight.requires_grad else choices.fastest(shape, candidates)
    choices.decided[key] = kernel
    return kernel


def plain_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backward: bool = False) -> Tensor:
    """Compute by PyTorch what :func:`convolve` does."""
    if not backward:
        return F.conv2d(x, weight, bias, padding=1)
    # Only shape and layout of the input matter. Memory that is never touched is never allocated.
    shape = (len(x), weight.shape[1], *x.shape[2:])
    shell = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    result: Tensor = torch.ops.aten.convolution_backward(x, shell, weight, None, *geometry, (True, False, False))[0]
    return result


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, kernel: str, *, backward: bool = False) -> Tensor:
    """Return ``F.conv2d(x, weight, bias, padding=1)``; ``backward``: its input's gradient, from the output's, ``x``.

    By Winograd's F(2 × 2, 3 × 3) (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016): 16
    products for four pixels of a channel instead of 36; or F(4 × 4, 3 × 3): 36 for sixteen pixels instead of 144. An
    infinite or NaN value makes all pixels NaN of the tiles that contain it or touch it.
    """
    _require_plain(x)
    tile = 4 if kernel.endswith(LARGE_TILES) else 2
    path = PATHS[kernel.removesuffix(LARGE_TILES)]
    inputs, outputs = weight.shape[:2] if backward else (weight.shape[1], weight.shape[0])
    images, _, height, width = x.shape
    if inputs == outputs:
        y = torch.empty_like(x, memory_format=torch.channels_last)
    else:
        shape = (images, outputs, height, width)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    sizes = (images, height, width, inputs, outputs)
    label = "cretta_convolve_backward" if backward else None
    transformed = _transform(weight, tile, backward=backward)
    _call("cretta_convolve", path, tile, x, transformed, bias, y, *sizes, label=label)
    if (errors := _errors.get()) is not None:
        _add_error(errors, y, plain_convolution(x, weight, bias, backward=backward))
    return y


def weight_gradient(x: Tensor, gradient: Tensor, path: str) -> Tensor:
    """Return the gradient of the weight of ``F.conv2d(x, weight, padding=1)``, given that of its output.

    The transpose of :func:`convolve` in its weight, by Winograd: dw = Gᵀ [Σ_tiles (A g Aᵀ) (Bᵀ x B)] G.
    """
    images, inputs, height, width = x.shape
    outputs = gradient.shape[1]
    sums = x.new_empty(PARTS, 16, inputs * outputs)
    _call("cretta_convolve_weight", PATHS[path], x, gradient, sums, images, height, width, inputs, outputs)
    taps = (torch.kron(_G[2], _G[2]).t() @ sums.sum(0, dtype=torch.float64)).float()
    result = taps.view(3, 3, inputs, outputs).permute(3, 2, 0, 1)
    if (errors := _errors.get()) is not None:
        _add_error(errors, result, conv2d_weight(x, list(result.shape), gradient, padding=1))
    return result


def _transform(weight: Tensor, tile: int, *, backward: bool) -> Tensor:
    """Return G w Gᵀ in the order of the kernel; for a frozen weight it is cached.

    It takes 16/9 of the weight's memory, and four times its memory for the larger tiles. A change is detected by the
    version that autograd counts; see :func:`forget_transforms` for one made through ``.data``.
    """
    if weight.requires_grad:
        return _computed_transform(weight, tile, backward=backward)
    key = id(weight)
    cached = _transformed.get(key)
    if cached is None or cached.version != weight._version or cached.values.data_ptr() != weight.data_ptr():
        reference = weakref.ref(weight, lambda _: _transformed.pop(key, None))
        cached = _transformed[key] = _Transforms(reference, weight._version, weight.detach(), {})
    result = cached.by_use.get((tile, backward))
    if result is None:
        result = cached.by_use[tile, backward] = _computed_transform(weight, tile, backward=backward)
    return result


def forget_transforms(weights: Iterable[Tensor]) -> None:
    """Compute the transforms of these weights again at their next use."""
    for weight in weights:
        _transformed.pop(id(weight), None)


@torch.no_grad()
def _computed_transform(weight: Tensor, tile: int, *, backward: bool) -> Tensor:
    # The gradient of the input is a convolution with the flipped and transposed weight.
    source = weight.flip(2, 3).transpose(0, 1) if backward else weight
    outputs, inputs = source.shape[:2]
    taps = source.permute(2, 3, 1, 0).reshape(9, inputs * outputs)
    products = (torch.kron(_G[tile], _G[tile]) @ taps.double()).float()
    return products.view((tile + 2) ** 2, inputs, outputs // COLUMNS, COLUMNS).permute(2, 0, 1, 3).contiguous()


# BatchNorm with a sum and ReLU.


def can_batch_norm_relu(x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None = None) -> bool:
    """True if :func:`batch_norm_relu` accepts these tensors."""
    shape = x.shape
    fits = len(shape) == 4 and shape[1] % 8 == 0 and weight.shape == bias.shape == shape[1:2]
    if shortcut is not None and not (_is_plain(shortcut) and shortcut.shape == shape):
        return False
    return fits and _can_read(x, weight, bias)


_NORMS = {
    (total, relu, running, gradient): f"BatchNorm{' sum' * total}{' ReLU' * relu}, "
    + ("running statistics" if running else "batch statistics")
    + ", and backward" * gradient
    for total in (False, True)
    for relu in (False, True)
    for running in (False, True)
    for gradient in (False, True)
}
"""Names of the operations, by whether there is a sum, a ReLU, running statistics, and a gradient."""


def fitting_paths(channels: int) -> tuple[str, ...]:
    """Return the paths in use whose vectors divide the channels."""
    return tuple(path for path in paths() if channels % LANES[path] == 0)


def batch_norm_path(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    running: tuple[Tensor, Tensor] | None,
    *,
    relu: bool,
    gradient: bool,
    total: bool = False,
) -> str:
    """Return the path for :func:`batch_norm_relu`, with its backward pass if ``gradient``, or ``choices.PYTORCH``.

    ``total``: a shortcut is added before the ReLU.
    """
    value = setting()
    key = (value, x.shape, total, relu, running is not None, gradient)
    known = choices.decided.get(key)
    if known is not None and _layers.get() is None:
        return known
    images, channels, height, width = x.shape
    fitting = fitting_paths(channels)
    if not fitting:
        return choices.PYTORCH
    operation = _NORMS[total, relu, running is not None, gradient]
    if value in PATHS:
        if (layers := _layers.get()) is not None:
            layers.add(choices.Shape(operation, 0, channels, channels, height, width))
        choices.decided[key] = fitting[0]
        return fitting[0]
    count = choices.sampled(images, channels, height, width)

    def candidates() -> dict[str, Callable[[], object]]:
        few = x.detach()[:count]
        upstream = torch.ones_like(few)

        def run(path: str) -> None:
            shortcut = few if total else None
            y, statistics = batch_norm_relu(few, weight, bias, eps, path, running, relu=relu, shortcut=shortcut)
            if gradient:
                fixed, output = running is not None, y if total else None
                masked, out = (torch.empty_like(few), torch.empty_like(few)) if total else (None, y)
                batch_norm_relu_backward(
                    upstream, few, statistics, path, running=fixed, out=out, relu=relu, output=output, masked=masked
                )

        def plain() -> None:
            mean, variance = running or (None, None)
            y, mean, inverse = torch.native_batch_norm(few, weight, bias, mean, variance, not running, 0.0, eps)
            if total:
                y.add_(few)
            if relu:
                y.relu_()
            if gradient:
                if running:
                    mean, inverse = running[0], (running[1] + eps).rsqrt()
                before = torch.ops.aten.threshold_backward(upstream, y, 0) if total else upstream
                plain_backward(before, few, weight, bias, mean, inverse, running, eps, relu=relu and not total)

        runs: dict[str, Callable[[], object]] = {path: functools.partial(run, path) for path in fitting}
        return {**runs, choices.PYTORCH: plain}

    shape = choices.Shape(operation, count, channels, channels, height, width)
    path = choices.decided[key] = choices.fastest(shape, candidates)
    return path


def plain_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse: Tensor,
    running: tuple[Tensor, Tensor] | None,
    eps: float,
    requested: tuple[bool, bool, bool] = (True, True, True),
    *,
    relu: bool = True,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of ``x``, weight and bias of ``relu(batch_norm(x))`` by PyTorch, from BatchNorm's input."""
    if relu:
        scale = weight * inverse
        shift = torch.addcmul(bias, mean, scale, value=-1)
        shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
        before = torch.addcmul(shift.view(shape), x, scale.view(shape))
        gradient = torch.ops.aten.threshold_backward.grad_input(gradient, before, 0, grad_input=before)
    statistics = (*running, None, None) if running else (None, None, mean, inverse)
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None] = torch.ops.aten.native_batch_norm_backward(
        gradient, x, weight, *statistics, not running, eps, requested
    )
    return gradients


def batch_norm_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    path: str,
    running: tuple[Tensor, Tensor] | None = None,
    *,
    relu: bool = True,
    shortcut: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``relu(batch_norm(x) + shortcut)`` and its statistics, which :func:`batch_norm_relu_backward` needs.

    Without ``relu``, ``batch_norm(x)``. ``running``: mean and variance to use instead of the batch's. The statistics
    have four rows of one value per channel: mean, inverse standard deviation, scale and shift.
    """
    _require_plain(x)
    channels = x.shape[1]
    y, statistics = torch.empty_like(x), x.new_empty(4, channels)
    if running is not None:
        statistics[0] = running[0]
        statistics[1] = (running[1] + eps).rsqrt()
    if shortcut is not None:
        shortcut = shortcut.contiguous(memory_format=torch.channels_last)
    sizes = (x.numel() // channels, channels, running is not None, relu)
    _call("cretta_batch_norm_relu", PATHS[path], x, weight, bias, eps, shortcut, y, statistics, *sizes)
    if (errors := _errors.get()) is not None:
        mean, variance = running or (None, None)
        plain = F.batch_norm(x, mean, variance, weight, bias, running is None, 0.0, eps)
        plain = plain if shortcut is None else plain.add_(shortcut)
        _add_error(errors, y, plain.relu_() if relu else plain)
    return y, statistics


def batch_norm_relu_backward(
    gradient: Tensor,
    x: Tensor,
    statistics: Tensor,
    path: str,
    *,
    running: bool,
    out: Tensor | None = None,
    relu: bool = True,
    output: Tensor | None = None,
    masked: Tensor | None = None,
    other: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias; write the gradient of ``x`` to ``out``, which may be ``gradient``.

    ``running``: the statistics were not the batch's and do not depend on ``x``. If a shortcut was added, ``output`` is
    the result of the forward pass; the gradient of the shortcut is written to ``masked``, which may be ``gradient``.
    ``other`` is a second gradient of the output, to be added to the first.
    """
    _require_plain(gradient)
    channels = x.shape[1]
    of_parameters = x.new_empty(2, channels)
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    if other is not None:
        other = other.contiguous(memory_format=torch.channels_last)
    errors = _errors.get()
    # Before the kernel runs, which may overwrite the gradient.
    references = []
    if errors is not None:
        total = gradient if other is None else gradient + other
        references = _plain_gradients(total, x, statistics, running=running, relu=relu, output=output)
    sizes = (x.numel() // channels, channels, running, relu)
    tensors = (x, gradient, other, output, statistics, masked, out, of_parameters)
    _call("cretta_batch_norm_relu_backward", PATHS[path], *tensors, *sizes)
    of_weight, of_bias = of_parameters.unbind()
    if errors is not None:
        for result, (reference, size) in zip((of_weight, of_bias, out, masked), references, strict=True):
            if result is not None:
                _add_error(errors, result, reference, size)
    return of_weight, of_bias


def _plain_gradients(
    gradient: Tensor, x: Tensor, statistics: Tensor, *, running: bool, relu: bool, output: Tensor | None
) -> list[tuple[Tensor, Tensor]]:
    """Return the gradients of weight, bias, ``x`` and shortcut by PyTorch, and the norm of what they are sums of."""
    mean, inverse, scale, shift = statistics
    # In float64 the sign of the ReLU's input is exact, as it is in the kernel, which rounds once.
    before = torch.addcmul(shift.double().view(-1, 1, 1), x.double(), scale.double().view(-1, 1, 1))
    if relu:
        gradient = torch.where((before if output is None else output) > 0, gradient, 0.0)
    known = (mean, inverse.pow(-2), None, None) if running else (None, None, mean, inverse)
    of_input, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
        gradient, x, scale / inverse, *known, not running, 0.0, (True, True, True)
    )
    size = gradient.norm()
    return [(of_weight, size), (of_bias, size), (of_input, size * scale.abs().mean()), (gradient, size)]
