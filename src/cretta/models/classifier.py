"""What the networks here share: they take RGB images in [0, 1] and normalize them themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from cretta.errors import BatchError, OptionError
from cretta.options import check_integer

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
        return ((args[0] - mean) / std, *args[1:]), kwargs
    return args, {key: (x - mean) / std if isinstance(x, Tensor) else x for key, x in kwargs.items()}


@fx.wrap  # symbolic tracing cannot follow code that looks at its input; it records this function as one call
def normalized(x: Tensor, mean: Tensor | None, std: Tensor | None) -> Tensor:
    """Return ``(x - mean) / std`` of RGB images in [0, 1]; raise for anything else."""
    # Broadcasting and type promotion would let gray or 0–255 byte images pass silently.
    if x.dim() != 4 or x.shape[1] != 3 or not x.is_floating_point():
        raise BatchError(
            f"got a {x.dtype} batch of shape {tuple(x.shape)}; expected floating point RGB images in [0, 1] of shape "
            "(N, 3, H, W)."
        )
    return x if mean is None or std is None else (x - mean) / std


class Classifier(nn.Module):
    """Base of the networks: (N, 3, H, W) in [0, 1] → (N, classes).

    ``mean`` and ``std`` are buffers of shape (1, 3, 1, 1), saved with the weights; without
    normalization they are None and the state dict has no such keys, so that a state dict loads only
    into a model that treats its input the same way.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, classes: int, mean: Channels | None, std: Channels | None) -> None:
        super().__init__()
        self.classes = check_integer("classes", classes, at_least=1)
        self.register_buffer("mean", None)
        self.register_buffer("std", None)
        self.set_normalization(mean, std)

    def set_normalization(self, mean: Channels | None, std: Channels | None) -> None:
        """Make the network compute (x − mean) / std first; None and None for no normalization."""
        values = normalization(mean, std, channels=3)
        like = next(self.parameters(), torch.empty(0))
        self.mean, self.std = (value.to(like.device, like.dtype) for value in values) if values else (None, None)

    def normalize(self, x: Tensor) -> Tensor:
        """Return the images as the first layer expects them: `x` itself when there is no normalization."""
        return normalized(x, self.mean, self.std)

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """Write config.json and model.safetensors, as Hugging Face models have them; needs ``huggingface_hub``.

        ``options`` are those of ``huggingface_hub.PyTorchModelHubMixin.save_pretrained``, such as
        ``push_to_hub=True, repo_id="me/my-model"``.
        """
        from cretta.models import hub

        hub.save_pretrained(self, folder, **options)

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> Self:
        """Return the network that :meth:`save_pretrained` wrote to a folder or to the Hugging Face hub."""
        from cretta.models import hub

        return hub.from_pretrained(cls, source, **options)

    def extra_repr(self) -> str:
        """Name depth, width (if it has them) and classes when printed."""
        sizes = [name for name in ("depth", "width", "classes") if hasattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)}" for name in sizes)


def initialize(network: nn.Module) -> None:
    """Set convolutions to He's initialization by fan-out, and the biases of linear layers to zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def blocks_per_stage(depth: int, stem: int, name: str) -> int:
    """Return the n of depth = 6n + stem, at least 1."""
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 6 + stem or (depth - stem) % 6:
        examples = ", ".join(str(6 * n + stem) for n in range(1, 6))
        raise OptionError(f"depth={depth!r} for a {name}: expected 6n + {stem} with n ≥ 1 ({examples}, ...).")
    return (depth - stem) // 6
