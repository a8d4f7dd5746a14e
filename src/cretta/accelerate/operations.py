"""Operations that compute the same as PyTorch's and save less for the backward pass.

PyTorch saves the input of a convolution even if its weight is frozen, and both input and output of BatchNorm before a
ReLU. In a network with frozen convolutions that is twice what the backward pass needs: a frozen convolution needs its
weight only, and the ReLU mask can be recomputed from BatchNorm's input, which is saved anyway. Operations write in
place where they may, because allocating memory for each layer takes as long as the layer's arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cretta.accelerate import kernels

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
RANKS: dict[type[nn.Module], tuple[int, ...]] = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}
"""Dimensions of the input that a BatchNorm layer accepts."""


def convolve(layer: Convolution, x: Tensor) -> Tensor:
    """Return ``layer(x)``."""
    weight, bias = layer.weight, layer.bias
    fast = kernels.can_convolve(layer, x)
    # A network that adapts all its weights, in eval mode, keeps PyTorch's numbers.
    plain = weight.requires_grad and not (fast and layer.training)
    if plain or (bias is not None and bias.requires_grad) or x.dim() != weight.dim():
        out: Tensor = layer(x)
    elif torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out = _Convolution.apply(x, weight, layer)  # type: ignore[no-untyped-call]  # by PyTorch
    else:
        out = kernels.convolve(x, weight, bias) if fast else layer(x)
    return out


def batch_norm_relu(layer: BatchNorm, x: Tensor) -> Tensor:
    """Return ``relu(layer(x))``; in training mode, update the running statistics as the layer does."""
    fast = kernels.can_batch_norm_relu(x, layer.weight, layer.bias)
    # The layer itself raises for wrong shapes and for batches that are too small to have statistics.
    if not _accepts(layer, x) or (layer.training and not fast):
        return F.relu_(layer(x))
    if torch.is_grad_enabled():
        out: Tensor = _BatchNormRelu.apply(x, layer.weight, layer.bias, layer, fast)  # type: ignore[no-untyped-call]  # by PyTorch
        return out
    return _batch_norm_relu_by_kernels(layer, x)[0] if fast else F.relu_(layer(x))


def batch_norm_relu_convolve(norm: BatchNorm, layer: Convolution, x: Tensor) -> Tensor:
    """Return ``layer(relu(norm(x)))``."""
    fast = kernels.can_convolve(layer, x) and kernels.can_batch_norm_relu(x, norm.weight, norm.bias)
    frozen = fast and not any(parameter.requires_grad for parameter in layer.parameters(recurse=False))
    if frozen and torch.is_grad_enabled() and _accepts(norm, x):
        out: Tensor = _BatchNormReluConvolution.apply(x, norm.weight, norm.bias, norm, layer)  # type: ignore[no-untyped-call]  # by PyTorch
        return out
    return convolve(layer, batch_norm_relu(norm, x))


def add_in_place(writable: Tensor, other: Tensor) -> Tensor:
    """Return ``writable + other`` in the memory of ``writable``, which nothing else may use."""
    tensors = isinstance(writable, Tensor) and isinstance(other, Tensor)  # networks add sizes too
    same = tensors and writable.shape == other.shape and writable.dtype == other.dtype
    return writable.add_(other) if same else writable + other


def _accepts(layer: BatchNorm, x: Tensor) -> bool:
    """True if BatchNorm accepts ``x``: rank, channels, and more than one value per channel for batch statistics."""
    if x.dim() not in RANKS[type(layer)] or x.shape[1] != layer.num_features:
        return False
    return x.numel() > (x.shape[1] if _running_statistics(layer) is None else 0)


def _running_statistics(layer: BatchNorm) -> tuple[Tensor, Tensor] | None:
    """Return the running mean and variance, if the layer normalizes with them."""
    mean, variance = layer.running_mean, layer.running_var
    return None if layer.training or mean is None or variance is None else (mean, variance)


def _batch_norm_relu_by_kernels(layer: BatchNorm, x: Tensor) -> tuple[Tensor, Tensor]:
    out, statistics = kernels.batch_norm_relu(x, layer.weight, layer.bias, layer.eps, _running_statistics(layer))
    mean, variance, momentum = layer.running_mean, layer.running_var, layer.momentum
    if layer.training and mean is not None and variance is not None and momentum is not None:
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            mean.lerp_(statistics[0], momentum)
            variance.lerp_((statistics[1].pow(-2) - layer.eps) * (count / (count - 1)), momentum)
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked.add_(1)
    return out, statistics


class _Convolution(torch.autograd.Function):
    """A convolution that saves its input only if its weight learns, by the kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Convolution) -> Tensor:
        ctx.layer, ctx.shape, ctx.kernels = layer, x.shape, kernels.can_convolve(layer, x)
        ctx.layout = torch.channels_last if _is_channels_last(x) else torch.contiguous_format
        # Autograd raises if a saved tensor is modified before the backward pass.
        ctx.save_for_backward(weight, x if weight.requires_grad else None)
        out: Tensor = kernels.convolve(x, weight, layer.bias) if ctx.kernels else layer(x)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (weight, x), layer = ctx.saved_tensors, ctx.layer
        if ctx.kernels:
            gradient = gradient.contiguous(memory_format=torch.channels_last)
            of_input = kernels.convolve(gradient, weight, backward=True) if ctx.needs_input_grad[0] else None
            return of_input, kernels.weight_gradient(x, gradient) if ctx.needs_input_grad[1] else None, None
        # Only shape and layout of the input matter. On the CPU, memory that is never touched is never allocated.
        shell = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=ctx.layout)
        no_padding = [0] * len(layer.stride)
        geometry = (layer.stride, layer.padding, layer.dilation, False, no_padding, layer.groups)
        outputs = (True, False, False)
        gradients = torch.ops.aten.convolution_backward(gradient, shell, weight, None, *geometry, outputs)
        return gradients[0], None, None


class _BatchNormRelu(torch.autograd.Function):
    """ReLU after BatchNorm; saves BatchNorm's input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: BatchNorm, fast: bool) -> Tensor:
        running = _running_statistics(layer)
        ctx.kernels, ctx.eps, ctx.running = fast, layer.eps, running
        if fast:
            out, statistics = _batch_norm_relu_by_kernels(layer, x)
            ctx.save_for_backward(x, statistics)
            return out
        mean, variance = running or (None, None)
        out, mean, inverse = torch.native_batch_norm(x, weight, bias, mean, variance, not running, 0.0, layer.eps)
        if running:
            mean, inverse = running[0], (running[1] + layer.eps).rsqrt()
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        return out.relu_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        if ctx.kernels:
            x, statistics = ctx.saved_tensors
            out = torch.empty_like(x) if ctx.needs_input_grad[0] else None
            running = ctx.running is not None
            return out, *kernels.batch_norm_relu_backward(gradient, x, statistics, running=running, out=out), None, None
        x, weight, bias, mean, inverse = ctx.saved_tensors
        scale = weight * inverse
        shift = torch.addcmul(bias, mean, scale, value=-1)
        shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
        before = torch.addcmul(shift.view(shape), x, scale.view(shape))
        gradient = torch.ops.aten.threshold_backward.grad_input(gradient, before, 0, grad_input=before)
        statistics = (*ctx.running, None, None) if ctx.running else (None, None, mean, inverse)
        gradients = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, *statistics, not ctx.running, ctx.eps, tuple(ctx.needs_input_grad[:3])
        )
        return gradients[0], gradients[1], gradients[2], None, None


class _BatchNormReluConvolution(torch.autograd.Function):
    """BatchNorm, ReLU and a frozen convolution by the kernels; in the backward pass two gradients share memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: BatchNorm, layer: Convolution) -> Tensor:
        ctx.running = _running_statistics(norm) is not None
        activation, statistics = _batch_norm_relu_by_kernels(norm, x)
        ctx.save_for_backward(x, statistics, layer.weight)
        return kernels.convolve(activation, layer.weight, layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        x, statistics, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        gradient = kernels.convolve(gradient, weight, backward=True)
        out = gradient if ctx.needs_input_grad[0] else None
        of_parameters = kernels.batch_norm_relu_backward(gradient, x, statistics, running=ctx.running, out=out)
        return out, *of_parameters, None, None


def _is_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
