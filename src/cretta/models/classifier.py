"""What every network here shares: RGB in [0, 1] at the door, normalised inside."""

from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from cretta.errors import BatchError, OptionError

Channels = Sequence[float] | Tensor


@fx.wrap  # a network that looks at its input cannot be followed by symbols, unless it does so in one piece
def normalised(x: Tensor, mean: Tensor | None, std: Tensor | None) -> Tensor:
    """``(x - mean) / std`` of RGB images in [0, 1]; of what is no such thing, an error."""
    # Broadcasting and type promotion would let grey or 0–255 byte images pass silently.
    if x.dim() != 4 or x.shape[1] != 3 or not x.is_floating_point():
        raise BatchError(
            f"got a {x.dtype} batch of shape {tuple(x.shape)}: give floating point RGB images in [0, 1], "
            "(N, 3, H, W); divide bytes by 255 and move channels to the front."
        )
    return x if mean is None or std is None else (x - mean) / std


class Classifier(nn.Module):
    """Base of the networks: (N, 3, H, W) in [0, 1] → (N, classes).

    ``mean`` and ``std`` are buffers of shape (1, 3, 1, 1), saved with the weights; without
    normalisation they are None and the state dict has no such keys, so that a state dict loads only
    into a model that treats its input the same way.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, classes: int, mean: Channels | None, std: Channels | None) -> None:
        super().__init__()
        self.classes = at_least_one("classes", classes)
        self.register_buffer("mean", None)
        self.register_buffer("std", None)
        self.set_normalisation(mean, std)

    def set_normalisation(self, mean: Channels | None, std: Channels | None) -> None:
        """Make the network compute (x − mean) / std first; None and None for no normalisation."""
        if (mean is None) != (std is None):
            raise OptionError(f"mean={mean!r}, std={std!r}: give both, or neither for no normalisation.")
        if mean is None or std is None:
            self.mean = self.std = None
            return
        like = next(self.parameters(), torch.empty(0))
        values = [torch.as_tensor(value, dtype=torch.float32, device="cpu").flatten() for value in (mean, std)]
        if not (
            all(value.numel() == 3 and bool(value.isfinite().all()) for value in values) and bool((values[1] > 0).all())
        ):
            raise OptionError(
                f"mean={mean!r}, std={std!r}: give three finite numbers each, one a channel, std above 0."
            )
        self.mean, self.std = (value.to(like.device, like.dtype).view(1, 3, 1, 1) for value in values)

    def normalise(self, x: Tensor) -> Tensor:
        """Return the images as the first layer wants them: `x` itself when there is no normalisation."""
        return normalised(x, self.mean, self.std)

    def extra_repr(self) -> str:
        """Name depth, width (where there are such) and classes when printed."""
        sizes = [name for name in ("depth", "width", "classes") if hasattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)}" for name in sizes)


def at_least_one(option: str, value: int) -> int:
    """Return ``value`` if it is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OptionError(f"{option}={value!r}: give a whole number of at least 1.")
    return value


def initialise(network: nn.Module) -> None:
    """He initialisation by fan-out for convolutions, zero for the biases of linear layers."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def blocks_per_stage(depth: int, stem: int, name: str) -> int:
    """Return the n of depth = 6n + stem, at least 1."""
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 6 + stem or (depth - stem) % 6:
        examples = ", ".join(str(6 * n + stem) for n in range(1, 6))
        raise OptionError(f"depth={depth!r} for a {name}: give 6n + {stem} with n ≥ 1 ({examples}, ...).")
    return (depth - stem) // 6
