"""TENT, BN-Adapt and Source: the methods without source data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta.errors import ModelError

DOUBLE = torch.float64


def assert_close(got: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-8) -> None:
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"predict": "after"},
        {"lr": 1e-2, "steps": 3},
        {"lr": 1e-2, "steps": 3, "predict": "after"},
        {"lr": 1e-2, "optimizer": "sgd"},
        {"lr": 1e-2, "optimizer": "sgd", "momentum": 0.7, "nesterov": True, "weight_decay": 0.2},
        {"lr": 1e-2, "momentum": 0.5},
    ],
    ids=str,
)
def test_tent_equals_the_textbook(options: dict[str, Any]) -> None:
    net, stream = textbook.small_net(dtype=DOUBLE), textbook.batches((8, 8, 5, 8, 3), dtype=DOUBLE)
    expected = textbook.tent(net, stream, **options)
    model = cretta.adapt(net, "tent", **options)
    got = []
    for x, loss in zip(stream, expected.losses, strict=True):
        got.append(model(x))
        assert model.last.loss == pytest.approx(loss, rel=1e-8)
        assert model.last.adapted
    assert_close(got, expected.logits)
    theirs = dict(expected.model.named_parameters())
    for name, parameter in model.model.module.named_parameters():
        torch.testing.assert_close(parameter.data, theirs[name].data, rtol=1e-8, atol=1e-8)


def test_tent_in_single_precision() -> None:
    net, stream = textbook.small_net(), textbook.batches()
    model = cretta.adapt(net, "tent")
    assert_close([model(x) for x in stream], textbook.tent(net, stream).logits, 1e-5)


def test_tent_lowers_the_entropy() -> None:
    net, x = textbook.small_net(), textbook.batches((16,))[0]
    model = cretta.adapt(net, "tent", lr=1e-2)
    losses = []
    for _ in range(20):
        model(x)
        losses.append(model.last.loss)
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < 0.7 * losses[0]


def test_tent_answers_from_before_the_update() -> None:
    """The first batch is answered as by BN-Adapt."""
    net, x = textbook.small_net(dtype=DOUBLE), textbook.batches((8,), dtype=DOUBLE)[0]
    before, after = (cretta.adapt(net, "tent", lr=1e-2, predict=p)(x) for p in ("before", "after"))
    assert_close([before], textbook.bn_adapt(net, [x]).logits)
    assert (after - before).abs().max() > 1e-3
    assert torch.equal(cretta.adapt(net, "tent", lr=1e-2)(x), before)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_bn_adapt_equals_the_textbook(dtype: torch.dtype) -> None:
    net, stream = textbook.small_net(dtype=dtype), textbook.batches((8, 5, 8), dtype=dtype)
    model = cretta.adapt(net, "bn_adapt")
    tolerance = 1e-8 if dtype == DOUBLE else 1e-5
    assert_close([model(x) for x in stream], textbook.bn_adapt(net, stream).logits, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_source_equals_the_textbook(dtype: torch.dtype) -> None:
    net, stream = textbook.small_net(dtype=dtype), textbook.batches((8, 5, 8), dtype=dtype)
    model = cretta.adapt(net, "source")
    tolerance = 1e-8 if dtype == DOUBLE else 1e-5
    assert_close([model(x) for x in stream], textbook.source(net, stream).logits, tolerance)


def test_source_and_bn_adapt_differ_here() -> None:
    net, x = textbook.small_net(), textbook.batches((8,))[0]
    assert (cretta.adapt(net, "source")(x) - cretta.adapt(net, "bn_adapt")(x)).abs().max() > 0.1


@pytest.mark.parametrize("method", ["source", "bn_adapt"])
def test_what_learns_nothing_has_nothing_to_skip(method: str) -> None:
    net = textbook.small_net()
    model = cretta.adapt(net, method)
    before = copy.deepcopy(model.state.snapshot())
    for x in textbook.batches():
        model(x)
        assert model.last.adapted is False
        assert model.last.skipped is False
        assert model.last.reason == ""
        assert model.last.loss is None
        assert model.last.energy is not None
    textbook.assert_bits(model.state.snapshot(), before)
    assert not any(p.requires_grad for p in model.model.module.parameters())
    theirs = dict(net.named_parameters())
    assert all(p.data_ptr() == theirs[n].data_ptr() for n, p in model.model.module.named_parameters())


def test_source_takes_a_network_without_norm_layers() -> None:
    net = nn.Linear(4, 3)
    x = torch.randn(5, 4)
    torch.testing.assert_close(cretta.adapt(net, "source")(x), net(x).detach())


def test_source_takes_a_half_precision_network() -> None:
    net = textbook.small_net().bfloat16()
    logits = cretta.adapt(net, "source")(textbook.batches((4,))[0].bfloat16())
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()


def test_bn_adapt_refuses_a_network_without_batch_norm() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    with pytest.raises(ModelError, match=r"no BatchNorm.*'source'.*'tent' or 'cretta'"):
        cretta.adapt(net, "bn_adapt")


def test_a_buffer_is_left_alone() -> None:
    """Methods can be exchanged by name."""
    net, x = textbook.small_net(), textbook.batches((8,))[0]
    buffer = cretta.SourceBuffer(textbook.source_images(4), augment="none")
    assert torch.equal(cretta.adapt(net, "tent", buffer=buffer)(x), cretta.adapt(net, "tent")(x))
