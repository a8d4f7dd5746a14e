"""SHOT, online, and SHOT-IM against their formula: mean H + Σ p̄ log(p̄ + 1e-5) + 0.3 · CE of the sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import golden
import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta import optimizers
from cretta.errors import OptionError


def textbook_shot(
    net: nn.Module,
    stream: Sequence[Tensor],
    *,
    lr: float = 1e-3,
    pseudo: float = 0.3,
    threshold: float = 0.9,
    inside: float = 1e-5,
    constant_mean: bool = False,
) -> list[golden.Step]:
    """``inside`` the logarithm and ``constant_mean`` (no gradient through p̄) are there to be got wrong on purpose."""
    theta, parameters = golden.twin(net)
    stepper = torch.optim.Adam(parameters, lr)
    run = []
    for x in stream:
        logits = theta(x)
        p = golden.probabilities(logits)
        loss = golden.mean([-(row * torch.log(row)).sum() for row in p])
        average = golden.mean(list(p))
        if constant_mean:
            average = average.detach()
        for k in range(p.shape[1]):
            loss = loss + average[k] * torch.log(average[k] + inside)
        sure = [-torch.log(row[row.argmax()]) for row in p if row.max().item() > threshold]
        if sure and pseudo:
            loss = loss + pseudo * golden.mean(sure)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        run.append(golden.Step.of(theta, logits, loss, kept=len(sure)))
    return run


CASES: dict[str, tuple[float, dict[str, Any], list[str]]] = {
    "defaults": (1.0, {}, ["some", "some", "some", "some"]),
    "all sure": (1.0, {"lr": 1e-2, "threshold": 0.0}, ["all", "all", "all", "all"]),
    "none sure": (0.2, {"lr": 1e-2}, ["none", "none", "none", "none"]),
    "first some, then none": (1.0, {"threshold": 0.98}, ["some", "none", "none", "some"]),
    "some classes nearly die out": (8.0, {"lr": 1e-2}, ["some", "all", "some", "some"]),
    "another weight": (1.0, {"lr": 1e-2, "pseudo": 2.0}, ["some", "some", "some", "some"]),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_textbook(name: str) -> None:
    """A batch without a sure sample keeps the other terms."""
    confidence, options, kinds = CASES[name]
    net, stream = golden.net(confidence), golden.stream()
    expected = textbook_shot(net, stream, **options)
    assert golden.kinds(expected) == kinds
    golden.assert_run(cretta.adapt(net, "shot", **options), stream, expected)


@pytest.mark.parametrize("confidence", [0.2, 1.0, 8.0])
def test_shot_im_equals_the_textbook(confidence: float) -> None:
    net, stream = golden.net(confidence), golden.stream((8, 5, 1, 8))
    golden.assert_run(cretta.adapt(net, "shot_im", lr=1e-2), stream, textbook_shot(net, stream, lr=1e-2, pseudo=0.0))


def test_shot_without_pseudo_labels_is_shot_im() -> None:
    net, stream = golden.net(2.0), golden.stream()
    one, other = cretta.adapt(net, "shot", pseudo=0.0), cretta.adapt(net, "shot_im")
    assert all(torch.equal(one(x), other(x)) for x in stream)
    textbook.assert_bits(one.state.snapshot(), other.state.snapshot())


@pytest.mark.parametrize(
    "wrong", [{"inside": 0.0}, {"inside": 1e-6}, {"constant_mean": True}, {"pseudo": 0.1}, {"pseudo": 0.0}], ids=str
)
def test_the_comparison_sees_what_could_be_wrong(wrong: dict[str, Any]) -> None:
    net, stream = golden.net(8.0), golden.stream((8,))  # so sure that some classes nearly die out
    right, other = textbook_shot(net, stream)[0], textbook_shot(net, stream, **wrong)[0]
    apart = [(right.gradients[n] - other.gradients[n]).abs().max().item() for n in right.gradients]
    assert max(apart) > 100 * golden.TOLERANCE


def test_the_diversity_term_by_hand() -> None:
    """Two sure samples of two classes: H is nearly 0 and p̄ = (1/2, 1/2), so the loss is nearly -ln 2."""
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False)).to(golden.DOUBLE).eval()
    net[1].weight.data = 50 * torch.eye(2, dtype=golden.DOUBLE)
    model = cretta.adapt(net, "shot")
    model(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=golden.DOUBLE))
    assert model.last.loss == pytest.approx(math.log(0.5 + 1e-5), abs=1e-12)
    model.reset()
    model(torch.tensor([[1.0, -1.0], [1.0, -1.0]], dtype=golden.DOUBLE))  # two alike are normalized to nothing
    assert model.last.loss == pytest.approx(math.log(2) + math.log(0.5 + 1e-5), abs=1e-9)


def test_the_threshold_is_strict() -> None:
    net, x = golden.net(), golden.stream((1,))[0]
    confidence = float(cretta.adapt(net, "bn_adapt")(x).softmax(-1).max())
    losses = []
    for threshold in (confidence, math.nextafter(confidence, 0.0)):
        model = cretta.adapt(net, "shot", threshold=threshold)
        model(x)
        losses.append(model.last.loss)
    assert losses[0] is not None
    assert losses[1] == pytest.approx(losses[0] - 0.3 * math.log(confidence), abs=1e-12)


def test_shot_spreads_the_classes_and_tent_does_not() -> None:
    net, x = golden.net(), golden.stream((16,))[0]

    def mixed(method: str) -> float:
        model = cretta.adapt(net, method, lr=1e-2)
        for _ in range(30):
            logits = model(x)
        p = logits.softmax(-1).mean(0)
        return float(-(p * p.log()).sum())

    assert mixed("shot_im") > mixed("tent") + 0.1
    assert mixed("shot_im") > float(textbook.entropy(mean_logits(net, x)).item())


def mean_logits(net: nn.Module, x: Tensor) -> Tensor:
    """Logits of the unadapted model's mean prediction."""
    return textbook.bn_adapt(net, [x]).logits[0].softmax(-1).mean(0, keepdim=True).log()


def test_defaults_and_presets() -> None:
    assert vars(cretta.adapt(golden.net(), "shot").options).items() >= {"pseudo": 0.3, "threshold": 0.9}.items()
    for name in ("shot", "shot_im"):
        model = cretta.adapt(golden.net(), name)
        group = golden.default_optimizer(model)
        assert group["kind"] is optimizers.Adam
        assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-3, (0.9, 0.999), 0.0)
        rates = {p: cretta.adapt(golden.net(), name, preset=p).options.lr for p in model.presets}
        assert rates == {"cifar10": 1e-3, "cifar100": 1e-4, "tiny-imagenet": 1e-5}


@pytest.mark.parametrize(
    "options", [{"pseudo": -0.1}, {"pseudo": math.inf}, {"threshold": 1.0}, {"threshold": -1.0}], ids=str
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=rf"{next(iter(options))}=.*expected"):
        cretta.adapt(golden.net(), "shot", **options)
