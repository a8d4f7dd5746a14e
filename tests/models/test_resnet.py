from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cretta.errors import OptionError
from cretta.models import ResNet
from cretta.models.resnet import Norm


def images(count: int = 4, size: int = 32) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(count + size))


def shaken(network: ResNet) -> ResNet:
    generator = torch.Generator().manual_seed(1)
    for key, tensor in network.state_dict().items():
        if "norm" in key and tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.2)
    return network


def slow_forward(state: Mapping[str, Tensor], x: Tensor, blocks: int) -> Tensor:
    """The network written out again; group norm where the state holds no running statistics."""

    def norm(key: str, x: Tensor) -> Tensor:
        if f"{key}.running_mean" in state:
            mean = state[f"{key}.running_mean"].view(1, -1, 1, 1)
            variance = state[f"{key}.running_var"].view(1, -1, 1, 1)
            x = (x - mean) / (variance + 1e-5).sqrt()
        else:
            groups = x.reshape(len(x), 8, -1)
            variance, mean = torch.var_mean(groups, 2, unbiased=False, keepdim=True)
            x = ((groups - mean) / (variance + 1e-5).sqrt()).view_as(x)
        return x * state[f"{key}.weight"].view(1, -1, 1, 1) + state[f"{key}.bias"].view(1, -1, 1, 1)

    x = norm("norm1", F.conv2d(x, state["conv1.weight"], padding=1)).clamp(min=0)
    for stage in (1, 2, 3):
        for block in range(blocks):
            key = f"stage{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            out = norm(f"{key}.norm1", F.conv2d(x, state[f"{key}.conv1.weight"], stride=stride, padding=1))
            out = norm(f"{key}.norm2", F.conv2d(out.clamp(min=0), state[f"{key}.conv2.weight"], padding=1))
            if stride == 2:
                x = x[:, :, ::2, ::2]
                x = torch.cat([x, torch.zeros_like(x)], 1)
            x = (x + out).clamp(min=0)
    return x.sum((2, 3)) / (x.shape[2] * x.shape[3]) @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("depth", "width", "size"), [(8, 16, 32), (14, 8, 64), (8, 8, 33)])
def test_equals_a_slow_forward(depth: int, width: int, size: int, norm: Norm) -> None:
    network = shaken(ResNet(depth, classes=7, width=width, norm=norm)).eval()
    x = images(size=size)
    with torch.no_grad():
        expected = slow_forward(network.state_dict(), x, (depth - 2) // 6)
        torch.testing.assert_close(network(x), expected, rtol=1e-5, atol=1e-5)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.testing.assert_close(
            network(x.contiguous(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("depth", "published"), [(20, 0.27), (32, 0.46), (56, 0.85)])
def test_counts_by_hand(depth: int, published: float, norm: Norm) -> None:
    blocks = (depth - 2) // 6
    count = 3 * 16 * 9 + 2 * 16 + 64 * 10 + 10
    for inputs, outputs in ((16, 16), (16, 32), (32, 64)):
        count += 9 * inputs * outputs + 9 * outputs * outputs * (2 * blocks - 1) + 4 * outputs * blocks
    actual = sum(parameter.numel() for parameter in ResNet(depth, norm=norm).parameters())
    assert actual == count
    # Table 6 of He et al. (2016), in millions.
    assert round(actual / 1e6, 2) == published


def test_group_norm_sees_each_image_alone() -> None:
    network = ResNet(8, norm="group").train()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    with torch.no_grad():
        torch.testing.assert_close(network(images())[:1], network(images()[:1]), rtol=1e-5, atol=1e-6)


def test_normalizes_inside() -> None:
    plain = shaken(ResNet(8)).eval()
    normalizing = ResNet(8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)).eval()
    normalizing.load_state_dict(plain.state_dict(), strict=False)
    x = images()
    shifted = (x - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(normalizing(x), plain(shifted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 28}, r"6n \+ 2"),
        ({"depth": 2}, r"6n \+ 2"),
        ({"norm": "layer"}, "batch, group"),
        ({"norm": "group", "width": 12}, "multiple of 8"),
        ({"width": -1}, "width=-1"),
    ],
)
def test_refuses_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ResNet(**({"depth": 8} | options))  # type: ignore[arg-type]
