"""What a step of an adapter costs: operations and memory, measured while it runs."""

from __future__ import annotations

import dataclasses
import warnings
from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any

from torch import Tensor, nn

from cretta.adapter import Adapter
from cretta.errors import OptionError
from cretta.methods.source import Source
from cretta.metrics.memory import peak_meter
from cretta.metrics.operations import OperationCount

MEGABYTE = 2**20
"""As in the paper: there CreTTA takes 1105.78 more than TENT, for activations that alone are 1127 million bytes."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a step costs."""

    gflops: float
    """:func:`flops`, in thousands of millions."""
    paper_gflops: float
    """:func:`paper_flops`, likewise."""
    peak_megabytes: float
    """:func:`peak_memory`, in units of 2**20 bytes."""


def measure_cost(adapter: Adapter[Any], batch: Tensor) -> Cost:
    """What a steady step of ``adapter`` on ``batch`` costs; the adapter itself does not take it.

    A steady step is the one after next. By then all is there that a method computes once: energies E_φ(x_s) of the
    source samples it reads, EATA's Fisher information, TEA's first samples, the optimiser's moments. It is taken by a
    twin of the adapter, so that this one does not change by a bit. A step that a method leaves out costs no pass back:
    measure with a batch of the stream, not with noise. With ``adapt_every`` operations are the mean of as many
    batches, one of which learns, and memory is the most that any of them takes.
    """
    total, forward = count_operations(adapter, batch)
    return Cost(total / 1e9, forward / 1e9, peak_memory(adapter, batch) / MEGABYTE)


def flops(adapter: Adapter[Any], batch: Tensor, *, steady: bool = True, scale_to: int | None = None) -> int:
    """Floating-point operations of a step, forward and back: two for each multiply-accumulate that was executed.

    Counted are convolutions and matrix products, by the formulas of ``torch.utils.flop_counter``; the rest is small
    beside them. A steady step is that of :func:`measure_cost`; ``steady=False`` counts the next, with what a method
    computes but once. ``scale_to`` is the batch size to report for, in proportion to that of ``batch``.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    >>> flops(Source(net), torch.rand(8, 3, 2, 2)) == 8 * 2 * (3 * 4 * 4 + 16 * 2)
    True
    """
    return count_operations(adapter, batch, steady=steady, scale_to=scale_to)[0]


def count_operations(
    adapter: Adapter[Any], batch: Tensor, *, steady: bool = True, scale_to: int | None = None
) -> tuple[int, int]:
    """:func:`flops` and :func:`paper_flops` of the same step."""
    _check_scale(scale_to)
    # BatchNorm folded into a convolution would not be seen; the network is counted as it was given.
    rehearsal = _Rehearsal(adapter, batch, steady, fuse=False, compile=None)
    count, size = rehearsal.operations(), len(batch)
    share = Fraction(size if scale_to is None else scale_to, size * rehearsal.batches)
    return round(count.total * share), round(count.forward * share)


def paper_flops(
    adapter: Adapter[Any] | nn.Module, batch: Tensor, *, steady: bool = True, scale_to: int | None = None
) -> int:
    """Operations of a step as the paper counts them: of forwards only. A network counts as Source does.

    Two for each multiply-accumulate of a convolution or matrix product; for each element two of BatchNorm with
    training's statistics and five with the batch's (one less without γ and β), five of other norm layers, one of an
    activation, sum, product or pooling. The paper does not say how it counts; these are, but for the bias of
    convolutions, the rules of DeepSpeed's profiler, which give two of its five numbers to the last digit. Losses,
    sampling's arithmetic and the optimiser do not count. ``steady`` and ``scale_to`` are as in :func:`flops`.

    In 10⁹, for WRN-40-2 and 200 images of 32 × 32, the paper prints, and this counts: Source 131.53 and 131.53;
    CreTTA 527.40 and 527.40, three forwards with the batch's statistics and one with training's; BN-Adapt 131.53 and
    131.96; TENT 132.59 and 131.96; TEA 4335.82 and 3034.98. What the last three count is not known. BN-Adapt's is the
    number of Source, TENT's lies above one forward, and TEA's is that of 32.9 forwards where the method has 23. The
    paper's numbers for CIFAR-100 are those for CIFAR-10 to the last digit, which its larger last layer rules out.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    >>> paper_flops(net, torch.rand(1, 3, 2, 2), scale_to=200) == 200 * (2 * (3 * 4 * 4 + 16 * 2) + 2 * 16)
    True
    """
    if isinstance(adapter, nn.Module):
        adapter = Source(adapter)
    return count_operations(adapter, batch, steady=steady, scale_to=scale_to)[1]


def peak_memory(adapter: Adapter[Any], batch: Tensor, *, steady: bool = True) -> int:
    """The most bytes alive at once during a step, above those alive before it.

    On a GPU this is what PyTorch's allocator says, whose peak statistics are reset. On the CPU it is the sum of all
    tensors made in the step, kept for the pass back or not, each storage once, after every operation: exact and the
    same each time. Unseen are what an operation takes and gives back within itself, as the workspaces of convolutions
    do, and the few bytes of numbers that become tensors. ``steady`` is as in :func:`flops`.
    """
    return _Rehearsal(adapter, batch, steady).peak_memory()


class _Rehearsal:
    """A twin of an adapter, which takes the same step as often as one likes."""

    def __init__(self, adapter: Adapter[Any], batch: Tensor, steady: bool, **options: Any) -> None:
        if not isinstance(adapter, Adapter):
            raise OptionError(
                f"adapter is {type(adapter).__name__}; needed is a cretta.Adapter, as cretta.adapt(net, 'tent') makes "
                "it."
            )
        self._adapter = _twin(adapter, **options)
        self._batch = batch
        self.batches = self._adapter.options.adapt_every
        """So many are taken each time; one of them learns."""
        if steady:
            self._take()
        self._state = self._adapter.state()
        watch = self._adapter._watch
        self._watch_back = watch.mark() if watch is not None else None
        if steady:
            # What the step is going to look up, such as energies of the next source samples, is there after this.
            self._take()

    def operations(self) -> OperationCount:
        count = OperationCount(self._is_network)
        self._take_within(count)
        return count

    def peak_memory(self) -> int:
        meter = peak_meter(self._adapter.generator.device)
        self._take_within(meter)
        return meter.peak

    def _take_within(self, meter: AbstractContextManager[Any]) -> None:
        self._adapter.load(self._state)
        if self._watch_back is not None:
            self._watch_back()
        with meter:
            self._take()

    def _take(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the adapter itself warns of collapse and of its inputs
            for _ in range(self.batches):
                self._adapter(self._batch)

    def _is_network(self, module: nn.Module) -> bool:
        return any(module is one.module for one in (self._adapter.model, *self._adapter._frozen.values()))


def _twin(adapter: Adapter[Any], **other: Any) -> Adapter[Any]:
    """Another adapter of the same kind in the same state, with some ``other`` options."""
    defaults = {field.name: field.default for field in dataclasses.fields(adapter.options)}
    options = {name: value for name, value in vars(adapter.options).items() if value != defaults[name]}
    options["skip"] = adapter.skip  # a preset's names match parts of names, a user's must be whole
    twin = type(adapter)(adapter.net, adapter.buffer, **(options | other))
    twin.load(adapter.state())
    if adapter._watch is not None and twin._watch is not None:
        twin._watch.load(adapter._watch.state(), twin.generator.device)
    return twin


def _check_scale(scale_to: int | None) -> None:
    if scale_to is not None and (isinstance(scale_to, bool) or not isinstance(scale_to, int) or scale_to < 1):
        raise OptionError(f"scale_to={scale_to!r}: give a batch size, a whole number of at least 1, or None.")
