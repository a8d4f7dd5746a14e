"""WideResNet (Zagoruyko & Komodakis, 2016) with the block order and the key names of RobustBench."""

import torch.nn.functional as F
from torch import Tensor, nn

from cretta.errors import OptionError
from cretta.models.classifier import Channels, Classifier, blocks_per_stage, initialize
from cretta.options import check_integer


class Block(nn.Module):
    """Pre-activation: x + conv2(relu(bn2(conv1(relu(bn1(x)))))).

    Where the channel count changes, the shortcut is a 1×1 convolution of the *activated* input.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        # Named as in public checkpoints, which then load without renaming.
        self.convShortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) → (N, outputs, H / stride, W / stride)."""
        activated = F.relu(self.bn1(x))
        shortcut = x if self.convShortcut is None else self.convShortcut(activated)
        out = F.relu(self.bn2(self.conv1(activated)))
        if self.dropout:
            out = F.dropout(out, self.dropout, self.training)
        total: Tensor = shortcut + self.conv2(out)
        return total


class Stage(nn.Module):
    """`count` blocks, the first of which may widen and stride."""

    def __init__(self, count: int, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        first = Block(inputs, outputs, stride, dropout)
        self.layer = nn.Sequential(first, *(Block(outputs, outputs, 1, dropout) for _ in range(count - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the blocks in order."""
        out: Tensor = self.layer(x)
        return out


class WideResNet(Classifier):
    """WideResNet-depth-width for RGB in [0, 1] of any size; depth = 6n + 4.

    RobustBench's Hendrycks2020AugMix_WRN is depth 40, width 2, mean and std (0.5, 0.5, 0.5).
    """

    def __init__(
        self,
        depth: int,
        width: int,
        classes: int = 10,
        mean: Channels | None = None,
        std: Channels | None = None,
        dropout: float = 0.0,
    ) -> None:
        count = blocks_per_stage(depth, 4, "WideResNet")
        if not 0.0 <= dropout < 1.0:
            raise OptionError(f"dropout={dropout!r}: expected a probability in [0, 1).")
        super().__init__(classes, mean, std)
        self.depth, self.width, self.dropout = depth, check_integer("width", width, at_least=1), dropout
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.block1 = Stage(count, 16, 16 * width, 1, dropout)
        self.block2 = Stage(count, 16 * width, 32 * width, 2, dropout)
        self.block3 = Stage(count, 32 * width, 64 * width, 2, dropout)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.fc = nn.Linear(64 * width, classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) in [0, 1] → logits (N, classes)."""
        out = self.block3(self.block2(self.block1(self.conv1(self.normalize(x)))))
        logits: Tensor = self.fc(F.relu(self.bn1(out)).mean((2, 3)))
        return logits
