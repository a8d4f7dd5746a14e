"""Programs of ``torch.export`` as networks whose normalisation layers can adapt.

An exported program calls normalisation as a function on tensors. Here each such call becomes a layer on the same
parameters again, so that every method finds what it knows.
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
from cretta.models.normalised import MEAN, STD, normalise

Shape = tuple[int | None, ...]
"""What a program takes; None where any size will do."""
LAYER_TENSORS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
FREE_BATCH = "torch.export.export(net.eval(), (x,), dynamic_shapes=({0: torch.export.Dim('batch')},))"
AS_EVALUATED = "call net.eval() before torch.export.export"


def open_exported(path: Path, normalisation: tuple[Tensor, Tensor] | None = None) -> tuple[GraphModule, Shape, str]:
    """Reads a file of ``torch.export.save``: the network, the shape it takes, and an operation out of reach, if any.

    The file may hold pickled objects: open those you trust.
    """
    try:
        program = torch.export.load(path)
        module = program.module()
    # Reading a damaged file, or one of another version, can raise nearly anything.
    except Exception as wrong:
        reason = str(wrong).strip().splitlines() or [type(wrong).__name__]
        raise StateError(
            f"{path} cannot be read as an exported program ({reason[0]}); export it anew with this version of PyTorch."
        ) from wrong
    # A new graph: the old one's code carries descriptions of nested inputs that do not survive copying quietly.
    graph = Graph()
    returned = graph.graph_copy(module.graph, {})
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    outputs = returned if isinstance(returned, tuple | list) else ()
    if len(inputs) != 1 or len(outputs) != 1 or not isinstance(inputs[0].meta.get("val"), Tensor):
        raise ModelError(
            f"{path} takes {len(inputs)} inputs and returns {len(outputs)} tensors; needed is a program from one batch "
            "of images to one tensor of logits. Export a module around it."
        )
    graph.output(outputs[0])
    for node in [node for node in graph.nodes if node.op == "call_module" and node.target == "_guards_fn"]:
        graph.erase_node(node)  # asserts; ours say what to do
    beyond = _put_layers_back(graph, module)
    shape = tuple(side if isinstance(side, int) else None for side in inputs[0].meta["val"].shape)
    _guard_the_door(graph, module, inputs[0], shape, normalisation)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or node.target is _checked)
    graph.lint()
    return GraphModule(module, graph, class_name="Exported"), shape, beyond


def _guard_the_door(
    graph: Graph, module: nn.Module, entry: Node, shape: Shape, normalisation: tuple[Tensor, Tensor] | None
) -> None:
    users = list(entry.users)
    with graph.inserting_after(entry):
        inner = graph.call_function(_checked, (entry, shape))
    if normalisation is not None:
        module.register_buffer(MEAN, normalisation[0])
        module.register_buffer(STD, normalisation[1])
        with graph.inserting_after(inner):
            mean, std = graph.get_attr(MEAN), graph.get_attr(STD)
        with graph.inserting_after(mean):
            inner = graph.call_function(normalise, (inner, mean, std))
    for user in users:
        user.replace_input_with(entry, inner)


def _checked(x: Tensor, shape: Shape) -> Tensor:
    """``x``, if the program takes such."""
    if x.dim() != len(shape) or any(wanted not in (None, side) for wanted, side in zip(shape, x.shape, strict=True)):
        wanted = ", ".join("any" if side is None else str(side) for side in shape)
        raise BatchError(
            f"the program was exported for batches of shape ({wanted}) and got {tuple(x.shape)}. Give it such, or "
            f"export it anew with {FREE_BATCH}."
        )
    return x


def _put_layers_back(graph: Graph, module: nn.Module) -> str:
    """Replaces calls of normalisation by layers; returns the name of such a call that it does not know, if any."""
    made: dict[tuple[object, ...], str] = {}
    beyond = ""
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.removeprefix("aten::")
        make, given = LAYERS.get(name), _arguments(node)
        if make is None or not _plain(given, module):
            is_norm = make is not None or (name.endswith("_norm") and "vector" not in name)
            beyond = beyond or (name if is_norm else "")
            continue
        key = (name, *(str(value) for option, value in given.items() if option != "input"))
        if key not in made:
            layer = make(given, module)
            made[key] = _place(module, layer, given, len(made))
        with graph.inserting_before(node):
            new = graph.call_module(made[key], (given["input"],))
        new.meta["val"] = given["input"].meta["val"]  # the next layer asks for its shape
        _replace(graph, node, new)
    return beyond


def _arguments(node: Node) -> dict[str, Any]:
    assert isinstance(node.target, torch._ops.OpOverload)
    named = {argument.name: argument.default_value for argument in node.target._schema.arguments}
    return {**named, **node.kwargs, **dict(zip(named, node.args, strict=False))}


def _replace(graph: Graph, old: Node, new: Node) -> None:
    if len(old.target._schema.returns) == 1:  # type: ignore[union-attr]  # an OpOverload
        old.replace_all_uses_with(new)
    else:
        # Decomposed operations return what training would want besides.
        for user in list(old.users):
            if user.target is operator.getitem and user.args[1] == 0:
                user.replace_all_uses_with(new)
            elif user.users:
                raise ModelError(f"the exported program uses intermediate results of {old}; {AS_EVALUATED}.")
            graph.erase_node(user)
    graph.erase_node(old)


def _plain(given: Mapping[str, Any], module: nn.Module) -> bool:
    """Whether γ, β and statistics are tensors of the program as they are, not computed by it."""
    nodes = {name: given[name] for name in LAYER_TENSORS if given.get(name) is not None}
    return all(node.op == "get_attr" for node in nodes.values()) and all(
        isinstance(_tensor(nodes[name], module), nn.Parameter) for name in ("weight", "bias") if name in nodes
    )


def _tensor(node: Node | None, module: nn.Module) -> Any:
    return None if node is None else operator.attrgetter(str(node.target))(module)


def _filled(layer: nn.Module, given: Mapping[str, Any], module: nn.Module) -> nn.Module:
    """``layer`` on the program's own tensors."""
    for name in LAYER_TENSORS:
        if name in given:
            setattr(layer, name, _tensor(given[name], module))
    return layer


def _batch_norm(given: Mapping[str, Any], module: nn.Module) -> nn.Module:
    if given.get("training") and given["running_mean"] is not None:
        raise ModelError(f"the program was exported in train mode; {AS_EVALUATED}.")
    shape = given["input"].meta["val"].shape
    kind = {4: nn.BatchNorm2d, 5: nn.BatchNorm3d}.get(len(shape), nn.BatchNorm1d)
    layer = kind(int(shape[1]), eps=given["eps"], track_running_stats=given["running_mean"] is not None)
    return _filled(layer, given, module)


def _layer_norm(given: Mapping[str, Any], module: nn.Module) -> nn.Module:
    return _filled(nn.LayerNorm([int(side) for side in given["normalized_shape"]], eps=given["eps"]), given, module)


def _group_norm(given: Mapping[str, Any], module: nn.Module) -> nn.Module:
    channels = int(given["input"].meta["val"].shape[1])
    groups = given["num_groups"] if "num_groups" in given else given["group"]
    return _filled(nn.GroupNorm(groups, channels, eps=given["eps"]), given, module)


LAYERS: dict[str, Callable[[Mapping[str, Any], nn.Module], nn.Module]] = {
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "layer_norm": _layer_norm,
    "native_layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "native_group_norm": _group_norm,
}
"""Operations by name, and what makes a layer of their arguments."""


def _place(module: nn.Module, layer: nn.Module, given: Mapping[str, Any], number: int) -> str:
    """Puts ``layer`` where its parameters came from, under the name it had before it was exported, if it can."""
    origin = next((str(given[n].target) for n in LAYER_TENSORS if isinstance(given.get(n), Node)), "")
    name = origin.rpartition(".")[0]
    home = module.get_submodule(name) if name else None
    tensors = [] if home is None else [*home._parameters, *home._buffers]
    if home is None or home._modules or isinstance(home, type(layer)) or not set(tensors) <= set(LAYER_TENSORS):
        name = f"norm_{number}"
        module.add_module(name, layer)
        return name
    tracked = home._buffers.get("num_batches_tracked")
    if tracked is not None:
        layer.num_batches_tracked = tracked
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, layer)
    return name
