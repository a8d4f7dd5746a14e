"""Rewrite a network into one that computes the same with fewer passes over memory.

``torch.fx`` traces the network. A network that cannot be traced, because its code branches on the values of tensors, is
not rewritten.
"""

from __future__ import annotations

import copy
import operator
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cretta.accelerate import kernels, operations

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
RELUS = (F.relu, F.relu_, torch.relu, torch.relu_)
SUMS = (operator.add, torch.add)

Call = Callable[[Callable[..., Any], Tensor], Any]
"""Pass a batch to a network: by position, or by name with constants."""


def by_position(network: Callable[..., Any], x: Tensor) -> Any:
    """Return ``network(x)``."""
    return network(x)


def rewrite(module: nn.Module, *, learns: bool, call: Call = by_position) -> nn.Module | str:
    """Return a module on the same parameters that computes the same as ``module``, or the reason why there is none.

    If the network does not learn, BatchNorm layers with running statistics are folded into copies of the convolutions
    before them. Everything else is shared with ``module``; its hooks, and those that its layers have now, still run.
    ``call`` passes the input to a network; the result takes its input in the same way.
    """
    if "forward" in vars(module):
        return "its forward method was replaced"
    if any(parameter.dtype not in (torch.float32, torch.float64) for parameter in module.parameters()):
        return "it has parameters in half precision"
    network = _trace(module, call)
    if isinstance(network, str):
        return network
    changes = (0 if learns else _fold_batch_norms(network)) + _replace_operations(network)
    if not changes:
        return "it has no operation that could be replaced"
    network.graph.lint()
    network.recompile()
    # The module itself with another forward method: its hooks run, and its error messages are its own.
    shell = copy.copy(module)

    def forward(*args: Any, **named: Any) -> Any:
        with kernels.use(kernels.setting()):  # read once, not in each layer
            return network.forward(_only_tensor(*args, *named.values()))

    vars(shell)["forward"] = forward
    return shell


def _trace(module: nn.Module, call: Call = by_position) -> fx.GraphModule | str:
    """Return the graph of ``module``'s operations, or the reason why it cannot be traced."""
    wrapper = _SingleInput(module, call)
    try:
        graph = _Tracer().trace(wrapper)
    except Exception as error:  # whatever the network's code raises for a symbolic value
        return f"torch.fx cannot trace it ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    return fx.GraphModule(wrapper, graph, type(module).__name__)


def _only_tensor(*args: object) -> Tensor:
    (tensor,) = (value for value in args if isinstance(value, Tensor))
    return tensor


class _SingleInput(nn.Module):
    """A network that takes one tensor; its other arguments are constants, which tracing would make symbolic."""

    def __init__(self, network: nn.Module, call: Call) -> None:
        super().__init__()
        self.network = network
        self.call = call

    def forward(self, x: Tensor) -> Any:
        """Call the network without its own hooks."""
        return self.call(self.network.forward, x)


class _Tracer(fx.Tracer):
    """Enter all modules except PyTorch's own and those with hooks, which would be lost.

    Tracing patches ``nn.Module`` for all threads: calls from other threads must work as before. (A network compiled by
    ``torch.compile`` refuses calls while another thread traces; PyTorch does not allow that.)
    """

    _lock = threading.Lock()

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Trace ``root``; one network at a time."""
        with self._lock:
            self._thread = threading.get_ident()
            return super().trace(root, concrete_args)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """True if ``m`` is called as it is."""
        return super().is_leaf_module(m, module_qualified_name) or _has_hooks(m)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record a module's call; called for the modules of all threads."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Record an access to a parameter or buffer; called for the modules of all threads."""
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


def _fold_batch_norms(network: fx.GraphModule) -> int:
    """Fold BatchNorm with running statistics into the convolution before it; return the number of changes."""
    layers = dict(network.named_modules())
    uses = Counter(node.target for node in network.graph.nodes if node.op == "call_module")
    changes = 0
    for node in list(network.graph.nodes):
        norm, before = _called_layer(node, layers, BATCH_NORMS), _exclusive_input(node)
        if norm is None or before is None or norm.running_mean is None:
            continue
        convolution = _called_layer(before, layers, CONVOLUTIONS)
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


def _replace_operations(network: fx.GraphModule) -> int:
    """Replace PyTorch's operations by those of :mod:`cretta.accelerate.operations`; return the number of changes."""
    layers = dict(network.named_modules())
    changes = 0
    writable: set[fx.Node] = set()
    """Nodes whose output may be overwritten in place."""
    for node in list(network.graph.nodes):
        if _is_relu(node, layers):
            changes += _replace_relu(network, node, layers, writable)
        elif (convolution := _called_layer(node, layers, CONVOLUTIONS)) is not None:
            changes += _replace_convolution(network, node, convolution)
            writable.add(node)
        elif (norm := _called_layer(node, layers, BATCH_NORMS)) is not None:
            if not _is_relu_input(node, layers):
                changes += _replace_batch_norm(network, node, norm)
            writable.add(node)
        elif _is_sum(node):
            changes += _replace_sum(node, writable)
        elif node.target is F.pad:
            changes += _replace_pad(network, node)
    return changes


def _is_relu_input(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    return len(node.users) == 1 and _is_relu(next(iter(node.users)), layers)


def _replace_batch_norm(network: fx.GraphModule, node: fx.Node, norm: Any) -> bool:
    if not norm.affine or (norm.training and norm.momentum is None):
        return False
    _replace_call(node, operations.batch_norm, _get_layer(network, node, node.target), node.args[0])
    return True


def _replace_relu(network: fx.GraphModule, node: fx.Node, layers: dict[str, nn.Module], writable: set[fx.Node]) -> bool:
    before = _exclusive_input(node)
    norm = _called_layer(before, layers, BATCH_NORMS)
    # Without momentum, running statistics are cumulative averages.
    if before is not None and norm is not None and norm.affine and not (norm.training and norm.momentum is None):
        _replace_call(node, operations.batch_norm_relu, _get_layer(network, node, before.target), before.args[0])
        network.graph.erase_node(before)
        return True
    if before is None or before not in writable:
        return False
    if not _replace_block_end(network, node, before, writable):
        _replace_call(node, F.relu_, before)
    return True


def _replace_block_end(network: fx.GraphModule, relu: fx.Node, total: fx.Node, writable: set[fx.Node]) -> bool:
    """Replace BatchNorm, sum and ReLU by one operation, if nothing else can change BatchNorm's input meanwhile."""
    if total.target is not operations.add_in_place or not _is_next(total, relu):
        return False
    for norm, shortcut in (total.args, total.args[::-1]):
        if (
            isinstance(norm, fx.Node)
            and norm.target is operations.batch_norm
            and len(norm.users) == 1
            and _exclusive(norm.args[1]) in writable
        ):
            _replace_call(relu, operations.batch_norm_add_relu, *norm.args, shortcut)
            network.graph.erase_node(total)
            network.graph.erase_node(norm)
            return True
    return False


def _replace_convolution(network: fx.GraphModule, node: fx.Node, convolution: Any) -> bool:
    if convolution.padding_mode != "zeros" or isinstance(convolution.padding, str):
        return False
    before: Any = node.args[0]
    follows = isinstance(before, fx.Node) and _is_next(before, node)
    if follows and before.target is operations.batch_norm_relu and len(before.users) == 1:
        norm, x = before.args
        layer = _get_layer(network, before, node.target)
        _replace_call(node, operations.batch_norm_relu_convolve, norm, layer, x)
        network.graph.erase_node(before)
    elif follows and before.target in (operations.batch_norm_relu, operations.batch_norm_add_relu):
        norm, x, shortcut = (*before.args, None)[:3]
        layer = _get_layer(network, before, node.target)
        with network.graph.inserting_before(before):
            both = network.graph.call_function(operations.batch_norm_add_relu_convolve, (norm, layer, x, shortcut))
        _replace_call(before, operator.getitem, both, 0)
        _replace_call(node, operator.getitem, both, 1)
    else:
        _replace_call(node, operations.convolve, _get_layer(network, node, node.target), before)
    return True


def _replace_sum(node: fx.Node, writable: set[fx.Node]) -> bool:
    first, second = node.args
    in_place = node.target == "add_"
    for one, other in ((first, second),) if in_place else ((first, second), (second, first)):
        if isinstance(one, fx.Node) and one in writable and len(one.users) == 1 and one is not other:
            writable.add(node)
            # Three arguments: no shortcut is added to it yet.
            if one.target is operations.batch_norm_relu_convolve and len(one.args) == 3 and _is_next(one, node):
                _replace_call(node, operations.batch_norm_relu_convolve, *one.args, other)
                node.graph.erase_node(one)
            else:
                _replace_call(node, operations.add_in_place, one, other)
            return True
    if not in_place:
        writable.add(node)
    return False


def _replace_pad(network: fx.GraphModule, node: fx.Node) -> bool:
    """Replace a slice that is padded by zeros."""
    before, padding = _exclusive_input(node), node.args[1] if len(node.args) == 2 else None
    if before is None or before.target is not operator.getitem or not _are(int, padding):
        return False
    x, index = before.args
    if node.kwargs.get("mode", "constant") != "constant" or node.kwargs.get("value") or not _are(slice, index):
        return False
    _replace_call(node, operations.slice_and_pad, x, index, padding)
    network.graph.erase_node(before)
    return True


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(value, kind) for value in values)


def _called_layer(node: fx.Node | None, layers: dict[str, nn.Module], kinds: tuple[type[nn.Module], ...]) -> Any:
    """Return the layer that ``node`` calls with one input, if its type is in ``kinds`` and it has no hooks."""
    if node is None or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    layer = layers[str(node.target)]
    return layer if type(layer) in kinds and not _has_hooks(layer) else None


def _exclusive_input(node: fx.Node) -> fx.Node | None:
    """Return the node of ``node``'s first argument, if nothing else uses it."""
    return _exclusive(node.args[0]) if node.args else None


def _exclusive(value: Any) -> fx.Node | None:
    """Return ``value`` if it is a node that one other node uses."""
    return value if isinstance(value, fx.Node) and len(value.users) == 1 else None


def _is_relu(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    """True if ``node`` is a ReLU: a layer, a function or a method."""
    return (
        _called_layer(node, layers, (nn.ReLU,)) is not None
        or (node.op == "call_function" and node.target in RELUS)
        or (node.op == "call_method" and node.target in ("relu", "relu_"))
    )


def _get_layer(network: fx.GraphModule, before: fx.Node, name: Any) -> fx.Node:
    """Insert a node that returns the layer ``name`` of the network."""
    layer = network.get_submodule(str(name))
    # An attribute of the network itself: PyTorch takes a microsecond for each module on the way to a layer.
    attribute = f"layer_{id(layer)}"
    vars(network)[attribute] = layer
    with network.graph.inserting_before(before):
        return network.graph.get_attr(attribute)


def _replace_call(node: fx.Node, function: Any, *arguments: Any) -> None:
    """Make ``node`` call ``function`` instead."""
    node.op, node.target, node.args, node.kwargs = "call_function", function, arguments, {}


def _is_next(before: fx.Node, node: fx.Node) -> bool:
    """True if nothing is computed between the two nodes."""
    step = before.next
    while step is not node and step.op == "get_attr":
        step = step.next
    return step is node


def _is_sum(node: fx.Node) -> bool:
    two_nodes = len(node.args) == 2 and all(isinstance(value, fx.Node) for value in node.args) and not node.kwargs
    function = node.op == "call_function" and node.target in SUMS
    return two_nodes and (function or (node.op == "call_method" and node.target in ("add", "add_")))
