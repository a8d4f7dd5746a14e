"""Operations that compute the same as PyTorch's and save less for the backward pass.

PyTorch saves the input of a convolution even if its weight is frozen, and both input and output of BatchNorm before a
ReLU. In a network with frozen convolutions that is twice what the backward pass needs: a frozen convolution needs its
weight only, and the ReLU mask can be recomputed from BatchNorm's input, which is saved anyway. Operations write in
place where they may, because allocating memory for each layer takes as long as the layer's arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cretta.accelerate import kernels, norms, winograd
from cretta.accelerate.choices import PYTORCH, SAMPLE, Choice, choices

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
RANKS: dict[type[nn.Module], tuple[int, ...]] = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}
"""Dimensions of the input that a BatchNorm layer accepts."""


def convolve(layer: Convolution, x: Tensor) -> Tensor:
    """Return ``layer(x)``."""
    weight, bias = winograd.weights(layer)
    fits = winograd.can_convolve(layer, x)
    # A network that adapts all its weights, in eval mode, keeps PyTorch's numbers.
    plain = weight.requires_grad and not (fits and layer.training)
    if plain or (bias is not None and bias.requires_grad) or x.dim() != weight.dim():
        out: Tensor = layer(x)
    elif torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out = _Convolution.apply(x, weight, layer, kernels.setting() if fits else None)  # type: ignore[no-untyped-call]  # by PyTorch
    else:
        out = _convolve_by(kernels.setting(), layer, x, large=True) if fits else layer(x)
    return out


def _convolve_by(setting: str, layer: Convolution, x: Tensor, *, large: bool = False) -> Tensor:
    """Return ``layer(x)`` by a kernel or by PyTorch, whichever the setting or the timing chooses."""
    weight, bias = winograd.weights(layer)
    kernel = winograd.convolution_kernel(x, weight, bias, setting, large=large)
    out: Tensor = layer(x) if kernel == PYTORCH else winograd.convolve(x, weight, bias, kernel)
    return out


def batch_norm_relu(layer: BatchNorm, x: Tensor) -> Tensor:
    """Return ``relu(layer(x))``; in training mode, update the running statistics as the layer does."""
    path = _batch_norm_path(layer, x)
    if path != PYTORCH:
        return _batch_norm_by_kernels(layer, x, path)
    # The layer itself raises for wrong shapes and for batches that are too small to have statistics.
    if layer.training or not torch.is_grad_enabled() or not _accepts(layer, x):
        return F.relu_(layer(x))
    out: Tensor = _PlainBatchNormRelu.apply(x, *winograd.weights(layer), layer)  # type: ignore[no-untyped-call]  # by PyTorch
    return out


def batch_norm(layer: BatchNorm, x: Tensor) -> Tensor:
    """Return ``layer(x)``; in training mode, update the running statistics as the layer does."""
    path = _batch_norm_path(layer, x, relu=False)
    if path != PYTORCH:
        return _batch_norm_by_kernels(layer, x, path, relu=False)
    out: Tensor = layer(x)
    return out


def batch_norm_add_relu(layer: BatchNorm, x: Tensor, shortcut: Tensor) -> Tensor:
    """Return ``relu(layer(x) + shortcut)``; in training mode, update the running statistics as the layer does."""
    path = _batch_norm_path(layer, x, shortcut=shortcut)
    if path != PYTORCH:
        return _batch_norm_by_kernels(layer, x, path, shortcut=shortcut)
    return F.relu_(add_in_place(batch_norm(layer, x), shortcut))


def batch_norm_relu_convolve(norm: BatchNorm, layer: Convolution, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """Return ``layer(relu(norm(x))) + shortcut``, or without the sum."""
    if _is_frozen(layer) and winograd.can_convolve(layer, x) and (shortcut is None or _can_add(layer, x, shortcut)):
        path = _batch_norm_path(norm, x)
        if path != PYTORCH:
            if not torch.is_grad_enabled():
                return _normalized_convolution(norm, layer, x, path, kernels.setting(), shortcut, large=True)[0]
            plan = _Plan(norm, path, layer=layer)
            out: Tensor = _BatchNorm.apply(x, *winograd.weights(norm), shortcut, plan)  # type: ignore[no-untyped-call]  # by PyTorch
            return out
    convolved = convolve(layer, batch_norm_relu(norm, x))
    return convolved if shortcut is None else add_in_place(convolved, shortcut)


def _can_add(layer: Convolution, x: Tensor, shortcut: Tensor) -> bool:
    """True if the kernels can add ``shortcut`` to ``layer(x)``."""
    shape = (len(x), layer.out_channels, *x.shape[2:])
    return isinstance(shortcut, Tensor) and shortcut.shape == shape and kernels.can_read(shortcut)


def batch_norm_add_relu_convolve(
    norm: BatchNorm, layer: Convolution, x: Tensor, shortcut: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return ``y = relu(norm(x) + shortcut)`` and ``layer(y)``: the end of a residual block and what follows.

    ``shortcut`` is None before the first block.
    """
    if torch.is_grad_enabled() and _is_frozen(layer) and winograd.can_convolve(layer, x):
        path = _batch_norm_path(norm, x, shortcut=shortcut)
        if path != PYTORCH:
            plan = _Plan(norm, path, layer=layer, both=True)
            both: tuple[Tensor, Tensor] = _BatchNorm.apply(x, *winograd.weights(norm), shortcut, plan)  # type: ignore[no-untyped-call]  # by PyTorch
            return both
    out = batch_norm_relu(norm, x) if shortcut is None else batch_norm_add_relu(norm, x, shortcut)
    return out, convolve(layer, out)


def _is_frozen(layer: Convolution) -> bool:
    weight, bias = winograd.weights(layer)
    return not (weight.requires_grad or (bias is not None and bias.requires_grad))


def _batch_norm_path(layer: BatchNorm, x: Tensor, *, relu: bool = True, shortcut: Tensor | None = None) -> str:
    weight, bias = winograd.weights(layer)
    if not norms.can_batch_norm_relu(x, weight, bias, shortcut) or not _accepts(layer, x):
        return PYTORCH
    if layer.training:  # a training times entire steps and chooses for all layers
        return next(iter(norms.fitting_paths(x.shape[1])), PYTORCH)
    return norms.batch_norm_path(
        x,
        weight,
        bias,
        layer.eps,
        _running_statistics(layer),
        relu=relu,
        gradient=torch.is_grad_enabled(),
        total=shortcut is not None,
    )


def _batch_norm_by_kernels(
    layer: BatchNorm, x: Tensor, path: str, *, relu: bool = True, shortcut: Tensor | None = None
) -> Tensor:
    if not torch.is_grad_enabled():
        return _normalized(layer, x, path, relu, shortcut)[0]
    plan = _Plan(layer, path, relu=relu)
    out: Tensor = _BatchNorm.apply(x, *winograd.weights(layer), shortcut, plan)  # type: ignore[no-untyped-call]  # by PyTorch
    return out


def typical_choices() -> tuple[Choice, ...]:
    """Return what is chosen for layers of WRN-40-2, timed now unless it was before; none if nothing is timed."""
    typical = set()
    for channels, side in ((32, 32), (64, 16), (128, 8)):
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).requires_grad_(False)
        norm = nn.BatchNorm2d(channels, track_running_stats=False).eval()
        x = torch.rand(SAMPLE // (channels * side * side), channels, side, side)
        x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
        with torch.enable_grad():
            batch_norm_relu_convolve(norm, layer, x).sum().backward()
        with torch.no_grad():
            convolve(layer, x)
        typical.add((channels, side))
    return tuple(choice for choice in choices() if (choice.shape.inputs, choice.shape.height) in typical)


def add_in_place(writable: Tensor, other: Tensor) -> Tensor:
    """Return ``writable + other`` in the memory of ``writable``, which nothing else may use."""
    tensors = isinstance(writable, Tensor) and isinstance(other, Tensor)  # networks add sizes too
    same = tensors and writable.shape == other.shape and writable.dtype == other.dtype
    return writable.add_(other) if same else writable + other


def slice_and_pad(x: Tensor, index: tuple[slice, ...], padding: tuple[int, ...]) -> Tensor:
    """Return ``F.pad(x[index], padding)``: the shortcut of a block that halves the sides and adds channels."""
    out: Tensor = _SliceAndPad.apply(x, index, padding)  # type: ignore[no-untyped-call]  # by PyTorch
    return out


def _accepts(layer: BatchNorm, x: Tensor) -> bool:
    """True if BatchNorm accepts ``x``: rank, channels, and more than one value per channel for batch statistics."""
    if x.dim() not in RANKS[type(layer)] or x.shape[1] != layer.num_features:
        return False
    return x.numel() > (x.shape[1] if _running_statistics(layer) is None else 0)


def _running_statistics(layer: BatchNorm) -> tuple[Tensor, Tensor] | None:
    """Return the running mean and variance, if the layer normalizes with them."""
    buffers = layer._buffers  # faster than attributes
    mean, variance = buffers.get("running_mean"), buffers.get("running_var")
    return None if layer.training or mean is None or variance is None else (mean, variance)


def _normalized(
    layer: BatchNorm, x: Tensor, path: str, relu: bool, shortcut: Tensor | None
) -> tuple[Tensor, Tensor, bool]:
    """Return ``relu(layer(x) + shortcut)`` by a kernel, its statistics, and whether they are running ones."""
    running = _running_statistics(layer)
    out, statistics = norms.batch_norm_relu(
        x, *winograd.weights(layer), layer.eps, path, running, relu=relu, shortcut=shortcut
    )
    _update(layer, x, statistics)
    return out, statistics, running is not None


def _normalized_convolution(
    norm: BatchNorm,
    layer: Convolution,
    x: Tensor,
    path: str,
    setting: str,
    shortcut: Tensor | None,
    *,
    large: bool = False,
) -> tuple[Tensor, Tensor, bool]:
    """Return ``layer(relu(norm(x))) + shortcut``, BatchNorm's statistics, and whether they are running ones.

    A kernel normalizes what it reads, and adds to what it writes: no passes over memory for that.
    """
    weight, bias = winograd.weights(layer)
    kernel = winograd.convolution_kernel(x, weight, bias, setting, large=large)
    if kernel == PYTORCH:
        out, statistics, fixed = _normalized(norm, x, path, True, None)
        out = layer(out)
        return out if shortcut is None else out.add_(shortcut), statistics, fixed
    running = _running_statistics(norm)
    statistics = norms.batch_statistics(x, *winograd.weights(norm), norm.eps, path, running)
    _update(norm, x, statistics)
    out = winograd.convolve(x, weight, bias, kernel, statistics=statistics, shortcut=shortcut)
    return out, statistics, running is not None


def _update(layer: BatchNorm, x: Tensor, statistics: Tensor) -> None:
    """Update the running statistics in training mode."""
    if not layer.training:
        return
    mean, variance, momentum = layer.running_mean, layer.running_var, layer.momentum
    if mean is not None and variance is not None and momentum is not None:
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            mean.lerp_(statistics[0], momentum)
            variance.lerp_((statistics[1].pow(-2) - layer.eps) * (count / (count - 1)), momentum)
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked.add_(1)


def once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Do as PyTorch's ``once_differentiable``, which takes longer than some backward passes, if it has an effect."""
    recorded = once_differentiable(backward)

    @functools.wraps(backward)
    def call(ctx: Any, *gradients: Tensor | None) -> Any:
        return (recorded if torch.is_grad_enabled() else backward)(ctx, *gradients)

    return call


class _Convolution(torch.autograd.Function):
    """A convolution that saves its input only if its weight learns; by PyTorch if ``setting`` is None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Convolution, setting: str | None) -> Tensor:
        ctx.layer, ctx.shape, ctx.setting = layer, x.shape, setting
        ctx.layout = torch.channels_last if _is_channels_last(x) else torch.contiguous_format
        # Autograd raises if a saved tensor is modified before the backward pass.
        ctx.save_for_backward(weight, x if weight.requires_grad else None)
        out: Tensor = _convolve_by(setting, layer, x) if setting else layer(x)
        return out

    @staticmethod
    @once
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (weight, x), layer = ctx.saved_tensors, ctx.layer
        if ctx.setting:
            of_input = _convolution_gradient(gradient, weight, ctx.setting) if ctx.needs_input_grad[0] else None
            if not ctx.needs_input_grad[1]:
                return of_input, None, None, None
            gradient = gradient.contiguous(memory_format=torch.channels_last)
            return of_input, winograd.weight_gradient(x, gradient, kernels.paths(ctx.setting)[0]), None, None
        # Only shape and layout of the input matter. On the CPU, memory that is never touched is never allocated.
        shell = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=ctx.layout)
        no_padding = [0] * len(layer.stride)
        geometry = (layer.stride, layer.padding, layer.dilation, False, no_padding, layer.groups)
        outputs = (True, False, False)
        gradients = torch.ops.aten.convolution_backward(gradient, shell, weight, None, *geometry, outputs)
        return gradients[0], None, None, None


def _convolution_gradient(gradient: Tensor, weight: Tensor, setting: str) -> Tensor:
    """Return the gradient of a convolution's input by a kernel or by PyTorch."""
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    kernel = winograd.convolution_kernel(gradient, weight, None, setting, backward=True)
    if kernel == PYTORCH:
        plain = winograd.plain_convolution(gradient, weight, backward=True)
        return plain.contiguous(memory_format=torch.channels_last)
    return winograd.convolve(gradient, weight, None, kernel, backward=True)


class _PlainBatchNormRelu(torch.autograd.Function):
    """BatchNorm and ReLU by PyTorch; saves BatchNorm's input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: BatchNorm) -> Tensor:
        ctx.eps, ctx.running = layer.eps, (running := _running_statistics(layer))
        mean, variance = running or (None, None)
        out, mean, inverse = torch.native_batch_norm(x, weight, bias, mean, variance, not running, 0.0, layer.eps)
        if running:
            mean, inverse = running[0], (running[1] + layer.eps).rsqrt()
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        return out.relu_()

    @staticmethod
    @once
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        requested = tuple(ctx.needs_input_grad[:3])
        x, weight, bias, mean, inverse = ctx.saved_tensors
        gradients = norms.plain_backward(gradient, x, weight, bias, mean, inverse, ctx.running, ctx.eps, requested)
        return (*gradients, None)


class _Plan(NamedTuple):
    """What :class:`_BatchNorm` computes: BatchNorm by ``path``, the ReLU, and a frozen convolution."""

    norm: BatchNorm
    path: str
    relu: bool = True
    layer: Convolution | None = None
    both: bool = False
    """Whether the output of the ReLU is a result too, because another operation uses it."""


class _BatchNorm(torch.autograd.Function):
    """BatchNorm by a kernel, with what follows: the sum with a shortcut, the ReLU, and a convolution, or some of them.

    If only the convolution's output is a result, the shortcut is added to that. The gradient of the convolution's input
    shares memory with that of a shortcut before the ReLU, or of ``x``.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, plan: _Plan
    ) -> Tensor | tuple[Tensor, Tensor]:
        norm, path, relu, layer, both = plan
        setting = kernels.setting()
        if layer is not None and not both:
            convolved, statistics, running = _normalized_convolution(norm, layer, x, path, setting, shortcut)
            ctx.facts = path, relu, running, setting
            ctx.save_for_backward(x, statistics, None, layer._parameters["weight"])
            return convolved
        out, statistics, running = _normalized(norm, x, path, relu, shortcut)
        ctx.facts = path, relu, running, setting
        output = out if shortcut is not None else None
        if layer is None:
            ctx.save_for_backward(x, statistics, output, None)
            return out
        ctx.save_for_backward(x, statistics, output, layer._parameters["weight"])
        ctx.set_materialize_grads(False)
        return out, _convolve_by(setting, layer, out)

    @staticmethod
    @once
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, statistics, output, weight = ctx.saved_tensors
        path, relu, running, setting = ctx.facts
        if not any(ctx.needs_input_grad[:3]) and output is None:  # only the shortcut, which is added to the result
            return None, None, None, gradients[0], None
        gradient, other = gradients[-1], gradients[0] if len(gradients) == 2 else None
        free = None  # memory that may be overwritten
        if gradient is None:
            gradient, other = other, None
        elif weight is not None:
            free = gradient = _convolution_gradient(gradient, weight, setting)
        if gradient is None:
            return None, None, None, None, None
        masked = None
        if output is not None:
            masked, free = torch.empty_like(x) if free is None else free, None
        out = None
        if ctx.needs_input_grad[0]:
            out = torch.empty_like(x) if free is None else free
        of_weight, of_bias = norms.batch_norm_relu_backward(
            gradient,
            x,
            statistics,
            path,
            running=running,
            out=out,
            relu=relu,
            output=output,
            masked=masked,
            other=other,
        )
        of_shortcut = gradients[0] if output is None and ctx.needs_input_grad[3] else masked
        return out, of_weight, of_bias, of_shortcut, None


class _SliceAndPad(torch.autograd.Function):
    """A slice that is padded by zeros. Its gradient has the layout of its input, PyTorch's is never channels-last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: tuple[slice, ...], padding: tuple[int, ...]) -> Tensor:
        layout = torch.channels_last if _is_channels_last(x) else torch.contiguous_format
        ctx.facts = x.shape, layout, index, padding
        return F.pad(x[index], padding)

    @staticmethod
    @once
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        shape, layout, index, padding = ctx.facts
        out = torch.empty(shape, dtype=gradient.dtype, device=gradient.device, memory_format=layout).zero_()
        out[index] = F.pad(gradient, [-count for count in padding])
        return out, None, None


def _is_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
