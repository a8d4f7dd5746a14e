"""Normalisation layers: which they are, and whose statistics they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from cretta.errors import ModelError

Role = Literal["target", "source", "probe"]
"""A batch of the stream; source samples, or others not of the stream; a batch of it once more, by way of trial."""
STATISTICS = ("batch", "running", "mixture", "moving")
NORM_LAYERS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def norm_layers(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every normalisation layer of ``net`` by name; a layer used in two places comes once."""
    return ((name, module) for name, module in net.named_modules() if isinstance(module, NORM_LAYERS))


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether ``name`` is one of ``prefixes`` or belongs to a module of that name."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def norm_parameter_names(net: nn.Module, skip: tuple[str, ...] = ()) -> list[str]:
    """Names of all γ and β, without the layers whose name is, or lies under, a name in ``skip``."""
    names: dict[int, str] = {}
    for layer, module in norm_layers(net):
        if not under(layer, skip):
            for name, parameter in module.named_parameters(recurse=False):
                names.setdefault(id(parameter), f"{layer}.{name}" if layer else name)
    return list(names.values())


class StreamAverage:
    """The moving average of BatchNorm statistics over one stream, a (mean, variance) for each layer."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[Tensor, Tensor]] = {}
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}

    def commit(self) -> None:
        """Makes the statistics of the stream's last forward the average, unless they overflowed."""
        flat = [value for pair in self.seen.values() for value in pair]
        if flat and bool(torch.isfinite(torch.cat(flat)).all()):
            self.values.update(self.seen)
        self.seen = {}


class NormStatistics:
    """Decides what the BatchNorm layers of ``net``, which must be our own copy, normalise with.

    ``batch``: the batch at hand. ``running``: training's statistics. ``mixture``: α · batch + (1 - α) ·
    running. ``moving``: the same with, in the place of running, an average that started there and follows
    the stream. A source batch is not part of the stream: it is mixed with training's statistics.
    """

    def __init__(self, net: nn.Module, statistics: str, batch_weight: float, average: StreamAverage) -> None:
        self.role: Role = "target"
        self.follows_stream = False
        self._moving = statistics == "moving"
        self._batch_weight = batch_weight
        self._average = average
        for name, module in norm_layers(net):
            if isinstance(module, nn.GroupNorm):
                _transform_input(module, _avoid_channels_last)
            if not isinstance(module, _BatchNorm | _InstanceNorm):
                continue
            if statistics == "batch" or (isinstance(module, _InstanceNorm) and statistics != "running"):
                module.track_running_stats = False
                module.running_mean = module.running_var = None
            elif isinstance(module, _BatchNorm):
                self._use_training_statistics(name, module, statistics)

    def _use_training_statistics(self, name: str, module: _BatchNorm, statistics: str) -> None:
        if module.running_mean is None or module.running_var is None:
            raise ModelError(
                f"{statistics!r} statistics are asked for, but BatchNorm layer {name!r} was built with "
                "track_running_stats=False and has none; use statistics='batch', and reference='batch' with CreTTA."
            )
        if self._moving:
            self._average.values.setdefault(name, (_float(module.running_mean), _float(module.running_var)))
        if statistics != "running":
            _transform_input(module, self._blend(name, module))

    def _blend(self, name: str, module: _BatchNorm) -> Callable[[Tensor], Tensor]:
        """A function that shifts and scales a layer's input so that its own statistics amount to the blend.

        Working on the input keeps every subclass of BatchNorm whole (some fuse an activation) and lets
        gradients through the batch's share of the statistics.
        """

        def blend(x: Tensor) -> Tensor:
            assert module.running_mean is not None
            assert module.running_var is not None
            variance, mean = torch.var_mean(_float(x), [a for a in range(x.dim()) if a != 1], correction=0)
            running_mean, running_variance = _float(module.running_mean), _float(module.running_var)
            in_stream = self._moving and self.role != "source"
            base = self._average.values[name] if in_stream else (running_mean, running_variance)
            mean = torch.lerp(base[0], mean, self._batch_weight)
            variance = torch.lerp(base[1], variance, self._batch_weight)
            if in_stream and self.follows_stream and self.role == "target":
                self._average.seen[name] = (mean.detach(), variance.detach())
            scale = torch.sqrt((running_variance + module.eps) / (variance + module.eps))
            shift = running_mean - mean * scale
            shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
            return torch.addcmul(shift.view(shape), x, scale.view(shape)).to(x.dtype)

        return blend


def _transform_input(layer: nn.Module, transform: Callable[[Tensor], Tensor]) -> None:
    """Lets ``transform`` have a layer's input before the layer does, given by position or by name."""

    def hook(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if given:
            return (transform(given[0]), *given[1:]), named
        return given, {**named, "input": transform(named["input"])}

    layer.register_forward_pre_hook(hook, with_kwargs=True)


def _avoid_channels_last(x: Tensor) -> Tensor:
    """PyTorch 2.13 on the CPU crashes in GroupNorm's backward for channels-last input that needs no gradient."""
    dangerous = torch.is_grad_enabled() and not x.requires_grad and x.device.type == "cpu"
    return x.contiguous() if dangerous else x


def _float(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
