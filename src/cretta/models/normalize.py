"""Normalization of input images: the channel values, and a network that applies them itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cretta.errors import OptionError

Channels = Sequence[float] | Tensor
Normalization = tuple[Tensor, Tensor] | None
"""Mean and std of the channels, (1, C, 1, 1) each; None for no normalization."""
MEAN, STD = "input_mean", "input_std"
"""Buffers of a network that was not built with a normalization."""


def normalization(mean: Channels | None, std: Channels | None, channels: int | None = None) -> Normalization:
    """Return mean and std as float32 tensors; ``channels`` is their expected number, if known."""
    if mean is None and std is None:
        return None
    if mean is not None and std is not None:
        values = [torch.as_tensor(value, dtype=torch.float32, device="cpu").flatten() for value in (mean, std)]
        count = values[0].numel() if channels is None else channels
        finite = all(value.numel() == count and bool(value.isfinite().all()) for value in values)
        if count and finite and bool((values[1] > 0).all()):
            return values[0].view(1, -1, 1, 1), values[1].view(1, -1, 1, 1)
    number = "one finite number per channel" if channels is None else f"{channels} finite numbers"
    raise OptionError(f"mean={mean!r}, std={std!r}: expected {number} for both, std above 0; or neither.")


def normalize(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return (x − mean) / std, by channel."""
    return (x - mean) / std


def normalize_input(net: nn.Module, mean: Tensor, std: Tensor) -> None:
    """Make ``net`` normalize its input.

    By a hook on buffers, not by a module around it: layers keep their names, which presets refer to.
    """
    net.register_buffer(MEAN, mean)
    net.register_buffer(STD, std)
    net.register_forward_pre_hook(_hook, with_kwargs=True)


def _hook(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    mean, std = net.get_buffer(MEAN), net.get_buffer(STD)
    if args:
        return (normalize(args[0], mean, std), *args[1:]), kwargs
    return args, {key: normalize(x, mean, std) if isinstance(x, Tensor) else x for key, x in kwargs.items()}
