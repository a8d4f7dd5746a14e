"""The kernels of ``kernels.c``: what a step spends most of its time in, faster than PyTorch has it.

They are compiled when the package is installed on Linux, if there is a C compiler, and used on x86-64 processors with
AVX2 but no AVX-512, for float32 batches in channels-last. Everywhere else PyTorch's own operations do the work.
``CRETTA_KERNELS=off`` in the environment turns them off; ``on`` uses them with AVX-512 too.
"""

from __future__ import annotations

import ctypes
import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd import profiler
from torch.profiler import record_function
from torch.utils.weak import WeakIdKeyDictionary

LOG = logging.getLogger("cretta")
FILE = Path(__file__).with_name("_kernels.so")
COLUMNS = 16
"""Channels that a convolution computes at once."""
PARTS = 8
"""Partial sums of a weight's gradient, added in a fixed order."""


_P, _L, _D = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
SIGNATURES = {
    "cretta_convolve": (_P, _L, _P, _P, _P, _P, _L, _L, _L, _L, _L),
    "cretta_convolve_weight": (_P, _L, _P, _P, _P, _L, _L, _L, _L, _L),
    "cretta_normalise": (_P, _L, _P, _P, _P, _D, _P, _P, _L, _L, _L),
    "cretta_normalise_back": (_P, _L, _P, _P, _P, _P, _P, _L, _L, _L),
}


class Kernels:
    """The compiled library, and PyTorch's threads to run it."""

    def __init__(self, library: ctypes.CDLL, parallel: int | None) -> None:
        self._functions = {name: getattr(library, name) for name in SIGNATURES}
        for name, signature in SIGNATURES.items():
            self._functions[name].argtypes = signature
        self._parallel = parallel

    def call(self, name: str, *arguments: Tensor | float | None, label: str | None = None) -> None:
        """Runs one; tensors are handed over by where their numbers lie. Profilers see it by its label, or name."""
        given = [_address(argument) if isinstance(argument, Tensor) else argument for argument in arguments]
        watched = record_function(label or name) if profiler._is_profiler_enabled else nullcontext()
        with watched:
            failed = self._functions[name](self._parallel, torch.get_num_threads(), *given)
        if failed:
            raise MemoryError(f"no memory was left for {name}")


def _address(x: Tensor) -> int:
    if not _plain(x):
        raise RuntimeError(f"a kernel was given {type(x).__name__} of {x.dtype} on {x.device}")
    return x.data_ptr()


def _plain(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.is_cpu and type(x) in (Tensor, nn.Parameter)


def _load(file: Path, wanted: str | None) -> Kernels | str:
    """The library, or why there is none."""
    if wanted == "off":
        return "CRETTA_KERNELS=off is set"
    if not file.exists():
        return "they were not compiled when cretta was installed: that takes Linux on x86-64 and a C compiler"
    try:
        library = ctypes.CDLL(str(file))
        interface = library.cretta_interface
        interface.restype = ctypes.c_uint
        if interface() != zlib.crc32(Path(__file__).with_name("kernels.c").read_bytes()):
            return "they were compiled for another version of cretta; install it again"
        ready = library.cretta_ready()
        if ready == 0 or (ready == 1 and wanted != "on"):
            return "this processor has no AVX2" if ready == 0 else "PyTorch makes use of this processor's AVX-512"
        # PyTorch's build of GNU's OpenMP; its threads and others beside them would wait for each other.
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (OSError, AttributeError) as wrong:
        return f"they could not be loaded: {wrong}"
    return Kernels(library, ctypes.cast(parallel, ctypes.c_void_p).value)


_found = _load(FILE, os.environ.get("CRETTA_KERNELS"))
KERNELS: Kernels | None = _found if isinstance(_found, Kernels) else None
MISSING: str | None = _found if isinstance(_found, str) else None
"""Why there are no kernels, if there are none."""
if MISSING is not None:
    LOG.debug("no kernels of our own: %s", MISSING)


_resting: ContextVar[bool] = ContextVar("resting", default=False)


@contextmanager
def resting() -> Iterator[None]:
    """Within this the kernels are not used; a pass back goes the way that its forward went."""
    token = _resting.set(True)
    try:
        yield
    finally:
        _resting.reset(token)


def _usable(x: Tensor, *vectors: Tensor | None) -> bool:
    """Whether the kernels can read a batch, and numbers for each of some channels."""
    if (
        KERNELS is None
        or _resting.get()
        or x.dim() != 4
        or not _plain(x)
        or not x.is_contiguous(memory_format=torch.channels_last)
    ):
        return False
    return x.numel() > 0 and all(v is None or (_plain(v) and v.is_contiguous()) for v in vectors)


# Convolutions.

_G = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64, device="cpu")
_transformed: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""For each weight as which it was transformed, and its transforms for the ways forward and back."""


def can_convolve(layer: nn.Module, x: Tensor) -> bool:
    """Whether :func:`convolve` does what the frozen ``layer`` does to ``x``, and to the gradient on its way back."""
    if KERNELS is None or not isinstance(layer, nn.Conv2d):
        return False
    weight, bias = layer.weight, layer.bias
    outputs, inputs, *kernel = weight.shape
    return (
        _usable(x, bias)
        and _plain(weight)
        and not weight.is_inference()
        and kernel == [3, 3]
        and inputs == x.shape[1]
        and outputs % COLUMNS == inputs % COLUMNS == 0
        and (bias is None or bias.shape == (outputs,))
        and layer.stride == layer.padding == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
    )


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, back: bool = False) -> Tensor:
    """``F.conv2d(x, weight, bias, padding=1)``, or ``back`` what a gradient ``x`` of its output makes of its input's.

    By Winograd's F(2 × 2, 3 × 3) (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016): 16
    products for four pixels of a channel, where 36 are the direct way. An infinite value, or one that is no number,
    makes all pixels of the tiles that it lies in or beside no number.
    """
    assert KERNELS is not None
    inputs, outputs = weight.shape[:2] if back else (weight.shape[1], weight.shape[0])
    images, _, height, width = x.shape
    shape, layout = (images, outputs, height, width), torch.channels_last
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
    sizes = (images, height, width, inputs, outputs)
    label = "cretta_convolve_back" if back else None
    KERNELS.call("cretta_convolve", x, _transform(weight, back=back), bias, y, *sizes, label=label)
    return y


def weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of the weight of ``F.conv2d(x, weight, padding=1)``, given that of its output.

    The transpose of :func:`convolve` in its weight, by Winograd: dw = Gᵀ [Σ_tiles (A g Aᵀ) (Bᵀ x B)] G.
    """
    assert KERNELS is not None
    images, inputs, height, width = x.shape
    outputs = gradient.shape[1]
    sums = x.new_empty(PARTS, 16, inputs * outputs)
    KERNELS.call("cretta_convolve_weight", x, gradient, sums, images, height, width, inputs, outputs)
    taps = (torch.kron(_G, _G).t() @ sums.sum(0, dtype=torch.float64)).float()
    return taps.view(3, 3, inputs, outputs).permute(3, 2, 0, 1)


def _transform(weight: Tensor, *, back: bool) -> Tensor:
    """G w Gᵀ in the kernels' order, computed once for a weight that does not change.

    It takes 16/9 of the weight's memory. A change is noticed as autograd notices it: not if made through ``.data``.
    """
    kept = _transformed.get(weight)
    if kept is None or kept[0] != weight._version or kept[1].data_ptr() != weight.data_ptr():
        kept = (weight._version, weight.detach(), {})  # while its memory is held, nothing else can have its address
        _transformed[weight] = kept
    found: Tensor | None = kept[2].get(back)
    if found is None:
        with torch.no_grad():
            # Back, each input gathers from the outputs around it: the same with the weight turned round.
            turned = weight.flip(2, 3).transpose(0, 1) if back else weight
            outputs, inputs = turned.shape[:2]
            taps = turned.permute(2, 3, 1, 0).reshape(9, inputs * outputs)
            products = (torch.kron(_G, _G) @ taps.double()).float()
            panels = products.view(16, inputs, outputs // COLUMNS, COLUMNS).permute(2, 0, 1, 3)
            found = kept[2][back] = panels.contiguous()
    return found


# BatchNorm and the ReLU after it.


def can_normalise(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether :func:`normalise` can take these."""
    fits = x.dim() == 4 and x.shape[1] % 8 == 0 and weight.shape == bias.shape == x.shape[1:2]
    return fits and _usable(x, weight, bias)


def normalise(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, given: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """``relu(batch_norm(x))``, and what :func:`normalise_back` needs besides ``x``: a row for each quantity.

    Means and variances are those ``given``, or of the batch.
    """
    assert KERNELS is not None
    y, facts = torch.empty_like(x), x.new_empty(4, x.shape[1])
    if given is not None:
        facts[0] = given[0]
        facts[1] = (given[1] + eps).rsqrt()
    sizes = (x.numel() // x.shape[1], x.shape[1], given is not None)
    KERNELS.call("cretta_normalise", x, weight, bias, eps, y, facts, *sizes)
    return y, facts


def normalise_back(
    gradient: Tensor, x: Tensor, facts: Tensor, *, given: bool, into: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias and, unless None, that of x ``into`` a tensor shaped and laid out as ``x`` is.

    That may be ``gradient`` itself. ``given`` says whether statistics were.
    """
    assert KERNELS is not None
    slopes = x.new_empty(2, x.shape[1])
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    sizes = (x.numel() // x.shape[1], x.shape[1], given)
    KERNELS.call("cretta_normalise_back", x, gradient, facts, into, slopes, *sizes)
    return slopes[0], slopes[1]
