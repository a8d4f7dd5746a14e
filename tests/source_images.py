"""Images that tell which they are, and what tests of the source buffer do with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cretta import SourceBuffer
from cretta.data import ArrayDataset

SIDE = 6


def numbered(count: int, side: int = SIDE) -> NDArray[np.uint8]:
    """Images that say which they are: channel 0 and 1 of the first pixel hold the number."""
    images = np.random.default_rng(count).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(count) // 256, np.arange(count) % 256
    return images


def numbers(buffer: SourceBuffer) -> list[int]:
    first = buffer.images[:, :, 0, 0].long()
    return [int(i) for i in first[:, 0] * 256 + first[:, 1]]


def dataset(labels: Sequence[int], classes: int = 30) -> ArrayDataset:
    names = tuple(str(i) for i in range(classes))
    return ArrayDataset("numbered", numbered(len(labels)), np.asarray(labels, dtype=np.int64), names)


def mixed_labels(counts: Sequence[int], seed: int = 0) -> list[int]:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    return [labels[i] for i in np.random.default_rng(seed).permutation(len(labels))]


def pixels(count: int = 5, channels: int = 3, side: int = SIDE, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, side, side), generator=generator, dtype=torch.uint8)


def floats(images: Tensor) -> Tensor:
    return images.float() / 255


def drawn(count: int) -> Tensor:
    """Normalized images: nothing like k/255."""
    return torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(count))


def half(images: Tensor) -> Tensor:
    return images * 0.5


def speckle(images: Tensor) -> Tensor:
    return (images + torch.rand_like(images).round()) / 2


class Net(nn.Module):
    """BatchNorm and dropout make train and eval mode differ."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(3, 8, 3)
            self.norm = nn.BatchNorm2d(8)
            self.drop = nn.Dropout(0.5)
            self.head = nn.Linear(8, 4)
            assert self.norm.running_mean is not None
            self.norm.running_mean.normal_(0, 0.3)
            self.head.weight.data.mul_(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))  # type: ignore[no-any-return]


LABELS = mixed_labels([15, 15, 15])
ARRAYS = numbered(45)
CHANNELS_FIRST = torch.from_numpy(ARRAYS.transpose(0, 3, 1, 2).copy())
