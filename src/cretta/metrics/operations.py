"""Count the floating-point operations of an adapter's step while they are executed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any, NamedTuple, Self

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.hooks import RemovableHandle

from cretta.adapter import Adapter
from cretta.errors import OptionError
from cretta.metrics.dispatch import DispatchMode
from cretta.options import check_integer


class Operations(NamedTuple):
    """Floating-point operations of a step, by two rules."""

    total: int
    """Forward and backward: two for each multiply-accumulate of a convolution or matrix product."""
    forward: int
    """Of forward passes only, as the paper counts; see :func:`count_operations`."""


def count_operations(
    adapter: Adapter[Any], batch: Tensor, *, steady: bool = True, scale_to: int | None = None
) -> Operations:
    """Return the operations of a step of ``adapter`` on ``batch``; the adapter itself does not change.

    A steady step is the one after next. By then everything exists that a method computes once: the energies E_φ(x_s) of
    the source samples it reads, EATA's Fisher information, TEA's first samples, the optimizer's moments.
    ``steady=False`` counts the next step, including these. A step that a method skips has no backward pass: use a batch
    of the stream, not noise. Where a steady step is skipped, because ETA and EATA have just seen the same images, the
    first one counts. With ``adapt_every`` the result is the mean of as many batches, one of which is learned from.
    ``scale_to`` is the batch size to report for, in proportion to the size of ``batch``.

    ``total`` counts convolutions and matrix products by the formulas of ``torch.utils.flop_counter``; the rest is small
    in comparison. ``forward`` counts forward passes only: two for each multiply-accumulate of a convolution or matrix
    product; for each element two of BatchNorm with running statistics and five with the batch's (one less without γ
    and β), five of other norm layers, one of an activation, sum, product or pooling. The paper does not say how it
    counts; except for the bias of convolutions these are the rules of DeepSpeed's profiler, which give two of its
    five numbers to the last digit. Losses, the arithmetic of sampling and the optimizer do not count.

    In 10⁹, for WRN-40-2 and 200 images of 32 × 32, the paper prints, and ``forward`` is: Source 131.53 and 131.53;
    CreTTA 527.40 and 527.40, three forward passes with the batch's statistics and one with running ones; BN-Adapt
    131.53 and 131.96; TENT 132.59 and 131.96; TEA 4335.82 and 3034.98. What the last three count is not known.
    BN-Adapt's is the number of Source, TENT's lies above one forward pass, and TEA's is that of 32.9 forward passes
    where the method has 23. The paper's numbers for CIFAR-100 are those for CIFAR-10 to the last digit, which its
    larger last layer rules out.

    >>> import cretta, torch
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    >>> operations = count_operations(cretta.adapt(net, "source"), torch.rand(8, 3, 2, 2))
    >>> operations.total == 8 * 2 * (3 * 4 * 4 + 16 * 2), operations.forward == operations.total + 8 * 2 * 16
    (True, True)
    """
    if not isinstance(adapter, Adapter):
        raise OptionError(
            f"expected a cretta.Adapter, as cretta.adapt(net, 'tent') returns it, got {type(adapter).__name__}."
        )
    if scale_to is not None:
        check_integer("scale_to", scale_to, at_least=1)
    # BatchNorm folded into a convolution would not be seen: count the network as the user passed it.
    clone = adapter.clone(fuse=False, compile=None)
    batches = clone.options.adapt_every

    def step(meter: AbstractContextManager[Any]) -> bool:
        """Take a step; return whether anything was learned."""
        with warnings.catch_warnings(), meter:
            warnings.simplefilter("ignore", UserWarning)  # the adapter itself warns of collapse and of its inputs
            learned = []
            for _ in range(batches):
                clone(batch)
                learned.append(clone.last.adapted)
        return any(learned)

    if steady:
        step(nullcontext())
        # The step to be counted, once in advance: what it looks up, such as energies of source samples, is then there.
        state = clone.state.snapshot()
        if not step(nullcontext()):
            state = clone.initial
        clone.state.restore(state)
    counter = OperationCount(clone.networks)
    step(counter)
    share = Fraction(len(batch) if scale_to is None else scale_to, len(batch) * batches)
    return Operations(round(counter.total * share), round(counter.forward * share))


class OperationCount(DispatchMode):
    """Counts operations while they are executed; ``total`` and ``forward`` are those of :class:`Operations`.

    An operation belongs to a forward pass from the call of one of the networks until that returns. Backward passes,
    losses, augmentations and optimizers run outside of these calls. ``networks`` is a function because a method may
    create its frozen network during the step.

    The formulas are those of :class:`torch.utils.flop_counter.FlopCounterMode`, which itself tracks modules in a way
    that rules out :func:`torch.autograd.grad` for a network's input, as TEA computes it.
    """

    def __init__(self, networks: Callable[[], Iterable[nn.Module]]) -> None:
        TorchDispatchMode.__init__(self)
        self.total = 0
        self.forward = 0
        self._networks = networks
        self._depth = 0
        self._thread = threading.get_ident()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        TorchDispatchMode.__exit__(self, *exception)
        for hook in self._hooks:
            hook.remove()

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if self._in_thread and (self._depth or any(module is network for network in self._networks())):
            self._depth += 1

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._in_thread and self._depth:
            self._depth -= 1

    @property
    def _in_thread(self) -> bool:
        """Hooks are called for modules in every thread; operations are counted in one."""
        return threading.get_ident() == self._thread

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute an operation and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.overloadpacket in flop_registry:
            products = int(flop_registry[func.overloadpacket](*args, **kwargs, out_val=out))
            self.total += products
            self.forward += products if self._depth else 0
        elif self._depth:
            self.forward += _elementwise(func, args, kwargs, out)
        return out


ELEMENTWISE = {"add", "mul", "_softmax", "relu", "elu", "gelu", "silu", "mish", "sigmoid", "tanh"}
ELEMENTWISE |= {"leaky_relu", "_prelu_kernel", "hardtanh", "hardsigmoid", "hardswish"}
BATCH_NORM = {"native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm"}
BATCH_NORM |= {"_batch_norm_with_update", "_batch_norm_no_update"}
OTHER_NORM = {"native_layer_norm", "native_group_norm", "_fused_rms_norm"}


def _elementwise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Return what the paper counts for an operation that is not a product."""
    name = func.overloadpacket.__name__.removesuffix("_")
    if name in ELEMENTWISE:
        return int(out.numel())
    if name == "mean" or "pool" in name:
        return int(args[0].numel())
    if name in BATCH_NORM or name in OTHER_NORM:
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        by_batch = name in OTHER_NORM or named.get("training", name == "_batch_norm_with_update")
        return int(args[0].numel()) * ((5 if by_batch else 2) - (named.get("weight") is None))
    return 0
