"""How a training step is computed: PyTorch's operations, the custom CPU kernels, or bfloat16; chosen by measurement."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable

from cretta import native, rewrite

BACKENDS = ("plain", "kernels", "bfloat16")
Forward = Callable[[Tensor], Tensor]
TIMED_STEPS = 3
GAIN = 0.95
"""A backend other than plain is chosen if its steps take at most this share of the time."""


def forward(model: nn.Module, backend: str) -> Forward:
    """Return how ``backend`` calls ``model`` in a training step; parameters and statistics are the model's own."""
    if backend == "kernels":
        return _with_kernels(model) or model
    if backend == "bfloat16":
        return lambda x: _in_bfloat16(model, x)
    return model


def candidates(model: nn.Module, device: torch.device) -> list[str]:
    """List the backends that can run here."""
    names = ["plain"]
    if device.type == "cpu":
        if native.KERNELS is not None and _with_kernels(model) is not None:
            names.append("kernels")
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            names.append("bfloat16")
    elif device.type == "cuda" and torch.cuda.is_bf16_supported():
        names.append("bfloat16")
    return names


def fastest(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[str, dict[str, float]]:
    """Time a few steps of each candidate on a copy of ``model``; return the choice and the seconds per step."""
    seconds = {}
    for name in candidates(model, images.device):
        twin = copy.deepcopy(model).train()
        call = forward(twin, name)
        times = []
        for _ in range(TIMED_STEPS):
            begun = time.perf_counter()
            F.cross_entropy(call(images), labels).backward()
            if images.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        seconds[name] = min(times)
    best = min(seconds, key=lambda name: seconds[name])
    return (best if seconds[best] <= GAIN * seconds["plain"] else "plain"), seconds


def _in_bfloat16(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        logits: Tensor = model(x)
    return logits.float()


def _with_kernels(model: nn.Module) -> Forward | None:
    """Trace ``model`` and put the kernels in place of its convolutions and BatchNorm + ReLU pairs, where they fit."""
    door = rewrite._Door(model, lambda network, x: network(x))
    try:
        graph = rewrite._Tracer().trace(door)
    except Exception:  # whatever the network's own code raises for a symbolic value
        return None
    network = fx.GraphModule(door, graph, type(model).__name__)
    layers = dict(network.named_modules())
    changed = False
    for node in list(graph.nodes):
        before = rewrite._only_source(node)
        if rewrite._is_relu(node, layers) and before is not None:
            norm = rewrite._layer(before, layers, (nn.BatchNorm2d,))
            if norm is None or not norm.affine or norm.running_mean is None or norm.momentum is None:
                continue
            rewrite._call(node, normalize_and_rectify, rewrite._get(network, node, before.target), before.args[0])
            graph.erase_node(before)
            changed = True
        elif (layer := rewrite._layer(node, layers, (nn.Conv2d,))) is not None and layer.bias is None:
            rewrite._call(node, convolve, rewrite._get(network, node, node.target), node.args[0])
            changed = True
    if not changed:
        return None
    graph.lint()
    network.recompile()
    return network


def convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Return ``layer(x)``; the layer may learn."""
    if not native.can_convolve(layer, x):
        plain: Tensor = layer(x)
        return plain
    out: Tensor = _Convolution.apply(x, layer.weight)  # type: ignore[no-untyped-call]
    return out


def normalize_and_rectify(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return ``relu(layer(x))``; update the running statistics as the layer does."""
    mean, variance, momentum = layer.running_mean, layer.running_var, layer.momentum
    count = x.numel() // x.shape[1]
    usable = layer.training and count > 1 and native.can_normalise(x, layer.weight, layer.bias)
    if not usable or mean is None or variance is None or momentum is None:
        return F.relu(layer(x))
    out, facts = _NormalizedRelu.apply(x, layer.weight, layer.bias, layer.eps)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        mean.lerp_(facts[0], momentum)
        variance.lerp_((facts[1].pow(-2) - layer.eps) * (count / (count - 1)), momentum)
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
    result: Tensor = out
    return result


class _Convolution(torch.autograd.Function):
    """A 3 × 3 convolution by the kernels, with the gradients of its input and its weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return native.convolve(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        of_input = native.convolve(gradient, weight, back=True) if ctx.needs_input_grad[0] else None
        return of_input, native.weight_gradient(x, gradient) if ctx.needs_input_grad[1] else None


class _NormalizedRelu(torch.autograd.Function):
    """ReLU after BatchNorm with the batch's statistics, by the kernels; also returns those statistics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        out, facts = native.normalise(x, weight, bias, eps)
        ctx.save_for_backward(x, facts)
        ctx.mark_non_differentiable(facts)
        return out, facts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, facts = ctx.saved_tensors
        of_input = torch.empty_like(x)
        return of_input, *native.normalise_back(gradient, x, facts, given=False, into=of_input), None
