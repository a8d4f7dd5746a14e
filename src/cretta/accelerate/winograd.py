"""3 × 3 convolution by Winograd's algorithm, in the custom CPU kernels."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from cretta.accelerate import choices, kernels

COLUMNS = 16
"""Output channels in a group of transformed weights; a block of products has one group or two."""
PARTS = 8
"""Partial sums of a weight gradient, added in a fixed order."""
LARGE_TILES = " 4x4"
"""After a path's name: F(4 × 4, 3 × 3) instead of F(2 × 2, 3 × 3)."""
LARGEST_WEIGHT = 128 * 128
"""Channels in times channels out up to which larger tiles are used without timing: beyond, weights exceed the cache."""


class _Transforms(NamedTuple):
    """The transforms of a weight; the detached tensor keeps its memory from being used by another weight."""

    weight: weakref.ref[Tensor]
    version: int
    values: Tensor
    by_use: dict[tuple[int, bool], Tensor]
    """By the side of a tile, and whether it is for the backward pass."""


_G = {
    2: torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64, device="cpu"),
    4: torch.tensor(
        [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], dtype=torch.float64, device="cpu"
    )
    / 24,
}
"""G of the transform G w Gᵀ of a weight, by the side of a tile."""
_transformed: dict[int, _Transforms] = {}
"""Cache, by the id of the weight, as long as that exists."""


def weights(layer: nn.Module) -> tuple[Any, Any]:
    """Return ``layer.weight`` and ``layer.bias``, three times faster than by attribute."""
    parameters = layer._parameters
    return parameters["weight"], parameters["bias"]


def can_convolve(layer: nn.Module, x: Tensor) -> bool:
    """True if :func:`convolve` computes ``layer(x)``, and its gradient with respect to ``x``."""
    # Parameters last: an nn.Module looks them up slowly.
    if not isinstance(layer, nn.Conv2d) or layer.kernel_size != (3, 3):
        return False
    outputs, inputs = layer.out_channels, layer.in_channels
    if outputs % COLUMNS or inputs % COLUMNS:
        return False
    weight, bias = weights(layer)
    return (
        weight.shape == (outputs, inputs, 3, 3)
        and layer.stride == layer.padding == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and kernels.is_plain(weight)
        and not weight.is_inference()
        and (bias is None or bias.shape == (outputs,))
        and kernels.can_read(x, bias)
        and inputs == x.shape[1]
    )


def convolution_kernel(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    value: str,
    *,
    backward: bool = False,
    large: bool = False,
) -> str:
    """Return the name of the kernel for :func:`convolve`, or ``choices.PYTORCH``, with ``value`` as the setting.

    Timing chooses the size of tiles for a frozen weight. A setting that names a path uses larger tiles, which round
    worse, only where ``large`` allows them: for results that have no gradient.
    """
    key = (value, x.shape, weight.shape, backward, large, weight.requires_grad)
    known = choices.decided.get(key)
    if known is not None and kernels.layers_in_block.get() is None:
        return known
    images, inputs, height, width = x.shape
    outputs = weight.shape[1 if backward else 0]
    operation = "convolution backward" if backward else "convolution"
    if value in kernels.PATHS:
        if (layers := kernels.layers_in_block.get()) is not None:
            layers.add(choices.Shape(operation, 0, inputs, outputs, height, width))
        products = [36 * -(-height // 4) * -(-width // 4), 16 * -(-height // 2) * -(-width // 2)]
        large = large and inputs * outputs <= LARGEST_WEIGHT and products[0] < 0.75 * products[1]
        kernel = choices.decided[key] = value + LARGE_TILES if large else value
        return kernel
    count = choices.sampled(images, inputs, height, width)
    shape = choices.Shape(operation, count, inputs, outputs, height, width)

    timed = False

    def candidates() -> dict[str, Callable[[], object]]:
        nonlocal timed
        timed = True
        few = x.detach()[:count]
        names = [path + tiles for tiles in (LARGE_TILES, "") for path in kernels.paths(value)]
        runs: dict[str, Callable[[], object]] = {
            name: functools.partial(convolve, few, weight, bias, name, backward=backward) for name in names
        }
        runs[choices.PYTORCH] = functools.partial(plain_convolution, few, weight, bias, backward=backward)
        return runs

    # A weight that learns is transformed for each batch; training times entire steps and chooses for all layers.
    kernel = kernels.paths(value)[0] if weight.requires_grad else choices.fastest(shape, candidates)
    choices.decided[key] = kernel
    if timed:
        forget_transforms([weight])  # of tiles that were not chosen
    return kernel


def plain_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backward: bool = False) -> Tensor:
    """Compute by PyTorch what :func:`convolve` does."""
    if not backward:
        return F.conv2d(x, weight, bias, padding=1)
    # Only shape and layout of the input matter. Memory that is never touched is never allocated.
    shape = (len(x), weight.shape[1], *x.shape[2:])
    shell = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    result: Tensor = torch.ops.aten.convolution_backward(x, shell, weight, None, *geometry, (True, False, False))[0]
    return result


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel: str,
    *,
    backward: bool = False,
    statistics: Tensor | None = None,
    shortcut: Tensor | None = None,
) -> Tensor:
    """Return ``F.conv2d(x, weight, bias, padding=1)``; ``backward``: its input's gradient, from the output's, ``x``.

    By Winograd's F(2 × 2, 3 × 3) (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016): 16
    products for four pixels of a channel instead of 36; or F(4 × 4, 3 × 3): 36 for sixteen pixels instead of 144. An
    infinite or NaN value makes all pixels NaN of the tiles that contain it or touch it. ``statistics``: those of
    :func:`cretta.accelerate.norms.batch_statistics`, by which ``x`` is normalized before the ReLU and the convolution.
    ``shortcut``: a channels-last tensor to be added to the result.
    """
    kernels.require_plain(x)
    y = _convolve(x, weight, bias, kernel, backward, statistics, shortcut)
    if (errors := kernels.errors_in_block.get()) is not None:
        normalized = x
        if statistics is not None:
            normalized = torch.addcmul(statistics[3].view(-1, 1, 1), x, statistics[2].view(-1, 1, 1)).relu_()
        plain = plain_convolution(normalized, weight, bias, backward=backward)
        results = [y]
        if not weight.requires_grad:  # timing may choose the other size of tiles
            other = kernel.removesuffix(LARGE_TILES) if kernel.endswith(LARGE_TILES) else kernel + LARGE_TILES
            results.append(_convolve(x, weight, bias, other, backward, statistics, shortcut))
            forget_transforms([weight])  # the network may need one of them only
        for result in results:
            # Without the shortcut, beside which an error of the convolution could be small.
            kernels.add_error(errors, result if shortcut is None else result - shortcut, plain)
    return y


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel: str,
    backward: bool,
    statistics: Tensor | None,
    shortcut: Tensor | None,
) -> Tensor:
    tile = 4 if kernel.endswith(LARGE_TILES) else 2
    path = kernels.PATHS[kernel.removesuffix(LARGE_TILES)]
    inputs, outputs = weight.shape[:2] if backward else (weight.shape[1], weight.shape[0])
    images, _, height, width = x.shape
    if inputs == outputs:
        y = torch.empty_like(x, memory_format=torch.channels_last)
    else:
        shape = (images, outputs, height, width)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    sizes = (images, height, width, inputs, outputs)
    label = "cretta_convolve_backward" if backward else None
    transformed = _transform(weight, tile, backward=backward)
    tensors = (x, statistics, transformed, bias, shortcut, y)
    kernels.call_kernel("cretta_convolve", path, tile, *tensors, *sizes, label=label)
    return y


def weight_gradient(x: Tensor, gradient: Tensor, path: str) -> Tensor:
    """Return the gradient of the weight of ``F.conv2d(x, weight, padding=1)``, given that of its output.

    The transpose of :func:`convolve` in its weight, by Winograd: dw = Gᵀ [Σ_tiles (A g Aᵀ) (Bᵀ x B)] G.
    """
    images, inputs, height, width = x.shape
    outputs = gradient.shape[1]
    sums = x.new_empty(PARTS, 16, inputs * outputs)
    sizes = (images, height, width, inputs, outputs)
    kernels.call_kernel("cretta_convolve_weight", kernels.PATHS[path], x, gradient, sums, *sizes)
    taps = (torch.kron(_G[2], _G[2]).t() @ sums.sum(0, dtype=torch.float64)).float()
    result = taps.view(3, 3, inputs, outputs).permute(3, 2, 0, 1)
    if (errors := kernels.errors_in_block.get()) is not None:
        kernels.add_error(errors, result, conv2d_weight(x, list(result.shape), gradient, padding=1))
    return result


def _transform(weight: Tensor, tile: int, *, backward: bool) -> Tensor:
    """Return G w Gᵀ in the order of the kernel; for a frozen weight it is cached.

    It takes 16/9 of the weight's memory, and four times its memory for the larger tiles. A change is detected by the
    version that autograd counts; see :func:`forget_transforms` for one made through ``.data``.
    """
    if weight.requires_grad:
        return _computed_transform(weight, tile, backward=backward)
    key = id(weight)
    cached = _transformed.get(key)
    if cached is None or cached.version != weight._version or cached.values.data_ptr() != weight.data_ptr():
        reference = weakref.ref(weight, lambda _: _transformed.pop(key, None))
        cached = _transformed[key] = _Transforms(reference, weight._version, weight.detach(), {})
    result = cached.by_use.get((tile, backward))
    if result is None:
        result = cached.by_use[tile, backward] = _computed_transform(weight, tile, backward=backward)
    return result


def forget_transforms(weights: Iterable[Tensor]) -> None:
    """Compute the transforms of these weights again at their next use."""
    for weight in weights:
        _transformed.pop(id(weight), None)


@torch.no_grad()
def _computed_transform(weight: Tensor, tile: int, *, backward: bool) -> Tensor:
    # The gradient of the input is a convolution with the flipped and transposed weight.
    source = weight.flip(2, 3).transpose(0, 1) if backward else weight
    outputs, inputs = source.shape[:2]
    taps = source.permute(2, 3, 1, 0).reshape(9, inputs * outputs)
    products = (torch.kron(_G[tile], _G[tile]) @ taps.double()).float()
    return products.view((tile + 2) ** 2, inputs, outputs // COLUMNS, COLUMNS).permute(2, 0, 1, 3).contiguous()
