"""The ResNet of He et al. (2016) for small images: three stages of post-activation blocks, depth = 6n + 2."""

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from cretta.errors import OptionError
from cretta.models.classifier import Channels, Classifier, blocks_per_stage, initialize
from cretta.options import check_integer

Norm = Literal["batch", "group"]
GROUPS = 8


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """Return the norm layer for `channels`: BatchNorm, or GroupNorm of 8 groups."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(GROUPS, channels)


class Block(nn.Module):
    """Post-activation: relu(x + norm2(conv2(relu(norm1(conv1(x)))))).

    Where the channel count changes, the shortcut drops pixels and appends zero channels (option A).
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.stride = stride
        self.extra = outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = norm_layer(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm_layer(norm, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) → (N, outputs, H / stride, W / stride)."""
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.extra:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return F.relu(x + out)


class ResNet(Classifier):
    """ResNet-depth for RGB in [0, 1] of any size; `width` channels in the first stage; depth = 6n + 2.

    ``norm="group"`` has no batch statistics, for batches of one.
    """

    def __init__(
        self,
        depth: int,
        classes: int = 10,
        width: int = 16,
        norm: Norm = "batch",
        mean: Channels | None = None,
        std: Channels | None = None,
    ) -> None:
        count = blocks_per_stage(depth, 2, "ResNet")
        super().__init__(classes, mean, std)
        self.depth, self.width = depth, check_integer("width", width, at_least=1)
        if norm not in get_args(Norm):
            raise OptionError(f"norm={norm!r}: expected one of {', '.join(get_args(Norm))}.")
        if norm == "group" and width % GROUPS:
            raise OptionError(f"width={width} with norm='group': expected a multiple of {GROUPS}, the group count.")
        self.norm = norm
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm1 = norm_layer(norm, width)
        self.stage1 = self._stage(count, width, width, 1)
        self.stage2 = self._stage(count, width, 2 * width, 2)
        self.stage3 = self._stage(count, 2 * width, 4 * width, 2)
        self.fc = nn.Linear(4 * width, classes)
        initialize(self)

    def _stage(self, count: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
        first = Block(inputs, outputs, stride, self.norm)
        return nn.Sequential(first, *(Block(outputs, outputs, 1, self.norm) for _ in range(count - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) in [0, 1] → logits (N, classes)."""
        out = F.relu(self.norm1(self.conv1(self.normalize(x))))
        logits: Tensor = self.fc(self.stage3(self.stage2(self.stage1(out))).mean((2, 3)))
        return logits
