"""AEA against its formula: entropy, energies drawn to the low ones, logits drawn to those of their class."""

from __future__ import annotations

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
from cretta.errors import CrettaError, ModelError, OptionError


def textbook_aea(
    net: nn.Module,
    stream: Sequence[Tensor],
    *,
    weight: Tensor | None = None,
    lr: float = 1e-3,
    energy_weight: float = 1.0,
    similarity_weight: float = 25.0,
    threshold: float = 0.99,
    temperature: float = 1.0,
    momentum: float = 0.9,
    nesterov: bool = True,
    low_learns: bool = False,
    confidence_learns: bool = False,
    half: float = 0.5,
) -> list[golden.Step]:
    """``low_learns``, ``confidence_learns`` and ``half`` are there to be got wrong on purpose."""
    theta, parameters = golden.twin(net)
    W = net.get_parameter("fc.weight").detach() if weight is None else weight
    stepper = torch.optim.SGD(parameters, lr, momentum, nesterov=nesterov)
    run = []
    for x in stream:
        logits = theta(x)
        p = golden.probabilities(logits)
        energies = textbook.energy(logits, temperature)
        in_order = sorted(range(len(x)), key=energies.tolist().__getitem__)
        low = golden.mean([energies[i] for i in in_order[: math.ceil(half * len(x))]])
        if not low_learns:
            low = low.detach()
        loss = golden.mean([-(row * torch.log(row)).sum() for row in p])
        loss = loss + energy_weight * golden.mean([torch.log(1 + torch.exp(e - low)) for e in energies])
        similar = []
        for i in range(len(x)):
            label = int(p[i].argmax())
            confidence = p[i][label] if confidence_learns else p[i][label].detach()
            if confidence.item() < threshold:
                continue
            prototype = torch.stack([(W[label] * W[k]).sum() for k in range(len(W))])
            cosine = (logits[i] * prototype).sum() / ((logits[i] ** 2).sum().sqrt() * (prototype**2).sum().sqrt())
            similar.append(torch.exp(confidence - threshold) * (1 - cosine))
        if similar:
            loss = loss + similarity_weight * golden.mean(similar)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        run.append(golden.Step.of(theta, logits, loss, kept=len(similar)))
    return run


CASES: dict[str, tuple[float, dict[str, Any], list[str]]] = {
    "defaults, now and then": (1.0, {}, ["some", "none", "none", "none"]),
    "confident": (6.0, {}, ["some", "some", "some", "some"]),
    "all sure": (1.0, {"lr": 1e-2, "threshold": 0.0}, ["all", "all", "all", "all"]),
    "none sure": (0.2, {"lr": 1e-2}, ["none", "none", "none", "none"]),
    "another threshold": (1.0, {"lr": 1e-2, "threshold": 0.6}, ["some", "some", "some", "some"]),
    "other weights": (3.0, {"energy_weight": 3.0, "similarity_weight": 2.0}, ["some", "some", "some", "some"]),
    "entropy alone": (1.0, {"energy_weight": 0.0, "similarity_weight": 0.0}, ["some", "none", "none", "none"]),
    "no energies": (3.0, {"energy_weight": 0.0}, ["some", "some", "some", "some"]),
    "temperature": (3.0, {"temperature": 2.5}, ["some", "some", "some", "some"]),
    "without Nesterov": (3.0, {"nesterov": False}, ["some", "some", "some", "some"]),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_textbook(name: str) -> None:
    """A batch without a sure sample keeps the other terms."""
    confidence, options, kinds = CASES[name]
    net, stream = golden.net(confidence), golden.stream()
    expected = textbook_aea(net, stream, **options)
    assert golden.kinds(expected) == kinds
    golden.assert_run(cretta.adapt(net, "aea", **options), stream, expected)


def test_batches_of_odd_sizes() -> None:
    """The low half of five are three; of one, the one."""
    net, stream = golden.net(3.0), golden.stream((5, 7, 1, 3, 2))
    golden.assert_run(cretta.adapt(net, "aea", lr=1e-2), stream, textbook_aea(net, stream, lr=1e-2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"low_learns": True},
        {"confidence_learns": True},
        {"half": 0.4},  # of five: two
        {"half": 1.0},
        {"energy_weight": 0.9},
        {"similarity_weight": 24.0},
        {"threshold": 0.98},
    ],
    ids=str,
)
def test_the_comparison_sees_what_could_be_wrong(wrong: dict[str, Any]) -> None:
    net, stream = golden.net(3.0), golden.stream((5,))
    right, other = textbook_aea(net, stream)[0], textbook_aea(net, stream, **wrong)[0]
    assert right.kept > 0
    assert max((right.gradients[n] - other.gradients[n]).abs().max().item() for n in right.gradients) > 1e-4


def test_the_threshold_is_not_strict() -> None:
    """p_max ≥ τ."""
    net, x = golden.net(3.0), golden.stream((1,))[0]
    logits = cretta.adapt(net, "bn_adapt")(x)
    confidence = float(logits.softmax(-1).max())
    W = net.fc.weight.detach()
    cosine = torch.cosine_similarity(logits[0], (W @ W.T)[int(logits.argmax())], dim=0).item()
    values = []
    for threshold in (confidence, math.nextafter(confidence, 1.0)):
        model = cretta.adapt(net, "aea", threshold=threshold)
        model(x)
        values.append(model.last.loss)
    assert values[1] is not None
    assert values[0] == pytest.approx(values[1] + 25 * (1 - cosine), abs=1e-9)
    assert 1 - cosine > 1e-4


def test_equal_energies_cost_the_logarithm_of_two() -> None:
    """By hand: one sample is its own low half; softplus(0) = ln 2."""
    net, x = golden.net(), golden.stream((1,))[0]
    model = cretta.adapt(net, "aea", threshold=1.0)
    logits = model(x)
    assert model.last.loss == pytest.approx(float(textbook.entropy(logits)) + math.log(2))


def test_defaults() -> None:
    model = cretta.adapt(golden.net(), "aea")
    o = model.options
    assert (o.energy_weight, o.similarity_weight, o.threshold, o.classifier) == (1.0, 25.0, 0.99, None)
    group = golden.default_optimizer(model)
    assert group["kind"] is optimizers.SGD
    assert (group["lr"], group["momentum"], group["nesterov"], group["weight_decay"]) == (1e-3, 0.9, True, 0.0)


@pytest.mark.parametrize("optimizer", ["adam"])
def test_other_optimizers_have_no_nesterov_momentum(optimizer: str) -> None:
    model = cretta.adapt(golden.net(), "aea", optimizer=optimizer)
    model(golden.stream((8,))[0])
    assert model.last.adapted


# The classifier.


class Headed(textbook.SmallNet):
    """With a projection before the head, and what is made last is not what answers last."""

    def __init__(self, extra: int | None = None, convolution: bool = False) -> None:
        super().__init__()
        self.projection = nn.Linear(12, 12)
        self.head: nn.Module = nn.Conv2d(12, textbook.CLASSES, 1) if convolution else nn.Linear(12, textbook.CLASSES)
        del self.fc
        if extra is not None:
            self.auxiliary = nn.Linear(12, extra)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        x = self.projection(x.mean((2, 3)))
        if isinstance(self.head, nn.Conv2d):
            x = x[:, :, None, None]
        logits: Tensor = self.head(x)
        return logits.flatten(1)


def headed(**options: Any) -> Headed:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Headed(**options).to(golden.DOUBLE)
    net.projection.weight.data.mul_(6)
    net.head.get_parameter("weight").data.mul_(6)
    textbook.settle(net, textbook.source_images(48, dtype=golden.DOUBLE).split(8))
    return net


@pytest.mark.parametrize(
    ("made", "options"),
    [
        ({}, {}),
        ({}, {"classifier": "head"}),
        ({"extra": textbook.CLASSES}, {"classifier": "head"}),
        ({"extra": 7}, {"classifier": "head"}),
        ({"convolution": True}, {"classifier": "head"}),
    ],
    ids=str,
)
def test_the_classifier_is_the_last_linear_layer_or_the_one_named(
    made: dict[str, Any], options: dict[str, Any]
) -> None:
    net, stream = headed(**made), golden.stream()
    W = net.head.get_parameter("weight").detach().flatten(1)
    expected = textbook_aea(net, stream, weight=W, threshold=0.6)
    assert all(step.kept > 0 for step in expected)
    golden.assert_run(cretta.adapt(net, "aea", threshold=0.6, **options), stream, expected)


def test_which_layer_is_taken_matters() -> None:
    """The one named is the one used, be it the wrong one."""
    net, stream = headed(extra=textbook.CLASSES), golden.stream()
    other = net.auxiliary.weight.detach()
    expected = textbook_aea(net, stream, weight=other, threshold=0.6)
    golden.assert_run(cretta.adapt(net, "aea", threshold=0.6), stream, expected)
    golden.assert_run(cretta.adapt(net, "aea", threshold=0.6, classifier="auxiliary"), stream, expected)
    right = textbook_aea(net, stream, weight=net.head.get_parameter("weight").detach(), threshold=0.6)
    assert expected[0].loss is not None
    assert abs(expected[0].loss - (right[0].loss or 0)) > 1e-3


def test_a_network_without_a_linear_layer() -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, 8), nn.BatchNorm2d(5), nn.Flatten()).eval()
    with pytest.raises(ModelError, match=r"torch\.nn\.Linear.*classifier='head'"):
        cretta.adapt(net, "aea")
    assert cretta.adapt(net, "aea", classifier="0").options.classifier == "0"


@pytest.mark.parametrize("name", ["nothing", "bn1", "", "fc.weight"])
def test_a_name_that_is_no_linear_layer(name: str) -> None:
    with pytest.raises(OptionError, match=rf"classifier={name!r}: net has no linear layer or convolution"):
        cretta.adapt(golden.net(), "aea", classifier=name)


@pytest.mark.parametrize("threshold", [0.0, 1.0])
@pytest.mark.parametrize(
    ("extra", "options"), [(1, {}), (7, {}), (7, {"classifier": "auxiliary"}), (5, {"classifier": "projection"})]
)
def test_a_layer_that_does_not_make_the_logits_is_told_at_once(
    options: dict[str, Any], extra: int, threshold: float
) -> None:
    """Not by an error of torch, and not only when the first sure sample comes, far down the stream."""
    with pytest.raises(CrettaError, match="classifier"):
        cretta.adapt(headed(extra=extra), "aea", threshold=threshold, **options)(golden.stream((8,))[0])


# The rest.


def test_the_users_network_stays_as_it_is() -> None:
    net = golden.net(3.0)
    kept = golden.tensors(net)
    model = cretta.adapt(net, "aea", lr=1e-2)
    for x in golden.stream():
        model(x)
    textbook.assert_bits(golden.tensors(net), kept)
    moved = {n for n, p in model.model.module.named_parameters() if not torch.equal(p, kept[n])}
    assert moved == {"bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias"}


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    x, *rest = golden.stream((8, 8))
    model, undisturbed = (cretta.adapt(golden.touchy(golden.net(3.0)), "aea", lr=1e-2) for _ in range(2))
    assert torch.equal(model(x), undisturbed(x))
    golden.assert_skips(model, golden.touching(x), "not finite")
    assert torch.equal(model(rest[0]), undisturbed(rest[0]))


def test_reset_and_restore_are_bit_exact(tmp_path: Path) -> None:
    def make() -> golden.AnyAdapter:
        return cretta.adapt(golden.net(3.0), "aea", lr=1e-2)

    golden.reset_equals(make(), golden.stream())
    golden.resume_equals(make, golden.stream(), 2, tmp_path / "state.safetensors")


@pytest.mark.parametrize(
    "options",
    [{"energy_weight": -1.0}, {"similarity_weight": -1.0}, {"threshold": 1.1}, {"classifier": 3}],
    ids=str,
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=rf"{next(iter(options))}=.*expected"):
        cretta.adapt(golden.net(), "aea", **options)
