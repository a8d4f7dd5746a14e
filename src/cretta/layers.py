"""Which layers of a network learn."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from cretta.errors import ModelError
from cretta.method import Facts
from cretta.network import compiled
from cretta.normalization import norm_parameter_names, under
from cretta.options import known


def skipped_layers(net: nn.Module, skip: tuple[str, ...], *, by_user: bool, preset: str | None) -> tuple[str, ...]:
    """Return full names: users pass them; names in presets match at any depth, for networks that are wrapped."""
    names = {name for name, _ in [*net.named_modules(), *net.named_parameters()] if name}
    if by_user:
        for layer in skip:
            known("layer in skip=", layer, names)
        return skip
    matches = {layer: sorted(name for name in names if f".{name}".endswith(f".{layer}")) for layer in skip}
    missing = [layer for layer in skip if not matches[layer]]
    if missing:
        warnings.warn(
            f"preset={preset!r} keeps {', '.join(missing)} from learning, and {type(net).__name__} has no layer of "
            "that name; name the layers that should not learn by skip=(…), or skip=() for none.",
            stacklevel=4,
        )
    return tuple(name for layer in skip for name in matches[layer])


def learning_names(net: nn.Module, facts: Facts, skip: tuple[str, ...], *, method: str, lr: float) -> list[str]:
    """Return the names of the parameters that learn; raise if there are none, or if they are in half precision."""
    if facts.updates == "nothing":
        return []
    if facts.updates == "all":
        names = [name for name, _ in net.named_parameters() if not under(name, skip)]
    else:
        names = norm_parameter_names(net, skip)
    if not names:
        raise ModelError(
            compiled(net)
            or f"{type(net).__name__} has no "
            f"{'parameter' if facts.updates == 'all' else 'normalization layer with learnable γ and β'}"
            f"{' outside ' + repr(skip) if skip else ''}, and {method} updates "
            "nothing else. Expected BatchNorm, GroupNorm, LayerNorm, InstanceNorm or RMSNorm with affine "
            "parameters; method='source' predicts with any model."
        )
    parameters = dict(net.named_parameters(remove_duplicate=False))
    half = next((n for n in names if parameters[n].dtype in (torch.float16, torch.bfloat16)), None)
    if half is not None:
        raise ModelError(
            f"{half} is {parameters[half].dtype}: steps of lr={lr:g} would be rounded away. Use "
            "net.float() and run the adapter under torch.autocast for half-precision speed."
        )
    return names
