"""Programs of ``torch.export`` as networks whose normalization layers can adapt.

An exported program calls normalization as a function on tensors. Here every such call becomes a layer again, on the
same parameters, so that methods can adapt it like that of any other network.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from cretta.errors import BatchError, ModelError, StateError
from cretta.models.classifier import MEAN, STD, Normalization, normalize
from cretta.models.open import FREE_BATCH

Shape = tuple[int | None, ...]
"""Of the batches that a program takes; None where any size is allowed."""
Arguments = Mapping[str, Any]
"""Of a call of normalization, by name: nodes of the graph and constants."""
LAYER_TENSORS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
EVAL_FIRST = "call net.eval() before torch.export.export"


def open_exported(path: Path, normalization: Normalization = None) -> tuple[GraphModule, Shape, str]:
    """Read a file of ``torch.export.save``.

    Return the network, the shape of its batches, and the name of a normalization that could not be made a layer, if
    any. The file may hold pickled objects: open only files you trust.
    """
    try:
        program = torch.export.load(path)
        module = program.module()
    # Reading a damaged file, or one of another version, can raise nearly anything.
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise StateError(
            f"{path} cannot be read as an exported program ({reason[0]}); export it again with this version of PyTorch."
        ) from error
    # A new graph: the code of the old one describes nested inputs in a way that warns when it is copied.
    graph = Graph()
    returned = graph.graph_copy(module.graph, {})
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    outputs = returned if isinstance(returned, tuple | list) else ()
    if len(inputs) != 1 or len(outputs) != 1 or not isinstance(inputs[0].meta.get("val"), Tensor):
        raise ModelError(
            f"{path} takes {len(inputs)} inputs and returns {len(outputs)} tensors; expected a program from one batch "
            "of images to one tensor of logits. Export a module around it."
        )
    graph.output(outputs[0])
    for node in [node for node in graph.nodes if node.op == "call_module" and node.target == "_guards_fn"]:
        graph.erase_node(node)  # its assertions do not say what to do; `_checked` does
    unknown = _restore_layers(graph, module)
    shape = tuple(side if isinstance(side, int) else None for side in inputs[0].meta["val"].shape)
    _check_and_normalize(graph, module, inputs[0], shape, normalization)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or node.target is _checked)
    graph.lint()
    return GraphModule(module, graph, class_name="Exported"), shape, unknown


def _check_and_normalize(
    graph: Graph, module: nn.Module, entry: Node, shape: Shape, normalization: Normalization
) -> None:
    """Insert the check of the batch's shape, and the normalization, after the program's input."""
    users = list(entry.users)
    with graph.inserting_after(entry):
        inner = graph.call_function(_checked, (entry, shape))
    if normalization is not None:
        module.register_buffer(MEAN, normalization[0])
        module.register_buffer(STD, normalization[1])
        with graph.inserting_after(inner):
            mean, std = graph.get_attr(MEAN), graph.get_attr(STD)
        with graph.inserting_after(mean):
            inner = graph.call_function(normalize, (inner, mean, std))
    for user in users:
        user.replace_input_with(entry, inner)


def _checked(x: Tensor, shape: Shape) -> Tensor:
    """Return ``x``, if the program takes a batch of its shape."""
    if x.dim() != len(shape) or any(side not in (None, actual) for side, actual in zip(shape, x.shape, strict=True)):
        expected = ", ".join("any" if side is None else str(side) for side in shape)
        raise BatchError(
            f"the program was exported for batches of shape ({expected}) and got {tuple(x.shape)}. Give it such "
            f"batches, or export it again with {FREE_BATCH}."
        )
    return x


def _restore_layers(graph: Graph, module: nn.Module) -> str:
    """Replace calls of normalization by layers; return the name of one that cannot be replaced, if any."""
    targets: dict[tuple[object, ...], str] = {}
    unknown = ""
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.removeprefix("aten::")
        make, arguments = LAYERS.get(name), _arguments(node)
        if make is None or not _has_own_tensors(arguments, module):
            is_norm = make is not None or (name.endswith("_norm") and "vector" not in name)
            unknown = unknown or (name if is_norm else "")
            continue
        # A layer that is called twice stays one layer.
        key = (name, *(str(value) for option, value in arguments.items() if option != "input"))
        if key not in targets:
            layer = make(arguments)
            for tensor in LAYER_TENSORS:
                if tensor in arguments:
                    setattr(layer, tensor, _tensor(arguments[tensor], module))
            targets[key] = _insert(module, layer, arguments, len(targets))
        with graph.inserting_before(node):
            new = graph.call_module(targets[key], (arguments["input"],))
        new.meta["val"] = arguments["input"].meta["val"]  # the next layer reads its shape
        _replace(graph, node, new)
    return unknown


def _arguments(node: Node) -> dict[str, Any]:
    assert isinstance(node.target, torch._ops.OpOverload)
    defaults = {argument.name: argument.default_value for argument in node.target._schema.arguments}
    return {**defaults, **node.kwargs, **dict(zip(defaults, node.args, strict=False))}


def _replace(graph: Graph, old: Node, new: Node) -> None:
    if len(old.target._schema.returns) == 1:  # type: ignore[union-attr]  # an OpOverload
        old.replace_all_uses_with(new)
    else:
        # Decomposed operations also return what a backward pass would use.
        for user in list(old.users):
            if user.target is operator.getitem and user.args[1] == 0:
                user.replace_all_uses_with(new)
            elif user.users:
                raise ModelError(f"the exported program uses intermediate results of {old}; {EVAL_FIRST}.")
            graph.erase_node(user)
    graph.erase_node(old)


def _has_own_tensors(arguments: Arguments, module: nn.Module) -> bool:
    """Return whether γ, β and statistics are tensors that the program holds, not results that it computes."""
    nodes = {name: arguments[name] for name in LAYER_TENSORS if arguments.get(name) is not None}
    return all(node.op == "get_attr" for node in nodes.values()) and all(
        isinstance(_tensor(nodes[name], module), nn.Parameter) for name in ("weight", "bias") if name in nodes
    )


def _tensor(node: Node | None, module: nn.Module) -> Any:
    return None if node is None else operator.attrgetter(str(node.target))(module)


def _batch_norm(arguments: Arguments) -> nn.Module:
    tracked = arguments["running_mean"] is not None
    if arguments.get("training") and tracked:
        raise ModelError(f"the program was exported in train mode; {EVAL_FIRST}.")
    shape = arguments["input"].meta["val"].shape
    kind = {4: nn.BatchNorm2d, 5: nn.BatchNorm3d}.get(len(shape), nn.BatchNorm1d)
    return kind(int(shape[1]), eps=arguments["eps"], track_running_stats=tracked)


def _layer_norm(arguments: Arguments) -> nn.Module:
    return nn.LayerNorm([int(side) for side in arguments["normalized_shape"]], eps=arguments["eps"])


def _group_norm(arguments: Arguments) -> nn.Module:
    groups = arguments["num_groups"] if "num_groups" in arguments else arguments["group"]
    return nn.GroupNorm(groups, int(arguments["input"].meta["val"].shape[1]), eps=arguments["eps"])


LAYERS: dict[str, Callable[[Arguments], nn.Module]] = {
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "layer_norm": _layer_norm,
    "native_layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "native_group_norm": _group_norm,
}
"""What makes a layer of the arguments of an operation, by the operation's name."""


def _insert(module: nn.Module, layer: nn.Module, arguments: Arguments, number: int) -> str:
    """Register ``layer`` under the name it had before it was exported, if that is possible; return its name."""
    origin = next((str(arguments[n].target) for n in LAYER_TENSORS if isinstance(arguments.get(n), Node)), "")
    name = origin.rpartition(".")[0]
    old = module.get_submodule(name) if name else None
    tensors = [] if old is None else [*old._parameters, *old._buffers]
    if old is None or old._modules or isinstance(old, type(layer)) or not set(tensors) <= set(LAYER_TENSORS):
        name = f"norm_{number}"
        module.add_module(name, layer)
        return name
    tracked = old._buffers.get("num_batches_tracked")
    if tracked is not None:
        layer.num_batches_tracked = tracked
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, layer)
    return name
