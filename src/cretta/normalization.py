"""Normalization layers: which they are, and which statistics they use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from cretta.distributed import Group
from cretta.errors import ModelError
from cretta.functional import at_least_float32

Role = Literal["target", "source", "probe"]
"""What a batch is: one of the stream; source or generated samples; a batch of the stream again (``probe``).

Only a ``target`` batch updates the moving statistics; ``source`` is mixed with training's statistics, not the stream's.
"""
Statistics = Literal["batch", "running", "mixture", "moving", "auto"]
STATISTICS: tuple[str, ...] = get_args(Statistics)
PRIOR = 32
"""N of "auto", for a batch with images of all classes: training's statistics count as those of so many images."""
LEAST_WEIGHT = 0.2
"""Below this share of the batch, "auto" uses the statistics of training alone."""
MOST_OF_ANSWERS = 1.25
"""Effective classes by probabilities, relative to those by answers; calibrated networks have less, shifted or not."""
FAR_MEAN = 3.0
FAR_VARIANCE = 3.0
"""Moving statistics reject a batch if, in a layer, the root mean square over the channels of the shift of the mean, in
standard deviations, or of the logarithm of the ratio of variances, exceeds these: see docs/monitoring.md."""
NORM_LAYERS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def norm_layers(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return every normalization layer of ``net`` by name; a layer that is used twice comes once."""
    return ((name, module) for name, module in net.named_modules() if isinstance(module, NORM_LAYERS))


def has_batch_norm(net: nn.Module) -> bool:
    """Return whether statistics of a batch play a role."""
    return any(isinstance(module, _BatchNorm) for module in net.modules())


def has_running_statistics(net: nn.Module) -> bool:
    """Return whether every BatchNorm layer has the statistics of training."""
    return all(module.running_mean is not None for _, module in norm_layers(net) if isinstance(module, _BatchNorm))


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    """Return whether ``name`` is one of ``prefixes`` or belongs to a module of that name."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def norm_parameter_names(net: nn.Module, skip: tuple[str, ...] = ()) -> list[str]:
    """Return the names of all γ and β, without layers that are named in ``skip`` or belong to a module named there."""
    names: dict[int, str] = {}
    for layer, module in norm_layers(net):
        if not under(layer, skip):
            for name, parameter in module.named_parameters(recurse=False):
                names.setdefault(id(parameter), f"{layer}.{name}" if layer else name)
    return list(names.values())


class StreamAverage:
    """The moving average of BatchNorm statistics over one stream: (mean, variance) per layer."""

    def __init__(self, batch_weight: float = 0.1) -> None:
        self.batch_weight = batch_weight
        """The batch's share α, of all networks of one adapter."""
        self.values: dict[str, tuple[Tensor, Tensor]] = {}
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}
        self.rejected = False
        """Whether the batch was far from the stream, so that the average stayed as it was; a new batch clears it."""

    def commit(self) -> None:
        """Make the statistics of the last forward pass of the stream the average, unless they are far from it."""
        if any(not self._near(self.values[name], *seen) for name, seen in self.seen.items()):
            self.rejected = True
        else:
            self.values.update(self.seen)
        self.seen = {}

    def _near(self, average: tuple[Tensor, Tensor], mean: Tensor, variance: Tensor) -> bool:
        """Return whether the batch that moved ``average`` to these statistics is near it; what overflowed is not."""
        spread = average[1].clamp(min=1e-5)
        shift = (mean - average[0]) / self.batch_weight / spread.sqrt()
        ratio = 1 + (variance - average[1]) / self.batch_weight / spread
        far = (
            shift.square().mean().sqrt() / FAR_MEAN,
            ratio.clamp(min=1e-12).log().square().mean().sqrt() / FAR_VARIANCE,
        )
        return bool(torch.stack(far).max() <= 1)


def prior_weight(size: int, logits: Tensor) -> float:
    """Return the share n / (N + n) of a batch of n images in its statistics (Schneider et al., 2020).

    N = 32 / s⁴, where s is the effective number of classes that the source model sees in the batch, divided by how many
    are expected among so many images. It is exp H(p̄), and at most 1.25 times that of its answers alone: an
    underconfident model gives some probability to all classes, whatever it sees. ``logits`` are the source model's of
    some or all images. One image has only the statistics of training; so has a batch whose share would be below 0.2.

    >>> round(prior_weight(32, torch.eye(4).repeat(8, 1) * 100), 3)  # as many classes as expected
    0.5
    >>> round(prior_weight(32, torch.eye(4)[[0] * 32] * 100), 3)  # one class of four
    0.0
    """
    if size == 1:
        return 0.0
    mix = at_least_float32(logits).softmax(-1).mean(0)
    count = len(mix)
    answers = torch.bincount(logits.argmax(-1), minlength=count).double() / len(logits)
    entropies = torch.stack([torch.special.entr(shares).sum().double() for shares in (mix, answers)])
    classes, answered = entropies.exp().tolist()  # at once: the device is waited for once
    if not math.isfinite(classes):
        return 0.0
    classes = min(classes, MOST_OF_ANSWERS * answered)
    share = min(1.0, classes / (count * (1 - (1 - 1 / count) ** len(logits))))
    weight = size / (PRIOR / share**4 + size)
    return weight if weight >= LEAST_WEIGHT else 0.0


class NormStatistics:
    """Sets the statistics that the BatchNorm layers of ``net`` normalize with; ``net`` is changed, so pass a copy.

    ``batch``: those of the current batch. ``running``: those of training. ``mixture``: α · batch + (1 - α) · running.
    ``moving``: the same, with a moving average that starts at the running statistics and follows the stream instead of
    them. ``auto``: a mixture with α by :func:`prior_weight`. A source batch is not part of the stream: it is mixed with
    training's statistics.

    With a ``group``, a batch is that of all its processes.
    """

    def __init__(self, net: nn.Module, statistics: str, average: StreamAverage, group: Group | None = None) -> None:
        self.role: Role = "target"
        self.size = 1
        """Samples of the batch that the network processes."""
        self.follows_stream = False
        self._statistics = statistics
        self._moving = statistics == "moving"
        self._average = average
        self._group = group
        self.synchronizes = False
        """Whether a forward pass exchanges statistics with other processes."""
        for name, module in norm_layers(net):
            if isinstance(module, nn.GroupNorm):
                _transform_input(module, _avoid_channels_last)
            if not isinstance(module, _BatchNorm | _InstanceNorm):
                continue
            synchronizes = group is not None and isinstance(module, _BatchNorm) and statistics != "running"
            self.synchronizes |= synchronizes
            if statistics == "batch" or (isinstance(module, _InstanceNorm) and statistics != "running"):
                module.track_running_stats = False
                module.running_mean = module.running_var = None
                if synchronizes:
                    first = next(iter([*net.parameters(), *net.buffers()]), torch.empty(0))
                    module.running_mean = torch.zeros(module.num_features, device=first.device)
                    module.running_var = torch.ones(module.num_features, device=first.device)
                    _transform_input(module, self._blend(name, module))
            elif isinstance(module, _BatchNorm):
                self._use_training_statistics(name, module, statistics)

    def _use_training_statistics(self, name: str, module: _BatchNorm, statistics: str) -> None:
        if module.running_mean is None or module.running_var is None:
            raise ModelError(
                f"expected running statistics for statistics={statistics!r}, got none: BatchNorm layer {name!r} was "
                "built with track_running_stats=False; use statistics='batch', and reference='batch' with CreTTA."
            )
        if self._moving:
            self._average.values.setdefault(
                name, (at_least_float32(module.running_mean), at_least_float32(module.running_var))
            )
        if statistics != "running":
            _transform_input(module, self._blend(name, module))

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each channel of a batch, in at least single precision."""
        if self._group is not None:
            return self._group.moments(at_least_float32(x))
        variance, mean = torch.var_mean(at_least_float32(x), [a for a in range(x.dim()) if a != 1], correction=0)
        return mean, variance

    def effective(self, name: str, module: _NormBase, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and variance that a layer normalizes a batch with, from those of the batch."""
        if self._statistics == "batch":
            return mean, variance
        assert module.running_mean is not None
        assert module.running_var is not None
        base = at_least_float32(module.running_mean), at_least_float32(module.running_var)
        if self._statistics == "running":
            return base
        if self._moving and self.role != "source":
            base = self._average.values[name]
        weight = self._average.batch_weight
        if self._statistics == "auto" and self.role == "source":
            weight = self.size / (PRIOR + self.size)  # of all classes
        return torch.lerp(base[0], mean, weight), torch.lerp(base[1], variance, weight)

    def _blend(self, name: str, module: _NormBase) -> Callable[[Tensor], Tensor]:
        """Return a function that shifts and scales a layer's input so that its own statistics amount to the blend.

        Working on the input supports every subclass of BatchNorm (some fuse an activation) and lets gradients flow
        through the batch's share of the statistics.
        """

        def blend(x: Tensor) -> Tensor:
            assert module.running_mean is not None
            assert module.running_var is not None
            running_mean, running_variance = at_least_float32(module.running_mean), at_least_float32(module.running_var)
            mean, variance = self.effective(name, module, *self.moments(x))
            if self._moving and self.follows_stream and self.role == "target":
                self._average.seen[name] = (mean.detach(), variance.detach())
            scale = torch.sqrt((running_variance + module.eps) / (variance + module.eps))
            shift = running_mean - mean * scale
            shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
            return torch.addcmul(shift.view(shape), x, scale.view(shape)).to(x.dtype)

        return blend


def _transform_input(layer: nn.Module, transform: Callable[[Tensor], Tensor]) -> None:
    """Apply ``transform`` to a layer's input before the layer runs; the input is passed by position or by name."""

    def hook(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (transform(args[0]), *args[1:]), named
        return args, {**named, "input": transform(named["input"])}

    layer.register_forward_pre_hook(hook, with_kwargs=True)


def _avoid_channels_last(x: Tensor) -> Tensor:
    """Return ``x`` contiguous where PyTorch 2.13 crashes.

    On the CPU, GroupNorm's backward pass does so for channels-last input that needs no gradient.
    """
    crashes = torch.is_grad_enabled() and not x.requires_grad and x.device.type == "cpu"
    return x.contiguous() if crashes else x
