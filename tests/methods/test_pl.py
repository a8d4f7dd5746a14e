"""PL against its formula: CE to the own label where max p > 0.9, all parameters, statistics of training."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta import optimizers
from cretta.errors import OptionError


def textbook_pl(
    net: nn.Module, stream: Sequence[Tensor], *, lr: float = 1e-5, threshold: float = 0.9
) -> list[golden.Step]:
    theta = copy.deepcopy(net).eval().requires_grad_(True)
    stepper = torch.optim.Adam(list(theta.parameters()), lr)
    run = []
    for x in stream:
        logits = theta(x)
        p = golden.probabilities(logits)
        losses = [-torch.log(p[i][p[i].argmax()]) for i in range(len(x)) if p[i].max().item() > threshold]
        loss = golden.mean(losses) if losses else None
        if loss is not None:
            stepper.zero_grad()
            loss.backward()
            stepper.step()
        run.append(golden.Step.of(theta, logits, loss, kept=len(losses)))
    return run


CASES: dict[str, tuple[float, dict[str, Any], list[str]]] = {
    # how sure the network is, options, what the batches must be
    "defaults": (1.0, {}, ["some", "none", "none", "some"]),
    "confident": (4.0, {}, ["some", "some", "some", "some"]),
    "a larger step": (4.0, {"lr": 3e-3}, ["some", "some", "some", "some"]),
    "all kept": (1.0, {"lr": 1e-2, "threshold": 0.0}, ["all", "all", "all", "all"]),
    "another threshold": (1.0, {"lr": 1e-2, "threshold": 0.45}, ["some", "some", "all", "all"]),
    "nothing kept": (0.1, {"lr": 1e-2}, ["none", "none", "none", "none"]),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_textbook(name: str) -> None:
    confidence, options, kinds = CASES[name]
    net, stream = golden.net(confidence), golden.stream()
    expected = textbook_pl(net, stream, **options)
    model = cretta.adapt(net, "pl", **options)
    assert golden.kinds(expected) == kinds
    for x, step in zip(stream, expected, strict=True):
        if step.loss is None:
            logits = golden.assert_skips(model, x, "confident")
            assert model.last.loss is None
        else:
            logits = model(x)
            golden.assert_adapted(model, step.loss, reason=None)
        golden.assert_logits(logits, step.logits)
        golden.assert_parameters(model, step.theta, 1e-10)


def test_the_threshold_is_strict() -> None:
    net, x = golden.net(), golden.stream((1,))[0]
    confidence = float(cretta.adapt(net, "source")(x).softmax(-1).max())
    golden.assert_skips(cretta.adapt(net, "pl", threshold=confidence), x, "no sample is more confident than")
    below = cretta.adapt(net, "pl", threshold=math.nextafter(confidence, 0.0))
    below(x)
    assert below.last.adapted


def test_the_reason_of_a_skip_names_the_threshold() -> None:
    model = cretta.adapt(golden.net(0.1), "pl", threshold=0.75)
    golden.assert_skips(model, golden.stream((8,))[0], "0.75")


def test_a_batch_learned_from_has_no_reason() -> None:
    """``reason`` says why an update was left out."""
    model = cretta.adapt(golden.net(), "pl", threshold=0.0)
    model(golden.stream((8,))[0])
    assert model.last.adapted
    assert model.last.reason == ""


def test_adam_with_a_small_step() -> None:
    model = cretta.adapt(golden.net(), "pl")
    assert (model.options.lr, model.options.threshold) == (1e-5, 0.9)
    group = golden.default_optimizer(model)
    assert group["kind"] is optimizers.Adam
    assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-5, (0.9, 0.999), 0.0)


def test_every_parameter_moves_and_the_users_network_does_not() -> None:
    net = golden.net()
    kept, flags = golden.tensors(net), [p.requires_grad for p in net.parameters()]
    model = cretta.adapt(net, "pl", lr=1e-2, threshold=0.0)
    for x in golden.stream():
        model(x)
    textbook.assert_bits(golden.tensors(net), kept)
    assert [p.requires_grad for p in net.parameters()] == flags
    assert all(p.grad is None for p in net.parameters())
    theirs = dict(net.named_parameters())
    for name, parameter in model.model.module.named_parameters():
        assert not torch.equal(parameter, theirs[name]), f"{name} did not move"
        assert parameter.data_ptr() != theirs[name].data_ptr(), f"{name} is the user's own"


def test_the_statistics_are_those_of_training() -> None:
    """They stay, a sample is judged by itself, and the first batch is answered as by the source model."""
    net, stream = golden.net(), golden.stream()
    model = cretta.adapt(net, "pl", lr=1e-2, threshold=0.0)
    assert (model.facts.updates, model.facts.statistics, model.statistics) == ("all", "running", "running")
    golden.assert_logits(model(stream[0]), textbook.source(net, stream[:1]).logits[0])
    for x in stream[1:]:
        model(x)
    theirs = dict(net.named_buffers())
    for name, value in model.model.module.named_buffers():
        assert torch.equal(value, theirs[name]), name
    together = model.predict(stream[0])
    alone = torch.cat([model.predict(x) for x in stream[0].split(1)])
    golden.assert_logits(alone, together)


def test_the_answer_is_from_before_the_update() -> None:
    net, x = golden.net(), golden.stream((8,))[0]
    before, after = (cretta.adapt(net, "pl", lr=1e-2, threshold=0.0, predict=p)(x) for p in ("before", "after"))
    assert torch.equal(cretta.adapt(net, "pl", lr=1e-2, threshold=0.0)(x), before)
    golden.assert_logits(before, textbook.source(net, [x]).logits[0])
    golden.assert_logits(after, textbook_pl(net, [x], lr=1e-2, threshold=0.0)[0].theta(x).detach())
    assert (after - before).abs().max() > 1e-3


def test_layers_to_skip_do_not_learn() -> None:
    net = golden.net()
    model = cretta.adapt(net, "pl", lr=1e-2, threshold=0.0, skip=("fc", "bn1"))
    for x in golden.stream((8, 8)):
        model(x)
    theirs = dict(net.named_parameters())
    same = {n for n, p in model.model.module.named_parameters() if torch.equal(p, theirs[n])}
    assert same == {"fc.weight", "fc.bias", "bn1.weight", "bn1.bias"}


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    x, *rest = golden.stream((8, 8))
    model, undisturbed = (cretta.adapt(golden.touchy(golden.net()), "pl", lr=1e-2, threshold=0.3) for _ in range(2))
    assert torch.equal(model(x), undisturbed(x))
    golden.assert_skips(model, golden.touching(x), "not finite")
    assert torch.equal(model(rest[0]), undisturbed(rest[0]))


def test_reset_and_restore_are_bit_exact(tmp_path: Path) -> None:
    def make() -> golden.AnyAdapter:
        return cretta.adapt(golden.net(), "pl", lr=1e-2, threshold=0.5)

    golden.reset_equals(make(), golden.stream())
    golden.resume_equals(make, golden.stream(), 2, tmp_path / "state.safetensors")


@pytest.mark.parametrize("threshold", [-0.1, 1.0, math.nan, "0.9", None])
def test_a_wrong_threshold(threshold: object) -> None:
    with pytest.raises(OptionError, match=r"threshold=.*confidence"):
        cretta.adapt(golden.net(), "pl", threshold=threshold)
