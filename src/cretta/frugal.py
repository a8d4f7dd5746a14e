"""Operations that give what PyTorch's give and keep less for the pass back.

PyTorch keeps the input of a convolution even if its weight does not learn, and both ends of a ReLU's predecessor. In a
network whose convolutions are frozen that is twice what the pass back needs: a frozen convolution needs its weight, and
a ReLU after BatchNorm can be told again from BatchNorm's input, which is kept anyway. What may be written into is: a
new block of memory for each layer costs as much as the layer's arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cretta import native

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def convolve(layer: Convolution, x: Tensor) -> Tensor:
    """``layer(x)``."""
    if _learns(layer) or x.dim() != layer.weight.dim():
        plain: Tensor = layer(x)
        return plain
    if torch.is_grad_enabled() and x.requires_grad:
        out: Tensor = _FrozenConvolution.apply(x, layer)  # type: ignore[no-untyped-call]
    else:
        fast = native.can_convolve(layer, x)
        out = native.convolve(x, layer.weight, layer.bias) if fast else layer(x)
    return out


def normalise_and_rectify(layer: BatchNorm, x: Tensor) -> Tensor:
    """``relu(layer(x))``, for a layer that normalises with the batch's statistics or, asleep, with training's."""
    # The layer itself complains of wrong shapes and of batches too small to have statistics.
    if not _normal(layer, x):
        return F.relu_(layer(x))
    layer._check_input_dim(x)
    if torch.is_grad_enabled():
        out: Tensor = _NormalisedRelu.apply(x, layer.weight, layer.bias, layer)  # type: ignore[no-untyped-call]
        return out
    if native.can_normalise(x, layer.weight, layer.bias):
        return native.normalise(x, layer.weight, layer.bias, layer.eps, _of_training(layer))[0]
    return F.relu_(layer(x))


def normalise_rectify_convolve(norm: BatchNorm, layer: Convolution, x: Tensor) -> Tensor:
    """``layer(relu(norm(x)))``."""
    fast = native.can_convolve(layer, x) and native.can_normalise(x, norm.weight, norm.bias)
    if fast and torch.is_grad_enabled() and not _learns(layer) and _normal(norm, x):
        norm._check_input_dim(x)
        out: Tensor = _Block.apply(x, norm.weight, norm.bias, norm, layer)  # type: ignore[no-untyped-call]
        return out
    return convolve(layer, normalise_and_rectify(norm, x))


def rectify(x: Tensor) -> Tensor:
    """``relu(x)`` in the memory of ``x``, which nobody else may want."""
    return F.relu_(x)


def add(fresh: Tensor, other: Tensor) -> Tensor:
    """``fresh + other`` in the memory of ``fresh``, which nobody else may want."""
    tensors = isinstance(fresh, Tensor) and isinstance(other, Tensor)  # sizes are added too
    same = tensors and fresh.shape == other.shape and fresh.dtype == other.dtype
    return fresh.add_(other) if same else fresh + other


def _learns(layer: Convolution) -> bool:
    return layer.weight.requires_grad or (layer.bias is not None and layer.bias.requires_grad)


def _normal(layer: BatchNorm, x: Tensor) -> bool:
    """Whether ``layer`` will have nothing to say against ``x`` but for its rank."""
    if x.dim() < 2 or x.shape[1] != layer.num_features:
        return False
    return x.numel() > (x.shape[1] if layer.running_mean is None else 0)


class _FrozenConvolution(torch.autograd.Function):
    """A convolution that keeps its weight only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Convolution) -> Tensor:
        ctx.layer, ctx.shape = layer, x.shape
        ctx.layout = torch.channels_last if _channels_last(x) else torch.contiguous_format
        ctx.native = native.can_convolve(layer, x)
        out: Tensor = native.convolve(x, layer.weight, layer.bias) if ctx.native else layer(x)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        layer = ctx.layer
        if ctx.native:
            gradient = gradient.contiguous(memory_format=torch.channels_last)
            return native.convolve(gradient, layer.weight, back=True), None
        # Of the input only shape and layout are looked at. The CPU takes no memory that is not touched.
        shell = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=ctx.layout)
        none = [0] * len(layer.stride)
        geometry = (layer.stride, layer.padding, layer.dilation, False, none, layer.groups)
        back = torch.ops.aten.convolution_backward
        found = back(gradient, shell, layer.weight, None, *geometry, (True, False, False))
        return found[0], None


class _NormalisedRelu(torch.autograd.Function):
    """ReLU after BatchNorm; keeps BatchNorm's input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: BatchNorm) -> Tensor:
        given = _of_training(layer)
        ctx.native, ctx.eps, ctx.given = native.can_normalise(x, weight, bias), layer.eps, given
        if ctx.native:
            out, facts = native.normalise(x, weight, bias, layer.eps, given)
            ctx.save_for_backward(x, facts)
            return out
        known = given or (None, None)
        out, mean, deviation = torch.native_batch_norm(x, weight, bias, known[0], known[1], not given, 0.0, layer.eps)
        if given:
            mean, deviation = given[0], (given[1] + layer.eps).rsqrt()
        ctx.save_for_backward(x, weight, bias, mean, deviation)
        return out.relu_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        if ctx.native:
            x, facts = ctx.saved_tensors
            into = torch.empty_like(x) if ctx.needs_input_grad[0] else None
            return into, *native.normalise_back(gradient, x, facts, given=ctx.given is not None, into=into), None
        x, weight, bias, mean, deviation = ctx.saved_tensors
        # `deviation` is its inverse.
        scale = weight * deviation
        shift = torch.addcmul(bias, mean, scale, value=-1)
        shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
        before = torch.addcmul(shift.view(shape), x, scale.view(shape))
        gradient = torch.ops.aten.threshold_backward.grad_input(gradient, before, 0, grad_input=before)
        wanted = tuple(ctx.needs_input_grad[:3])
        statistics = (*ctx.given, None, None) if ctx.given else (None, None, mean, deviation)
        found = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, *statistics, not ctx.given, ctx.eps, wanted
        )
        return found[0], found[1], found[2], None


class _Block(torch.autograd.Function):
    """A convolution after that, by kernels of our own; one gradient on the way back is written over the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: BatchNorm, layer: Convolution) -> Tensor:
        ctx.layer, given = layer, _of_training(norm)
        ctx.given = given is not None
        rectified, facts = native.normalise(x, weight, bias, norm.eps, given)
        ctx.save_for_backward(x, facts)
        return native.convolve(rectified, layer.weight, layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        gradient = native.convolve(gradient, ctx.layer.weight, back=True)
        into = gradient if ctx.needs_input_grad[0] else None
        return into, *native.normalise_back(gradient, *ctx.saved_tensors, given=ctx.given, into=into), None, None


def _of_training(layer: BatchNorm) -> tuple[Tensor, Tensor] | None:
    """Means and variances that a layer was trained with, if it normalises with them."""
    mean, variance = layer.running_mean, layer.running_var
    return None if mean is None or variance is None else (mean, variance)


def _channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
