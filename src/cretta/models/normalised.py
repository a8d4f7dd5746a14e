"""Normalisation in front of a network that was not built with one: images in [0, 1] at the door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cretta.errors import OptionError

MEAN, STD = "input_mean", "input_std"


def normalise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(x − mean) / std, a value a channel."""
    return (x - mean) / std


def channel_values(mean: Sequence[float] | None, std: Sequence[float] | None) -> tuple[Tensor, Tensor] | None:
    """Mean and std of the channels as (1, C, 1, 1), or None for none."""
    if mean is None and std is None:
        return None
    if mean is None or std is None or len(mean) != len(std) or not len(mean):
        raise OptionError(f"mean={mean!r}, std={std!r}: give both, one number a channel, or neither.")
    values = [torch.tensor([float(number) for number in given]) for given in (mean, std)]
    if not all(bool(value.isfinite().all()) for value in values) or not bool((values[1] > 0).all()):
        raise OptionError(f"mean={mean!r}, std={std!r}: give finite numbers, std above 0.")
    return values[0].view(1, -1, 1, 1), values[1].view(1, -1, 1, 1)


def put_in_front(net: nn.Module, mean: Tensor, std: Tensor) -> None:
    """Lets ``net`` normalise its input.

    By a hook on buffers, not by a module around it: layers keep their names, by which presets know them.
    """
    net.register_buffer(MEAN, mean)
    net.register_buffer(STD, std)
    net.register_forward_pre_hook(_hook, with_kwargs=True)


def _hook(net: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    mean, std = net.get_buffer(MEAN), net.get_buffer(STD)
    if given:
        return (normalise(given[0], mean, std), *given[1:]), named
    return given, {key: normalise(x, mean, std) if isinstance(x, Tensor) else x for key, x in named.items()}
