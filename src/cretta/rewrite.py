"""Rewrites a network, our own copy of it, into one that computes the same in fewer passes over memory.

A network is followed symbolically by ``torch.fx``. One that cannot be followed, for it looks at its numbers to decide
what to do, is left as it is.
"""

from __future__ import annotations

import copy
import logging
import operator
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cretta import frugal

LOG = logging.getLogger("cretta")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
RELUS = (F.relu, F.relu_, torch.relu, torch.relu_)
SUMS = (operator.add, torch.add)


def _by_position(network: Callable[..., Any], x: Tensor) -> Any:
    return network(x)


def rewritten(
    module: nn.Module, *, learns: bool, call: Callable[[Callable[..., Any], Tensor], Any] = _by_position
) -> nn.Module | None:
    """A module on the same parameters that computes as ``module`` does, or None where there is nothing to gain.

    One that does not learn has its BatchNorm layers with training's statistics folded into copies of the convolutions
    before them. The result shares all else with ``module``; its own hooks, and those that layers have now, still run.
    ``call`` passes a network its input; the result takes its input in the same way.
    """
    if "forward" in vars(module) or not _precise(module):
        return None
    door = _Door(module, call)
    try:
        graph = _Tracer().trace(door)
    except Exception as wrong:  # whatever the network's own code says to a symbol
        LOG.debug("%s cannot be followed: %s", type(module).__name__, wrong)
        return None
    network = fx.GraphModule(door, graph, type(module).__name__)
    changes = (0 if learns else _fold(network)) + _spare(network)
    if not changes:
        return None
    graph.lint()
    network.recompile()
    # The module itself with another forward: its hooks run, and its errors are its own.
    shell = copy.copy(module)
    vars(shell)["forward"] = lambda *given, **named: network.forward(_only_tensor(*given, *named.values()))
    return shell


def _only_tensor(*given: object) -> Tensor:
    (tensor,) = (value for value in given if isinstance(value, Tensor))
    return tensor


class _Door(nn.Module):
    """A network that is given one tensor only; other arguments are constants, which symbols would replace."""

    def __init__(self, network: nn.Module, call: Callable[[Callable[..., Any], Tensor], Any]) -> None:
        super().__init__()
        self.network = network
        self.call = call

    def forward(self, x: Tensor) -> Any:
        """Without the network's own hooks."""
        return self.call(self.network.forward, x)


class _Tracer(fx.Tracer):
    """Goes into every module but PyTorch's own and those with hooks, which would be lost.

    While it does, ``nn.Module`` itself is patched, for every thread: what others call must work all the same. (What
    ``torch.compile`` compiled refuses to be called while anybody follows a network; that is PyTorch's.)
    """

    _alone = threading.Lock()

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Follows ``root``; one network at a time."""
        with self._alone:
            self._thread = threading.get_ident()
            return super().trace(root, concrete_args)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether ``m`` is called as it is."""
        return super().is_leaf_module(m, module_qualified_name) or _has_hooks(m)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Every module's call comes here."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Every look at a module's parameters and buffers comes here."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
    )


def _precise(module: nn.Module) -> bool:
    return all(p.dtype in (torch.float32, torch.float64) for p in module.parameters())


def _fold(network: fx.GraphModule) -> int:
    """Folds BatchNorm with training's statistics into the convolution before it."""
    layers = dict(network.named_modules())
    uses = Counter(node.target for node in network.graph.nodes if node.op == "call_module")
    changes = 0
    for node in list(network.graph.nodes):
        norm, before = _layer(node, layers, BATCH_NORMS), _only_source(node)
        if norm is None or before is None or norm.running_mean is None:
            continue
        convolution = _layer(before, layers, CONVOLUTIONS)
        if convolution is None or uses[node.target] > 1 or uses[before.target] > 1:
            continue
        with torch.inference_mode(False):
            folded = fuse_conv_bn_eval(convolution, norm).requires_grad_(False)
        name = f"folded_{changes}"
        network.add_submodule(name, folded)
        before.target = name
        node.replace_all_uses_with(before)
        network.graph.erase_node(node)
        changes += 1
    return changes


def _spare(network: fx.GraphModule) -> int:
    """Puts the operations of :mod:`cretta.frugal` in the place of PyTorch's."""
    layers = dict(network.named_modules())
    changes = 0
    fresh: set[fx.Node] = set()
    """Nodes whose result is new memory that no pass back looks at."""
    for node in list(network.graph.nodes):
        before = _only_source(node)
        if _is_relu(node, layers):
            norm = _layer(before, layers, BATCH_NORMS)
            if before is not None and norm is not None and norm.affine and not norm.training:
                _call(node, frugal.normalise_and_rectify, _get(network, node, before.target), before.args[0])
                network.graph.erase_node(before)
                changes += 1
            elif before in fresh:
                _call(node, frugal.rectify, before)
                changes += 1
        elif (convolution := _layer(node, layers, CONVOLUTIONS)) is not None:
            if convolution.padding_mode == "zeros" and not isinstance(convolution.padding, str):
                layer = _get(network, node, node.target)
                if before is not None and before.target is frugal.normalise_and_rectify and _next_to(before, node):
                    norm, x = before.args
                    _call(node, frugal.normalise_rectify_convolve, norm, layer, x)
                    network.graph.erase_node(before)
                else:
                    _call(node, frugal.convolve, layer, node.args[0])
                changes += 1
            fresh.add(node)
        elif _layer(node, layers, BATCH_NORMS) is not None:
            fresh.add(node)
        elif _is_sum(node):
            first, second = node.args
            in_place = node.target == "add_"
            for one, other in ((first, second),) if in_place else ((first, second), (second, first)):
                if one in fresh and len(one.users) == 1 and one is not other:
                    _call(node, frugal.add, one, other)
                    changes += 1
                    fresh.add(node)
                    break
            if not in_place:
                fresh.add(node)
    return changes


def _layer(node: fx.Node | None, layers: dict[str, nn.Module], kinds: tuple[type[nn.Module], ...]) -> Any:
    """The layer that ``node`` calls with nothing but its input, if it is of exactly these kinds and has no hooks."""
    if node is None or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    layer = layers[str(node.target)]
    return layer if type(layer) in kinds and not _has_hooks(layer) else None


def _only_source(node: fx.Node) -> fx.Node | None:
    """The node whose result ``node`` takes first and nobody else takes."""
    first = node.args[0] if node.args else None
    return first if isinstance(first, fx.Node) and len(first.users) == 1 else None


def _next_to(before: fx.Node, node: fx.Node) -> bool:
    """Whether nothing is computed between the two."""
    step = before.next
    while step is not node and step.op == "get_attr":
        step = step.next
    return step is node


def _is_relu(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    return (
        _layer(node, layers, (nn.ReLU,)) is not None
        or (node.op == "call_function" and node.target in RELUS)
        or (node.op == "call_method" and node.target in ("relu", "relu_"))
    )


def _is_sum(node: fx.Node) -> bool:
    plain = len(node.args) == 2 and all(isinstance(argument, fx.Node) for argument in node.args) and not node.kwargs
    function = node.op == "call_function" and node.target in SUMS
    return plain and (function or (node.op == "call_method" and node.target in ("add", "add_")))


def _get(network: fx.GraphModule, before: fx.Node, name: Any) -> fx.Node:
    with network.graph.inserting_before(before):
        return network.graph.get_attr(str(name))


def _call(node: fx.Node, function: Any, *arguments: Any) -> None:
    node.op, node.target, node.args, node.kwargs = "call_function", function, arguments, {}
