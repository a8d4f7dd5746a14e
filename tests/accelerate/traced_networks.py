"""Networks of all shapes that tracing has to handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import textbook
from cretta.models import ResNet, WideResNet
from cretta.network import copy_sharing_parameters
from cretta.normalization import NormStatistics, StreamAverage, norm_parameter_names

Way = Callable[[Any, Tensor], Any]
WIDTH = 48
"""Channels: a multiple of 3, which an image has, and of 16, which the kernels need."""


class Net(nn.Module):
    """Three convolutions with BatchNorm, which ``way`` calls, and a linear head."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way
        self.conv1, self.bn1 = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH)
        self.conv2, self.bn2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH)
        self.conv3, self.bn3 = nn.Conv2d(WIDTH, WIDTH, 1, bias=False), nn.BatchNorm2d(WIDTH)
        self.relu, self.inplace = nn.ReLU(), nn.ReLU(inplace=True)
        self.fc = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.way(self, x).mean((2, 3)))
        return logits


def torchvision_block(net: Any, x: Tensor) -> Any:
    identity = net.inplace(net.bn1(net.conv1(x)))
    out = net.bn3(net.conv3(net.inplace(net.bn2(net.conv2(identity)))))
    out += identity
    return net.inplace(out)


def norm_used_twice(net: Any, x: Tensor) -> Any:
    normal = net.bn1(net.conv1(x))
    return torch.relu(normal) + net.conv2(normal)


def norm_used_twice_and_added(net: Any, x: Tensor) -> Any:
    normal = net.bn1(net.conv1(x))
    return torch.relu(net.bn2(net.conv2(normal)) + normal) * normal


def norm_used_after_its_sum(net: Any, x: Tensor) -> Any:
    normal = net.bn1(net.conv1(x))
    total = normal + net.conv2(F.relu(x.repeat(1, WIDTH // 3, 1, 1)))
    return torch.relu(total) - normal


def convolution_of_two_norms(net: Any, x: Tensor) -> Any:
    out = net.conv1(x)
    return torch.relu(net.bn1(out)) + torch.relu(net.bn2(out))


def convolution_called_twice(net: Any, x: Tensor) -> Any:
    out = F.relu(net.bn1(net.conv1(x)))
    return F.relu(net.bn3(net.conv2(F.relu(net.bn2(net.conv2(out))))))


def norm_called_twice(net: Any, x: Tensor) -> Any:
    out = F.relu(net.bn1(net.conv1(x)))
    return F.relu(net.bn2(net.conv3(F.relu(net.bn2(net.conv2(out))))))


def convolution_used_beside_its_norm(net: Any, x: Tensor) -> Any:
    out = net.conv1(x)
    return torch.relu(net.bn1(out)) + out


def sum_that_broadcasts(net: Any, x: Tensor) -> Any:
    out = net.bn1(net.conv1(x))
    return torch.relu(net.conv2(out.mean((2, 3), keepdim=True))[:, :, :1, :1] + torch.relu(out)) + net.bn1.bias.sum()


def small_sum_that_broadcasts(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    return torch.relu(net.conv3(out.mean((2, 3), keepdim=True)) + net.bn2(net.conv2(out)))


def sum_with_itself(net: Any, x: Tensor) -> Any:
    out = net.conv1(x)
    return torch.relu(net.bn1(out + out))


def sum_in_place_of_what_is_used_again(net: Any, x: Tensor) -> Any:
    first = torch.sigmoid(net.bn1(net.conv1(x))).clone()
    second = first
    second += net.bn2(net.conv2(torch.relu(x.repeat(1, WIDTH // 3, 1, 1))))
    return torch.relu(second) - 2 * first


def sum_of_sizes(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    sides = out.shape[2] + out.shape[3] + out.shape[1]
    shape = out.shape[:1] + out.shape[1:2] + out.shape[2:]
    return out.reshape(shape) * (sides / 20)


def with_more_arguments(net: Any, x: Tensor, y: Any = None, features: bool = False) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    if y is not None:
        out = out.gather(1, y[:, None])
    return [out] if features else out


def sum_weighted(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    return torch.relu(torch.add(net.bn2(net.conv2(out)), out, alpha=3))


def sum_with_a_number(net: Any, x: Tensor) -> Any:
    return torch.relu(net.bn1(net.conv1(x)) + 0.1)


def sum_of_methods(net: Any, x: Tensor) -> Any:
    out = net.bn1(net.conv1(x)).relu_()
    return net.bn2(net.conv2(out)).add_(net.conv3(out)).relu().add(out)


def sum_with_a_norm(net: Any, x: Tensor) -> Any:
    """Both parts of the sum are BatchNorm's, and its ReLU is used by a convolution and another sum."""
    out = F.relu(net.bn1(net.conv1(x)))
    total = F.relu(net.bn3(net.conv3(out)) + net.bn2(net.conv2(out)))
    return F.relu(net.bn2(net.conv2(total)) + total)


def slices(net: Any, x: Tensor) -> Any:
    """A shortcut without parameters, and slices and paddings of other kinds."""
    out = F.relu(net.bn1(net.conv1(x)))
    small = F.pad(out[:, : WIDTH // 2, ::2, ::2], (0, 0, 0, 0, 0, WIDTH // 2))
    edge = F.pad(out[:, :, ::2, ::2], (1, 1, 1, 1), mode="replicate")[:, :, 1:-1, 1:-1]
    ones = F.pad(out[:, 1:], (0, 0, 0, 0, 1, 0), value=1.0)
    part = out[:, :, ::2, ::2]
    return F.relu(net.bn3(net.conv3(small)) + small) + edge + F.pad(part, (0, 0)) + part + ones[:, :, ::2, ::2]


def relu_in_place(net: Any, x: Tensor) -> Any:
    out = net.bn1(net.conv1(x)).relu_()
    return net.bn2(net.conv2(out)).relu_()


def relu_in_place_of_what_is_used_again(net: Any, x: Tensor) -> Any:
    out = net.bn1(net.conv1(x))
    return out.relu_() + net.conv2(out)


def relu_of_a_convolution(net: Any, x: Tensor) -> Any:
    return F.relu(net.conv2(torch.relu(net.conv1(x)))) + net.bn1(net.conv1(x))


def under_no_grad(net: Any, x: Tensor) -> Any:
    with torch.no_grad():
        out = torch.relu(net.bn1(net.conv1(x)))
    return F.relu(net.bn2(net.conv2(out)))


def data_dependent(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    return out if out.mean() > 100 else torch.relu(net.bn2(net.conv2(out)))


def asks_for_a_tensor(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    return torch.relu(net.bn2(net.conv2(out))) if isinstance(x, Tensor) else out * 0


def at_random(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    return torch.relu(net.bn2(net.conv2(out * (1 + torch.rand_like(out)))))


def built(way: Way) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return textbook.settle(Net(way), textbook.source_images(24).split(8))

    return build


def shipped(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return textbook.settle(make(), textbook.source_images(24).split(8))

    return build


WAYS: list[Way] = [
    torchvision_block,
    norm_used_twice,
    norm_used_twice_and_added,
    norm_used_after_its_sum,
    convolution_of_two_norms,
    convolution_called_twice,
    norm_called_twice,
    convolution_used_beside_its_norm,
    sum_that_broadcasts,
    small_sum_that_broadcasts,
    sum_with_itself,
    sum_of_sizes,
    with_more_arguments,
    sum_weighted,
    sum_with_a_number,
    sum_of_methods,
    sum_with_a_norm,
    slices,
    relu_in_place,
    relu_in_place_of_what_is_used_again,
    relu_of_a_convolution,
]
NETS: dict[str, Callable[[], nn.Module]] = {
    "wide resnet": shipped(lambda: WideResNet(10, 1, 5)),
    "wide resnet, normalized": shipped(lambda: WideResNet(10, 1, 5, mean=[0.4] * 3, std=[0.3] * 3)),
    "wide resnet, dropout": shipped(lambda: WideResNet(10, 1, 5, dropout=0.3)),
    "resnet": shipped(lambda: ResNet(8, 5, 8)),
    "resnet of 16 channels": shipped(lambda: ResNet(14, 5, 16)),
    "resnet, GroupNorm": shipped(lambda: ResNet(8, 5, 8, norm="group")),
    "small net": textbook.small_net,
    **{way.__name__: built(way) for way in WAYS},
}
UNTRUSTED = {
    way.__name__: built(way)
    for way in (asks_for_a_tensor, at_random, under_no_grad, sum_in_place_of_what_is_used_again)
}


def learning(net: nn.Module, statistics: str = "batch") -> nn.Module:
    """Return a copy as an adapter has it: γ and β learn, everything else is frozen."""
    names = norm_parameter_names(net)
    module = copy_sharing_parameters(net, own=names)
    NormStatistics(module, statistics, StreamAverage())
    for name in names:
        module.get_parameter(name).requires_grad_(True)
    return module


def image_batch(channels_last: bool = False) -> Tensor:
    (x,) = textbook.batches((6,))
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def assert_close(result: Tensor, expected: Tensor, tolerance: float) -> None:
    assert result.shape == expected.shape
    assert (result - expected).abs().max() <= tolerance * (1e-3 + expected.abs().max())
