from collections.abc import Mapping

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cretta.errors import BatchError, OptionError
from cretta.models import WideResNet, load, weights


def images(count: int = 4, size: int = 32) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(count + size))


def shaken(network: WideResNet) -> WideResNet:
    """Norm layers away from their initial 0 and 1, where a mistake would cancel."""
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                assert tensor is not None
                tensor.data.copy_(torch.rand(tensor.shape, generator=generator) + 0.2)
    return network


def slow_forward(state: Mapping[str, Tensor], x: Tensor, blocks: int, batch_statistics: bool = False) -> Tensor:
    """The network written out again over the keys of a checkpoint, sharing nothing with the class."""

    def activate(key: str, x: Tensor) -> Tensor:
        mean, variance = state[f"{key}.running_mean"], state[f"{key}.running_var"]
        if batch_statistics:
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        scale = state[f"{key}.weight"] / (variance + 1e-5).sqrt()
        shifted = (x - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1) + state[f"{key}.bias"].view(1, -1, 1, 1)
        return shifted.clamp(min=0)

    x = F.conv2d(x, state["conv1.weight"], padding=1)
    for stage in (1, 2, 3):
        for block in range(blocks):
            key = f"block{stage}.layer.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            activated = activate(f"{key}.bn1", x)
            if f"{key}.convShortcut.weight" in state:
                x = F.conv2d(activated, state[f"{key}.convShortcut.weight"], stride=stride)
            out = F.conv2d(activated, state[f"{key}.conv1.weight"], stride=stride, padding=1)
            x = x + F.conv2d(activate(f"{key}.bn2", out), state[f"{key}.conv2.weight"], padding=1)
    x = activate("bn1", x)
    return x.sum((2, 3)) / (x.shape[2] * x.shape[3]) @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize("batch_statistics", [False, True])
@pytest.mark.parametrize(("depth", "width", "size"), [(10, 1, 32), (16, 2, 32), (10, 2, 64), (10, 1, 33)])
def test_equals_a_slow_forward(depth: int, width: int, size: int, batch_statistics: bool) -> None:
    network = shaken(WideResNet(depth, width, classes=7)).train(batch_statistics)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    x = images(size=size)
    with torch.no_grad():
        logits = network(x)
    assert logits.shape == (4, 7)
    torch.testing.assert_close(logits, slow_forward(state, x, (depth - 4) // 6, batch_statistics), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch_statistics", [False, True])
def test_shipped_model_equals_a_slow_forward_on_its_raw_file(batch_statistics: bool) -> None:
    raw = safetensors.torch.load((weights.SHIPPED / "wrn-40-2-cifar10.safetensors").read_bytes())
    state = {key: value.float() for key, value in raw.items()}
    x = images(4)
    with torch.no_grad():
        logits = load("wrn-40-2-cifar10").train(batch_statistics)(x)
    # Relative to the largest logit: single ones may be near zero.
    gap = (logits - slow_forward(state, x, 6, batch_statistics)).abs().max() / logits.abs().max()
    assert gap < 1e-5


def test_wrn_40_2_counts_by_hand() -> None:
    parameters = 3 * 16 * 9  # first convolution
    multiplications = 3 * 16 * 9 * 32 * 32
    inputs = 16
    for outputs, side in ((32, 32), (64, 16), (128, 8)):
        first = 9 * inputs * outputs + 9 * outputs * outputs + inputs * outputs
        others = 5 * 2 * 9 * outputs * outputs
        parameters += first + others + 2 * inputs + 2 * outputs + 5 * 4 * outputs
        multiplications += (first + others) * side * side
        inputs = outputs
    parameters += 2 * 128 + 128 * 10 + 10
    multiplications += 128 * 10

    network = WideResNet(40, 2).eval()
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters == 2_243_546
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(images(1))
    assert counter.get_total_flops() == 2 * multiplications
    assert multiplications == 327_599_360
    assert sum(isinstance(module, nn.BatchNorm2d) for module in network.modules()) == 37


def test_keys_are_those_of_public_checkpoints() -> None:
    keys = WideResNet(10, 1).state_dict().keys()
    assert {
        "conv1.weight",
        "block1.layer.0.bn1.running_var",
        "block3.layer.0.conv2.weight",
        "fc.bias",
    } <= keys
    # 16 channels in and out at width 1: no convolution on the first shortcut.
    assert [key for key in keys if "convShortcut" in key] == [
        "block2.layer.0.convShortcut.weight",
        "block3.layer.0.convShortcut.weight",
    ]


def test_normalizes_inside() -> None:
    mean, std = (0.1, 0.5, 0.9), (0.5, 0.25, 2.0)
    plain = shaken(WideResNet(10, 1)).eval()
    normalizing = WideResNet(10, 1, mean=mean, std=std).eval()
    normalizing.load_state_dict(plain.state_dict(), strict=False)
    x = images()
    channels = [(x[:, channel] - mean[channel]) / std[channel] for channel in range(3)]
    with torch.no_grad():
        torch.testing.assert_close(normalizing(x), plain(torch.stack(channels, 1)), rtol=1e-5, atol=1e-5)
        assert (normalizing(x) - plain(x)).abs().max() > 0.01
    assert plain.normalize(x) is x


def test_normalization_travels_with_the_state() -> None:
    source = shaken(WideResNet(10, 1, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))).eval()
    target = WideResNet(10, 1, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)).eval()
    assert target.mean is not None
    assert target.mean.shape == (1, 3, 1, 1)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target(images()), source(images()))
    with pytest.raises(RuntimeError, match="mean"):
        WideResNet(10, 1).load_state_dict(source.state_dict())
    with pytest.raises(RuntimeError, match="mean"):
        source.load_state_dict(WideResNet(10, 1).state_dict())


def test_channels_last_gives_the_same_and_stays_channels_last() -> None:
    network = shaken(WideResNet(10, 2, mean=(0.5,) * 3, std=(0.5,) * 3)).eval()
    x = images()
    with torch.no_grad():
        expected = network(x)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        formats: list[bool] = []
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
                module.register_forward_hook(
                    lambda _module, _inputs, out: formats.append(out.is_contiguous(memory_format=torch.channels_last))
                )
        actual = network(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    # 10 convolutions of which 3 on shortcuts, and 7 norms.
    assert len(formats) == 17
    assert all(formats)


def test_leaves_its_input_alone_and_passes_gradients_to_it() -> None:
    network = shaken(WideResNet(10, 1, mean=(0.5,) * 3, std=(0.5,) * 3)).train()
    x = images().requires_grad_()
    before = x.detach().clone()
    network(x).logsumexp(1).sum().backward()
    assert torch.equal(x.detach(), before)
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_dropout_acts_in_training_only() -> None:
    network = shaken(WideResNet(10, 1, dropout=0.5)).eval()
    with torch.no_grad():
        assert torch.equal(network(images()), network(images()))
        network.train()
        assert not torch.equal(network(images()), network(images()))


@pytest.mark.parametrize("depth", [4, 11, 0, -2, 28.0, True])
def test_refuses_a_depth_that_is_not_6n_plus_4(depth: int) -> None:
    with pytest.raises(OptionError, match=r"6n \+ 4"):
        WideResNet(depth, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width=0"),
        ({"classes": 0}, "classes=0"),
        ({"classes": 2.5}, "classes=2.5"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"mean": (0.5, 0.5, 0.5)}, "for both, std above 0; or neither"),
        ({"mean": (0.5,), "std": (0.5,)}, "expected 3 finite numbers"),
        ({"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.0, 0.5)}, "std above 0"),
    ],
)
def test_refuses_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        WideResNet(**({"depth": 10, "width": 1} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "batch",
    [torch.zeros(3, 32, 32), torch.zeros(2, 1, 32, 32), torch.zeros(2, 3, 32, 32, dtype=torch.uint8)],
    ids=["rank", "gray", "bytes"],
)
def test_refuses_what_is_not_a_batch_of_floating_rgb(batch: Tensor) -> None:
    network = WideResNet(10, 1, mean=(0.5,) * 3, std=(0.5,) * 3).eval()
    with pytest.raises(BatchError, match=r"\(N, 3, H, W\)"):
        network(batch)
