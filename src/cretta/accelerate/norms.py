"""BatchNorm, and a sum and ReLU after it, in the custom CPU kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cretta.accelerate import choices, kernels


def can_batch_norm_relu(x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None = None) -> bool:
    """True if :func:`batch_norm_relu` accepts these tensors."""
    shape = x.shape
    fits = len(shape) == 4 and shape[1] % 8 == 0 and weight.shape == bias.shape == shape[1:2]
    if shortcut is not None and not (kernels.is_plain(shortcut) and shortcut.shape == shape):
        return False
    return fits and kernels.can_read(x, weight, bias)


_NORMS = {
    (total, relu, running, gradient): f"BatchNorm{' sum' * total}{' ReLU' * relu}, "
    + ("running statistics" if running else "batch statistics")
    + ", and backward" * gradient
    for total in (False, True)
    for relu in (False, True)
    for running in (False, True)
    for gradient in (False, True)
}
"""Names of the operations, by whether there is a sum, a ReLU, running statistics, and a gradient."""


def fitting_paths(channels: int) -> tuple[str, ...]:
    """Return the paths in use whose vectors divide the channels."""
    return tuple(path for path in kernels.paths() if channels % kernels.LANES[path] == 0)


def batch_norm_path(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    running: tuple[Tensor, Tensor] | None,
    *,
    relu: bool,
    gradient: bool,
    total: bool = False,
) -> str:
    """Return the path for :func:`batch_norm_relu`, with its backward pass if ``gradient``, or ``choices.PYTORCH``.

    ``total``: a shortcut is added before the ReLU.
    """
    value = kernels.setting()
    key = (value, x.shape, total, relu, running is not None, gradient)
    known = choices.decided.get(key)
    if known is not None and kernels.layers_in_block.get() is None:
        return known
    images, channels, height, width = x.shape
    fitting = fitting_paths(channels)
    if not fitting:
        return choices.PYTORCH
    operation = _NORMS[total, relu, running is not None, gradient]
    if value in kernels.PATHS:
        if (layers := kernels.layers_in_block.get()) is not None:
            layers.add(choices.Shape(operation, 0, channels, channels, height, width))
        choices.decided[key] = fitting[0]
        return fitting[0]
    count = choices.sampled(images, channels, height, width)

    def candidates() -> dict[str, Callable[[], object]]:
        few = x.detach()[:count]
        upstream = torch.ones_like(few)

        def run(path: str) -> None:
            shortcut = few if total else None
            y, statistics = batch_norm_relu(few, weight, bias, eps, path, running, relu=relu, shortcut=shortcut)
            if gradient:
                fixed, output = running is not None, y if total else None
                masked, out = (torch.empty_like(few), torch.empty_like(few)) if total else (None, y)
                batch_norm_relu_backward(
                    upstream, few, statistics, path, running=fixed, out=out, relu=relu, output=output, masked=masked
                )

        def plain() -> None:
            mean, variance = running or (None, None)
            y, mean, inverse = torch.native_batch_norm(few, weight, bias, mean, variance, not running, 0.0, eps)
            if total:
                y.add_(few)
            if relu:
                y.relu_()
            if gradient:
                if running:
                    mean, inverse = running[0], (running[1] + eps).rsqrt()
                before = torch.ops.aten.threshold_backward(upstream, y, 0) if total else upstream
                plain_backward(before, few, weight, bias, mean, inverse, running, eps, relu=relu and not total)

        runs: dict[str, Callable[[], object]] = {path: functools.partial(run, path) for path in fitting}
        return {**runs, choices.PYTORCH: plain}

    shape = choices.Shape(operation, count, channels, channels, height, width)
    path = choices.decided[key] = choices.fastest(shape, candidates)
    return path


def plain_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse: Tensor,
    running: tuple[Tensor, Tensor] | None,
    eps: float,
    requested: tuple[bool, bool, bool] = (True, True, True),
    *,
    relu: bool = True,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of ``x``, weight and bias of ``relu(batch_norm(x))`` by PyTorch, from BatchNorm's input."""
    if relu:
        scale = weight * inverse
        shift = torch.addcmul(bias, mean, scale, value=-1)
        shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
        before = torch.addcmul(shift.view(shape), x, scale.view(shape))
        gradient = torch.ops.aten.threshold_backward.grad_input(gradient, before, 0, grad_input=before)
    statistics = (*running, None, None) if running else (None, None, mean, inverse)
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None] = torch.ops.aten.native_batch_norm_backward(
        gradient, x, weight, *statistics, not running, eps, requested
    )
    return gradients


def batch_norm_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    path: str,
    running: tuple[Tensor, Tensor] | None = None,
    *,
    relu: bool = True,
    shortcut: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``relu(batch_norm(x) + shortcut)`` and its statistics, which :func:`batch_norm_relu_backward` needs.

    Without ``relu``, ``batch_norm(x)``. ``running``: mean and variance to use instead of the batch's. The statistics
    have four rows of one value per channel: mean, inverse standard deviation, scale and shift.
    """
    if shortcut is not None:
        shortcut = shortcut.contiguous(memory_format=torch.channels_last)
    y = torch.empty_like(x)
    statistics = _run(x, weight, bias, eps, path, running, shortcut, y, relu=relu)
    if (errors := kernels.errors_in_block.get()) is not None:
        mean, variance = running or (None, None)
        plain = F.batch_norm(x, mean, variance, weight, bias, running is None, 0.0, eps)
        plain = plain if shortcut is None else plain.add_(shortcut)
        kernels.add_error(errors, y, plain.relu_() if relu else plain)
    return y, statistics


def batch_statistics(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, path: str, running: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Return the statistics that :func:`batch_norm_relu` returns, for an operation that normalizes ``x`` by itself."""
    statistics = _run(x, weight, bias, eps, path, running, None, None, relu=True)
    if (errors := kernels.errors_in_block.get()) is not None:
        mean, variance = running or (None, None)
        plain = F.batch_norm(x, mean, variance, weight, bias, running is None, 0.0, eps)
        kernels.add_error(errors, torch.addcmul(statistics[3].view(-1, 1, 1), x, statistics[2].view(-1, 1, 1)), plain)
    return statistics


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    path: str,
    running: tuple[Tensor, Tensor] | None,
    shortcut: Tensor | None,
    y: Tensor | None,
    *,
    relu: bool,
) -> Tensor:
    """Run the kernel, which writes to ``y`` if there is one, and return the statistics."""
    kernels.require_plain(x)
    channels = x.shape[1]
    statistics = x.new_empty(4, channels)
    if running is not None:
        statistics[0] = running[0]
        statistics[1] = (running[1] + eps).rsqrt()
    sizes = (x.numel() // channels, channels, running is not None, relu)
    tensors = (x, weight, bias, eps, shortcut, y, statistics)
    kernels.call_kernel("cretta_batch_norm_relu", kernels.PATHS[path], *tensors, *sizes)
    return statistics


def batch_norm_relu_backward(
    gradient: Tensor,
    x: Tensor,
    statistics: Tensor,
    path: str,
    *,
    running: bool,
    out: Tensor | None = None,
    relu: bool = True,
    output: Tensor | None = None,
    masked: Tensor | None = None,
    other: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias; write the gradient of ``x`` to ``out``, which may be ``gradient``.

    ``running``: the statistics were not the batch's and do not depend on ``x``. If a shortcut was added, ``output`` is
    the result of the forward pass; the gradient of the shortcut is written to ``masked``, which may be ``gradient``.
    ``other`` is a second gradient of the output, to be added to the first.
    """
    kernels.require_plain(gradient)
    channels = x.shape[1]
    of_parameters = x.new_empty(2, channels)
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    if other is not None:
        other = other.contiguous(memory_format=torch.channels_last)
    errors = kernels.errors_in_block.get()
    # Before the kernel runs, which may overwrite the gradient.
    references = []
    if errors is not None:
        total = gradient if other is None else gradient + other
        references = _plain_gradients(total, x, statistics, running=running, relu=relu, output=output)
    sizes = (x.numel() // channels, channels, running, relu)
    tensors = (x, gradient, other, output, statistics, masked, out, of_parameters)
    kernels.call_kernel("cretta_batch_norm_relu_backward", kernels.PATHS[path], *tensors, *sizes)
    of_weight, of_bias = of_parameters.unbind()
    if errors is not None:
        for result, (reference, size) in zip((of_weight, of_bias, out, masked), references, strict=True):
            if result is not None:
                kernels.add_error(errors, result, reference, size)
    return of_weight, of_bias


def _plain_gradients(
    gradient: Tensor, x: Tensor, statistics: Tensor, *, running: bool, relu: bool, output: Tensor | None
) -> list[tuple[Tensor, Tensor]]:
    """Return the gradients of weight, bias, ``x`` and shortcut by PyTorch, and the norm of what they are sums of."""
    mean, inverse, scale, shift = statistics
    # In float64 the sign of the ReLU's input is exact, as it is in the kernel, which rounds once.
    before = torch.addcmul(shift.double().view(-1, 1, 1), x.double(), scale.double().view(-1, 1, 1))
    if relu:
        gradient = torch.where((before if output is None else output) > 0, gradient, 0.0)
    known = (mean, inverse.pow(-2), None, None) if running else (None, None, mean, inverse)
    of_input, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
        gradient, x, scale / inverse, *known, not running, 0.0, (True, True, True)
    )
    size = gradient.norm()
    return [(of_weight, size), (of_bias, size), (of_input, size * scale.abs().mean()), (gradient, size)]
