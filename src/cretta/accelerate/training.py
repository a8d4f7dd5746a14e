"""Backends of a training step: PyTorch's operations, the custom CPU kernels, or bfloat16; chosen by measurement."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cretta.accelerate import graph, kernels

TRAINING_BACKENDS = ("plain", "kernels", "bfloat16")
Forward = Callable[[Tensor], Tensor]
TIMED_STEPS = 3
LARGEST_RATIO = 0.95
"""Another backend than plain is chosen if its steps take at most this fraction of plain's time."""


def training_forward(model: nn.Module, backend: str) -> Forward:
    """Return the function that computes ``model``'s logits by ``backend``; it uses the model's own parameters."""
    if backend == "kernels":
        return _with_kernels(model) or model
    if backend == "bfloat16":
        return lambda x: _in_bfloat16(model, x)
    return model


def training_candidates(model: nn.Module, device: torch.device) -> list[str]:
    """List the backends that can run on ``device``."""
    names = ["plain"]
    if device.type == "cpu":
        if kernels.missing() is None and _with_kernels(model) is not None:
            names.append("kernels")
        # A private operator of PyTorch; builds without it have no fast bfloat16 on the CPU.
        if getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)():
            names.append("bfloat16")
    elif device.type == "cuda" and torch.cuda.is_bf16_supported():
        names.append("bfloat16")
    return names


def fastest_training_backend(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[str, dict[str, float]]:
    """Time a few steps of each candidate on a copy of ``model``; return the choice and the seconds per step."""
    seconds = {}
    for name in training_candidates(model, images.device):
        twin = copy.deepcopy(model).train()
        forward = training_forward(twin, name)
        times = []
        for _ in range(TIMED_STEPS):
            begun = time.perf_counter()
            F.cross_entropy(forward(images), labels).backward()
            if images.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        seconds[name] = min(times)
    best = min(seconds, key=lambda name: seconds[name])
    return (best if seconds[best] <= LARGEST_RATIO * seconds["plain"] else "plain"), seconds


def _in_bfloat16(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        logits: Tensor = model(x)
    return logits.float()


def _with_kernels(model: nn.Module) -> Forward | None:
    """Trace ``model`` and replace its convolutions and BatchNorm + ReLU pairs by the kernels, where they fit."""
    network = graph.trace(model)
    if isinstance(network, str):
        return None
    layers = dict(network.named_modules())
    changed = False
    for node in list(network.graph.nodes):
        before = graph.exclusive_input(node)
        if graph.is_relu(node, layers) and before is not None:
            norm = graph.called_layer(before, layers, (nn.BatchNorm2d,))
            if norm is None or not norm.affine or norm.running_mean is None or norm.momentum is None:
                continue
            norm_node = graph.get_attribute(network, node, before.target)
            graph.replace_call(node, _batch_norm_relu, norm_node, before.args[0])
            network.graph.erase_node(before)
            changed = True
        elif (layer := graph.called_layer(node, layers, (nn.Conv2d,))) is not None and layer.bias is None:
            graph.replace_call(node, _convolve, graph.get_attribute(network, node, node.target), node.args[0])
            changed = True
    if not changed:
        return None
    network.graph.lint()
    network.recompile()
    return network


def _convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Return ``layer(x)``, with the gradients of ``x`` and the weight."""
    if not kernels.can_convolve(layer, x):
        plain: Tensor = layer(x)
        return plain
    out: Tensor = _Convolution.apply(x, layer.weight)  # type: ignore[no-untyped-call]
    return out


def _batch_norm_relu(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return ``relu(layer(x))``; update the running statistics as the layer does."""
    mean, variance, momentum = layer.running_mean, layer.running_var, layer.momentum
    count = x.numel() // x.shape[1]
    usable = layer.training and count > 1 and kernels.can_batch_norm_relu(x, layer.weight, layer.bias)
    if not usable or mean is None or variance is None or momentum is None:
        return F.relu(layer(x))
    out, statistics = _BatchNormRelu.apply(x, layer.weight, layer.bias, layer.eps)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        mean.lerp_(statistics[0], momentum)
        variance.lerp_((statistics[1].pow(-2) - layer.eps) * (count / (count - 1)), momentum)
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
    result: Tensor = out
    return result


class _Convolution(torch.autograd.Function):
    """A 3 × 3 convolution by the kernels, with the gradients of its input and its weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return kernels.convolve(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        of_input = kernels.convolve(gradient, weight, backward=True) if ctx.needs_input_grad[0] else None
        return of_input, kernels.weight_gradient(x, gradient) if ctx.needs_input_grad[1] else None


class _BatchNormRelu(torch.autograd.Function):
    """ReLU after BatchNorm with batch statistics, by the kernels; also returns those statistics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        out, statistics = kernels.batch_norm_relu(x, weight, bias, eps)
        ctx.save_for_backward(x, statistics)
        ctx.mark_non_differentiable(statistics)
        return out, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, statistics = ctx.saved_tensors
        out = torch.empty_like(x)
        return out, *kernels.batch_norm_relu_backward(gradient, x, statistics, running=False, out=out), None
