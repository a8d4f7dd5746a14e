"""A plain module with the weights that an adapter has learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from cretta.functional import at_least_float32
from cretta.network import Network, copy_sharing_parameters
from cretta.normalization import StreamAverage, norm_layers

Statistics = dict[str, tuple[Tensor, Tensor]]
"""(mean, variance) per layer."""


def with_fixed_statistics(net: nn.Module, model: Network, average: StreamAverage, x: Tensor | None) -> nn.Module:
    """Return a copy of ``net`` with the parameters of ``model``, in eval mode, with fixed BatchNorm statistics.

    Those are what ``model`` uses for the batch ``x``; without it, the moving ``average``, or training's if there is
    none. InstanceNorm keeps normalizing each image by itself where ``model`` does.
    """
    exported = copy_sharing_parameters(net, own=[name for name, _ in net.named_parameters(remove_duplicate=False)])
    adapted = dict(model.module.named_parameters(remove_duplicate=False))
    originals = dict(net.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, parameter in exported.named_parameters(remove_duplicate=False):
            parameter.copy_(adapted[name])
            parameter.requires_grad_(originals[name].requires_grad)
    statistics: Statistics = dict(average.values) if x is None else _statistics_of(model, x)
    adapting = dict(norm_layers(model.module))
    for name, layer in norm_layers(exported):
        own = adapting[name]
        if isinstance(layer, _InstanceNorm) and isinstance(own, _InstanceNorm):
            layer.track_running_stats = own.track_running_stats
            if not own.track_running_stats:
                layer.running_mean = layer.running_var = None
        elif isinstance(layer, _BatchNorm) and name in statistics:
            like = layer.running_mean if layer.running_mean is not None else at_least_float32(next(layer.parameters()))
            layer.track_running_stats = True
            layer.running_mean, layer.running_var = (value.clone().to(like.dtype) for value in statistics[name])
    return exported


def _statistics_of(model: Network, x: Tensor) -> Statistics:
    """Return mean and variance that each BatchNorm layer effectively normalizes ``x`` with."""
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def record(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            values = (args[0] if args else named["input"]).detach()
            calls.setdefault(name, []).append(model.statistics.moments(values))

        return hook

    layers = [(name, layer) for name, layer in norm_layers(model.module) if isinstance(layer, _BatchNorm)]
    # First of all hooks: those of 'mixture' and 'moving' change the input.
    handles = [layer.register_forward_pre_hook(record(n), prepend=True, with_kwargs=True) for n, layer in layers]
    try:
        with torch.no_grad():
            model.probe(x, plain=True)
    finally:
        for handle in handles:
            handle.remove()
    # A layer that is called several times per forward pass gets the mean over its calls.
    batch = {name: tuple(torch.stack(v).mean(0) for v in zip(*pairs, strict=True)) for name, pairs in calls.items()}
    return {name: model.statistics.effective(name, layer, *batch[name]) for name, layer in layers if name in batch}
