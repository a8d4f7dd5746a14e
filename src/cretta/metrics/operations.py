"""Counts floating-point operations while they are executed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.hooks import RemovableHandle


class OperationCount(TorchDispatchMode):
    """Counts operations while they are executed.

    ``total`` is of all convolutions and matrix products, of the pass back too. ``forward`` is of forwards of networks,
    by the rules of :func:`cretta.metrics.paper_flops`: from when a module that ``is_network`` is called until it
    returns. The pass back happens outside of that, and so do losses, augmentations and optimisers.

    The formulas are those of :class:`torch.utils.flop_counter.FlopCounterMode`, which itself follows modules in a way
    that forbids :func:`torch.autograd.grad` for a network's input, as TEA takes it.
    """

    def __init__(self, is_network: Callable[[nn.Module], bool]) -> None:
        TorchDispatchMode.__init__(self)
        self.total = 0
        self.forward = 0
        self._is_network = is_network
        self._depth = 0
        self._thread = threading.get_ident()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        self._hooks = [
            register_module_forward_pre_hook(self._go_in),
            register_module_forward_hook(self._come_out, always_call=True),
        ]
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        TorchDispatchMode.__exit__(self, *exception)
        for hook in self._hooks:
            hook.remove()

    def _go_in(self, module: nn.Module, given: Any) -> None:
        if self._here and (self._depth or self._is_network(module)):
            self._depth += 1

    def _come_out(self, module: nn.Module, given: Any, returned: Any) -> None:
        if self._here and self._depth:
            self._depth -= 1

    @property
    def _here(self) -> bool:
        """Hooks hear of modules in every thread, operations are those of one."""
        return threading.get_ident() == self._thread

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Executes an operation and counts it."""
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
    """How much an operation other than a product counts in the paper."""
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
