"""A plain module with the adapted weights and fixed statistics."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook

AnyAdapter = cretta.Adapter[Any]


def made(method: str = "tent", net: nn.Module | None = None, **options: Any) -> AnyAdapter:
    buffer = cretta.SourceBuffer(textbook.source_images(13), augment="none")
    net = net if net is not None else textbook.small_net()
    return cretta.adapt(net, method, buffer=buffer, **{"lr": 1e-2, **options})


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("statistics", ["batch", "running", "mixture", "moving", "auto"])
@pytest.mark.parametrize("method", ["tent", "cretta", "source"])
def test_on_its_calibration_batch_it_predicts_what_the_adapter_does(method: str, statistics: str) -> None:
    model = made(method, statistics=statistics)
    *stream, x = textbook.batches((8, 8, 7))
    for batch in stream:
        model(batch)
    exported = model.export(x)
    assert type(exported) is textbook.SmallNet
    assert not exported.training
    close(exported(x), model.predict(x))
    # Statistics are fixed: a sample's logits do not depend on the others.
    close(exported(x[:1]), exported(x)[:1])


@pytest.mark.parametrize("statistics", ["batch", "mixture", "auto"])
def test_without_a_batch_the_last_one_calibrates(statistics: str) -> None:
    model = made(statistics=statistics)
    for x in textbook.batches((8, 7)):
        model(x)
    close(model.export()(x), model.predict(x))


def test_moving_statistics_are_those_of_the_stream() -> None:
    model = made(statistics="moving")
    for x in textbook.batches((8, 8)):
        model(x)
    exported = model.export()
    assert isinstance(exported, textbook.SmallNet)
    mean, variance = model.state.average.values["bn1"]
    assert exported.bn1.running_mean is not None
    assert exported.bn1.running_var is not None
    close(exported.bn1.running_mean, mean)
    close(exported.bn1.running_var, variance)
    assert not torch.allclose(mean, model.net.bn1.running_mean)  # type: ignore[union-attr, arg-type]


def test_running_statistics_stay_as_trained() -> None:
    net = textbook.small_net()
    model = made("pl", net, threshold=0.0)
    (x,) = textbook.batches((8,))
    model(x)
    exported = model.export()
    close(exported(x), model.predict(x))
    assert torch.equal(exported.get_buffer("bn1.running_mean"), net.get_buffer("bn1.running_mean"))


def test_before_the_first_batch_a_batch_is_asked_for() -> None:
    model = made()
    with pytest.raises(cretta.ModelError, match=r"expected a batch to take the statistics from.*export\(x\)"):
        model.export()
    (x,) = textbook.batches((8,))
    close(model.export(x)(x), model.predict(x))
    layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    close(cretta.adapt(layers, "tent", statistics="running").export()(x), layers(x))


def test_it_is_independent_of_net_and_adapter() -> None:
    net = textbook.small_net()
    before = copy.deepcopy(net.state_dict())
    model = made(net=net)
    (x,) = textbook.batches((8,))
    model(x)
    state = model.state_dict()
    exported = model.export()
    assert all(parameter.requires_grad for parameter in exported.parameters())
    with torch.no_grad():
        for tensor in (*exported.parameters(), *exported.buffers()):
            tensor.zero_()
    textbook.assert_bits(model.state_dict(), state)
    textbook.assert_bits(dict(net.state_dict()), dict(before))
    assert net.bn1.running_mean is not None


def test_a_batch_norm_that_never_tracked_statistics() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    (x,) = textbook.batches((8,))
    model = made(net=net)
    model(x)
    close(model.export()(x), model.predict(x))
    assert norm.running_mean is None


def test_instance_norm_normalizes_each_image() -> None:
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    (x,) = textbook.batches((8,))
    model = made(net=net)
    model(x)
    close(model.export()(x), model.predict(x))


@pytest.mark.filterwarnings("ignore:.*isinstance.*:FutureWarning")
def test_torch_export_takes_it() -> None:
    model = made()
    (x,) = textbook.batches((8,))
    model(x)
    exported = model.export()
    program = torch.export.export(exported, (x,))
    close(program.module()(x), exported(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx_takes_it() -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx and onnxscript")
    pytest.importorskip("onnxscript", reason="needs onnx and onnxscript")
    model = made()
    (x,) = textbook.batches((8,))
    model(x)
    program = torch.onnx.export(model.export(), (x,), dynamo=True)
    assert program is not None
    onnx.checker.check_model(program.model_proto)
