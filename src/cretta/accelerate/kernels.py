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
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import profiler
from torch.profiler import record_function

from cretta.accelerate import choices
from cretta.errors import OptionError

FILE = Path(__file__).with_name("_kernels.so")
PATHS = {"avx512": 1, "avx2": 0, "emulated": 2}
"""Number of each path in the library, the widest first."""
LANES = {"avx512": 16, "avx2": 8, "emulated": 16}
TENSORS = (Tensor, nn.Parameter)
"""Types of tensors that are memory and nothing else."""

_P, _L, _D = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
SIGNATURES = {
    "cretta_convolve": (_P, _L, _L, _L, _P, _P, _P, _P, _P, _P, _L, _L, _L, _L, _L),
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


def require_plain(x: Tensor) -> None:
    """Raise an error for a tensor whose memory a kernel cannot read."""
    if not is_plain(x):
        raise RuntimeError(f"expected a float32 tensor on the CPU, got {type(x).__name__} of {x.dtype} on {x.device}")


def is_plain(x: Tensor) -> bool:
    """Return whether a tensor is float32 memory on the CPU, and nothing else."""
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
errors_in_block: ContextVar[list[float] | None] = ContextVar("errors", default=None)
"""Where :func:`add_error` adds to, in a block of :func:`compared`."""
layers_in_block: ContextVar[set[choices.Shape] | None] = ContextVar("layers", default=None)
"""The layers that such a block has run."""


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


def call_kernel(name: str, *arguments: Tensor | float | None, label: str | None = None) -> None:
    """Run one kernel of the library; see :meth:`Library.call`."""
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
    tokens = errors_in_block.set(errors), layers_in_block.set(layers)
    try:
        with use(path):
            yield errors, layers
    finally:
        errors_in_block.reset(tokens[0])
        layers_in_block.reset(tokens[1])


def add_error(errors: list[float], result: Tensor, reference: Tensor, size: Tensor | float = 0.0) -> None:
    """Add the norm of the difference, divided by the reference's norm plus ``size``."""
    errors.append(float((result - reference).norm() / (reference.norm() + size).clamp(min=1e-30)))


def can_read(x: Tensor, *vectors: Tensor | None) -> bool:
    """True if ``x`` is a non-empty channels-last float32 CPU tensor and all ``vectors`` are contiguous float32."""
    if x.dim() != 4 or not is_plain(x) or not x.is_contiguous(memory_format=torch.channels_last) or x.numel() == 0:
        return False
    for vector in vectors:
        if vector is not None and not (is_plain(vector) and vector.is_contiguous()):
            return False
    return bool(paths())
