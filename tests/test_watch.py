"""Writes to the weights that an adapter shares with its network: noticed, and nothing of the old weights stays."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cretta
import textbook
from cretta.models import WideResNet
from cretta.watch import WeightWatch


def wide_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return textbook.settle(WideResNet(10, 1, 5), textbook.source_images(32).split(8))


def convolution(net: nn.Module) -> nn.Parameter:
    return next(
        parameter for name, parameter in net.named_parameters() if parameter.shape[2:] == (3, 3) and "1" in name
    )


def in_place(net: nn.Module) -> None:
    with torch.no_grad():
        convolution(net).mul_(1.5)


def through_data(net: nn.Module) -> None:
    convolution(net).data.mul_(1.5)


def one_value_through_data(net: nn.Module) -> None:
    convolution(net).data.view(-1)[3] += 1e-6


def adapter(net: nn.Module, method: str = "cretta") -> cretta.Adapter[Any]:
    return cretta.adapt(net, method, buffer=cretta.SourceBuffer(textbook.source_images(20), augment="none"))


@pytest.mark.parametrize("method", ["source", "tent", "cretta"])
def test_a_write_by_pytorch_is_noticed_at_the_next_batch(method: str) -> None:
    first, second = textbook.batches((8, 8))
    net = wide_net()
    model = adapter(net, method)
    model(first)
    learned = model.state_dict()
    in_place(net)
    with pytest.warns(UserWarning, match=r"weights of net were written to .*conv"):
        logits = model(second)
    other = adapter(copy.deepcopy(net), method)
    other.load_state_dict(learned)
    torch.testing.assert_close(logits, other(second), rtol=1e-5, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(first)


@pytest.mark.parametrize("write", [in_place, through_data, one_value_through_data])
@pytest.mark.parametrize("method", ["source", "cretta"])
def test_any_write_is_noticed_at_reset(method: str, write: Callable[[nn.Module], None]) -> None:
    first, second = textbook.batches((8, 8))
    net = wide_net()
    model = adapter(net, method)
    model(first)
    write(net)
    with pytest.warns(UserWarning, match="weights of net were written to"):
        model.reset()
    torch.testing.assert_close(model(second), adapter(copy.deepcopy(net), method)(second), rtol=1e-5, atol=1e-5)


def test_a_state_of_the_old_weights_is_not_restored(tmp_path: Path) -> None:
    net = wide_net()
    model = adapter(net)
    model(textbook.batches((8,))[0])
    model.save(tmp_path / "state.safetensors")
    through_data(net)
    with pytest.warns(UserWarning, match="written to"), pytest.raises(cretta.StateError, match="the source model was"):
        model.restore(tmp_path / "state.safetensors")


def test_adapting_writes_to_no_weight_of_the_network() -> None:
    net = wide_net()
    model = adapter(net)
    for x in textbook.batches((8, 8)):
        model(x)
    assert model._weights.written() == []
    assert model._weights.changed() == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_changed_bit_is_noticed(dtype: torch.dtype) -> None:
    layer = nn.Linear(30, 20).to(dtype)
    watch = WeightWatch(layer)
    layer.weight.data[7, 3] = torch.nextafter(layer.weight.data[7, 3].float(), torch.tensor(9.0)).to(dtype) + (
        0.01 if dtype in (torch.float16, torch.bfloat16) else 0
    )
    assert watch.changed() == ["weight"]
    assert watch.written() == []
