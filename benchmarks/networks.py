"""Networks and batches on which steps are timed. Weights are random, except those of WRN-40-2."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

import cretta
from cretta.data import corrupt, embedded

SOURCE = 100
"""Source images, and samples that TEA starts from; few enough that two steps of large batches have read all."""


class Block(nn.Module):
    """Two convolutions and a shortcut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Compute as ResNet-18 does."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += shortcut
        activated: Tensor = self.relu(out)
        return activated


def resnet18() -> nn.Module:
    """Return ResNet-18 for 1 000 classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [Block(inputs, outputs, 1 if inputs == outputs else 2), Block(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class VisionTransformer(nn.Module):
    """A small vision transformer for 32 × 32 pixels: patches of 4 × 4, six layers of 192 numbers, three heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 4, 4)
        self.position = nn.Parameter(0.02 * torch.randn(1, 64, 192))
        layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(192)
        self.head = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 32, 32) → logits (N, 10)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        logits: Tensor = self.head(self.norm(self.layers(tokens)).mean(1))
        return logits


@dataclasses.dataclass(frozen=True)
class Case:
    """A network and its batches."""

    title: str
    make: Callable[[], nn.Module]
    batch: int
    side: int = 32
    rounds: int = 10
    """Rounds by default: more for short steps, whose times vary more."""
    methods: tuple[str, ...] = ("source", "tent", "cretta")
    """Methods that are timed with each setting of CRETTA_KERNELS."""

    def network(self) -> nn.Module:
        """Build the network."""
        torch.manual_seed(0)
        return self.make().eval()

    def batches(self) -> list[Tensor]:
        """Return ten batches of the stream, or fewer."""
        if self.side != 32:
            generator = torch.Generator().manual_seed(0)
            return [torch.rand(self.batch, 3, self.side, self.side, generator=generator) for _ in range(4)]
        return list(images("test", 10 * self.batch).split(self.batch))

    def source(self) -> Tensor:
        """Return the source images."""
        if self.side != 32:
            return torch.rand(2 * self.batch, 3, self.side, self.side, generator=torch.Generator().manual_seed(1))
        return images("train", SOURCE)


def images(split: Literal["train", "test"], count: int) -> Tensor:
    """Return embedded images, those of the stream corrupted."""
    pixels = embedded(split).images[:count]
    if split == "test":
        pixels = corrupt(pixels, "gaussian_noise", severity=5, seed=0)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 255


def resnet20() -> nn.Module:
    return cretta.models.build("resnet-20")


CASES = {
    "wrn": Case("WRN-40-2, batches of 200", lambda: cretta.models.load("wrn-40-2-cifar10"), 200),
    "resnet20-1": Case("ResNet-20, batches of 1", resnet20, 1, rounds=100),
    "resnet20-8": Case("ResNet-20, batches of 8", resnet20, 8, rounds=60),
    "resnet20-32": Case("ResNet-20, batches of 32", resnet20, 32, rounds=40),
    "resnet20-200": Case("ResNet-20, batches of 200", resnet20, 200, rounds=15),
    "resnet18": Case("ResNet-18, batches of 16 images of 224 × 224", resnet18, 16, side=224),
    "groupnorm": Case(
        "ResNet-20 with GroupNorm, batches of 32",
        lambda: cretta.models.build("resnet-20", norm="group"),
        32,
        rounds=30,
    ),
    "vit": Case("a small vision transformer, batches of 32", VisionTransformer, 32, rounds=20),
}
