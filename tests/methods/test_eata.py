"""ETA and EATA against their formulas: exp(e - H) · H over the reliable and new, + α Σ F (θ - θ0)²."""

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
from cretta.errors import CrettaError, OptionError

NOTHING_KEPT = "no sample is both reliable and new"


def textbook_fisher(net: nn.Module, images: Tensor, size: int = 64) -> list[Tensor]:
    """Mean over batches of the squared gradient of the cross-entropy to the source model's own labels."""
    theta, parameters = golden.twin(net)
    total = [torch.zeros_like(p) for p in parameters]
    batches = [images[start : start + size] for start in range(0, len(images), size)]
    for batch in batches:
        p = golden.probabilities(theta(batch))
        loss = golden.mean([-torch.log(row[row.argmax()]) for row in p])
        for k, gradient in enumerate(torch.autograd.grad(loss, parameters)):
            total[k] += gradient**2
    return [square / len(batches) for square in total]


def textbook_eata(
    net: nn.Module,
    stream: Sequence[Tensor],
    *,
    e: float,
    d: float,
    lr: float = 1e-3,
    decay: float = 0.9,
    fisher: Sequence[Tensor] = (),
    alpha: float = 0.0,
    weights_learn: bool = False,
    averages: list[Tensor | None] | None = None,
) -> list[golden.Step]:
    """``weights_learn`` lets a gradient through exp(e - H), to be got wrong on purpose."""
    theta, parameters = golden.twin(net)
    source = golden.values(parameters)
    stepper = torch.optim.Adam(parameters, lr)
    average: Tensor | None = None
    run = []
    for x in stream:
        logits = theta(x)
        p = golden.probabilities(logits)
        terms, kept = [], []
        for row in p:
            h = -(row * torch.log(row)).sum()
            if not h.item() < e:
                continue
            if average is not None:
                cosine = float((row.detach() * average).sum() / (row.detach().norm() * average.norm()))
                if not abs(cosine) < d:
                    continue
            weight = torch.exp(e - h) if weights_learn else math.exp(e - h.item())
            terms.append(weight * h)
            kept.append(row.detach())
        loss: Tensor | None = None
        if kept:
            mean = golden.mean(kept)
            average = mean if average is None else decay * average + (1 - decay) * mean
            loss = golden.mean(terms)
            for f, now, origin in zip(fisher, parameters, source, strict=bool(fisher)):
                loss = loss + alpha * (f * (now - origin) ** 2).sum()
            stepper.zero_grad()
            loss.backward()
            stepper.step()
        if averages is not None:
            averages.append(average)
        run.append(golden.Step.of(theta, logits, loss, kept=len(kept)))
    return run


def assert_run(
    model: golden.AnyAdapter,
    stream: Sequence[Tensor],
    expected: Sequence[golden.Step],
    averages: Sequence[Tensor | None],
) -> None:
    for x, step, average in zip(stream, expected, averages, strict=True):
        if step.loss is None:
            logits = golden.assert_skips(model, x, NOTHING_KEPT)
            assert model.last.loss is None
        else:
            logits = model(x)
            golden.assert_adapted(model, step.loss)
            assert model.last["selected"] == step.kept
            golden.assert_gradients(model, step.gradients)
        golden.assert_logits(logits, step.logits)
        golden.assert_parameters(model, step.theta)
        if average is None:
            assert model.memory == {}
        else:
            golden.assert_logits(model.memory["average"], average)


def run_both(
    net: nn.Module, stream: Sequence[Tensor], options: dict[str, Any], kinds: Sequence[str] | None = None
) -> list[golden.Step]:
    e = options.pop("e", 0.4 * math.log(textbook.CLASSES))
    d = options.pop("d", 0.4)
    averages: list[Tensor | None] = []
    expected = textbook_eata(net, stream, e=e, d=d, averages=averages, **options)
    assert kinds is None or golden.kinds(expected) == list(kinds)
    model = cretta.adapt(net, "eta", entropy_margin=e, redundancy_margin=d, **options)
    assert_run(model, stream, expected, averages)
    return expected


CASES: dict[str, tuple[float, dict[str, Any], list[str]]] = {
    "both filters": (3.0, {"e": 0.6, "d": 0.7}, ["some", "some", "some", "some"]),
    "both filters, larger steps": (3.0, {"e": 0.6, "d": 0.7, "lr": 1e-2}, ["some", "some", "some", "some"]),
    "all kept": (1.0, {"e": 10.0, "d": 2.0, "lr": 1e-2}, ["all", "all", "all", "all"]),
    "all reliable, some new": (1.0, {"e": 10.0, "d": 0.7}, ["all", "some", "some", "some"]),
    "some reliable, all new": (1.0, {"e": 0.6, "d": 2.0}, ["some", "some", "some", "some"]),
    "nothing reliable": (1.0, {"e": 1e-3, "d": 2.0}, ["none", "none", "none", "none"]),
    "nothing new after the first": (1.0, {"e": 10.0, "d": 1e-9}, ["all", "none", "none", "none"]),
    "nothing, then something": (1.0, {"e": 0.03, "d": 2.0}, ["none", "some", "some", "none"]),
    "another decay": (3.0, {"e": 0.6, "d": 0.7, "decay": 0.3}, ["some", "some", "some", "some"]),
}


@pytest.mark.parametrize("name", CASES)
def test_eta_equals_the_textbook(name: str) -> None:
    """With the mean prediction after each batch; a batch of which nothing is kept leaves it, and all else, alone."""
    confidence, options, kinds = CASES[name]
    run_both(golden.net(confidence), golden.stream((16, 16, 16, 16)), dict(options), kinds)


def test_the_mean_prediction_waits_for_the_first_batch_that_keeps_something() -> None:
    net, stream = golden.net(), golden.stream((8, 8, 8, 8))
    uncertain = [x for x in stream if run_both(net, [x], {"e": 0.15, "d": 1e-9})[0].kept == 0]
    certain = [x for x in stream if run_both(net, [x], {"e": 0.15, "d": 1e-9})[0].kept > 0]
    run_both(net, [*uncertain, certain[0], certain[0]], {"e": 0.15, "d": 1e-9}, ["none", "none", "some", "none"])


def test_the_mean_prediction_by_hand() -> None:
    """0.9 of what it was, 0.1 of the mean of the kept."""
    net, (x, y) = golden.net(), golden.stream((8, 8))
    model = cretta.adapt(net, "eta", entropy_margin=10.0, redundancy_margin=0.7)
    first = model(x).softmax(-1).mean(0)
    torch.testing.assert_close(model.memory["average"], first)
    p = model(y).softmax(-1)
    cosines = torch.stack([(row @ first) / (row.norm() * first.norm()) for row in p])
    assert 0 < int((cosines < 0.7).sum()) < 8
    torch.testing.assert_close(model.memory["average"], 0.9 * first + 0.1 * p[cosines < 0.7].mean(0))
    assert not model.memory["average"].requires_grad


def test_the_weight_has_no_gradient() -> None:
    net, stream = golden.net(), golden.stream((8,))
    right = textbook_eata(net, stream, e=0.6, d=0.7)[0]
    wrong = textbook_eata(net, stream, e=0.6, d=0.7, weights_learn=True)[0]
    assert right.loss == wrong.loss
    model = cretta.adapt(net, "eta", entropy_margin=0.6, redundancy_margin=0.7)
    model(stream[0])
    golden.assert_gradients(model, right.gradients)
    assert max((right.gradients[n] - wrong.gradients[n]).abs().max().item() for n in right.gradients) > 1e-2


def test_the_entropy_margin_is_strict() -> None:
    net, x = golden.net(), golden.stream((1,))[0]
    uncertainty = float(cretta.functional.entropy(cretta.adapt(net, "bn_adapt")(x)))
    golden.assert_skips(cretta.adapt(net, "eta", entropy_margin=uncertainty), x, NOTHING_KEPT)
    above = cretta.adapt(net, "eta", entropy_margin=math.nextafter(uncertainty, math.inf))
    above(x)
    assert above.last.adapted
    assert above.last.loss == pytest.approx(uncertainty)  # exp(e - H) is 1


# Presets.


def plain_net(classes: int) -> nn.Module:
    """Logits are four times the normalized input."""
    linear = nn.Linear(classes, classes, bias=False)
    linear.weight.data = 4 * torch.eye(classes)
    return nn.Sequential(nn.BatchNorm1d(classes), linear).to(golden.DOUBLE).eval()


def class_stream(classes: int, batches: int = 4, size: int = 32) -> list[Tensor]:
    """Each sample of one class, with a share of another and noise; which classes come drifts slowly."""
    generator = torch.Generator().manual_seed(0)
    one, window, stream = torch.eye(classes, dtype=golden.DOUBLE), max(8, classes // 20), []
    for k in range(batches):
        label = (torch.randint(window, (size,), generator=generator) + k * window // 2) % classes
        other = torch.randint(classes, (size,), generator=generator)
        share = torch.rand(size, 1, generator=generator, dtype=golden.DOUBLE)
        noise = torch.randn(size, classes, generator=generator, dtype=golden.DOUBLE)
        stream.append(2 * (one[label] + share * one[other]) + 0.3 * noise)
    return stream


TUNED = {10: 0.4, 100: 0.1, 1000: 0.05}


@pytest.mark.parametrize("classes", TUNED)
@pytest.mark.parametrize("preset", ["tuned", None])
def test_tuned_margins_follow_the_number_of_classes(classes: int, preset: str | None) -> None:
    net, stream = plain_net(classes), class_stream(classes)
    e, averages = 0.4 * math.log(classes), list[Tensor | None]()
    expected = textbook_eata(net, stream, e=e, d=TUNED[classes], averages=averages)
    for d in {*TUNED.values()} - {TUNED[classes]}:
        kept = [[step.kept for step in run] for run in (expected, textbook_eata(net, stream, e=e, d=d))]
        assert kept[0] != kept[1], "the stream does not tell the margins apart"
    assert_run(cretta.adapt(net, "eta", preset=preset), stream, expected, averages)


@pytest.mark.parametrize("classes", TUNED)
def test_paper_margins_whatever_the_number_of_classes(classes: int) -> None:
    net, stream, averages = plain_net(classes), class_stream(classes), list[Tensor | None]()
    expected = textbook_eata(net, stream, e=0.4 * math.log(1000), d=0.05, averages=averages)
    assert_run(cretta.adapt(net, "eta", preset="paper"), stream, expected, averages)


def test_with_the_papers_margins_nearly_nothing_is_kept_on_ten_classes() -> None:
    """Why the paper's ETA equals BN-Adapt: after the first batch every confident sample counts as redundant."""
    net, stream = plain_net(10), class_stream(10, batches=30)
    kept: dict[str, list[int]] = {"paper": [], "tuned": []}
    for preset, counts in kept.items():
        model = cretta.adapt(net, "eta", preset=preset)
        for x in stream:
            model(x)
            counts.append(int(model.last["selected"] or 0))
    assert kept["paper"][0] == 32
    assert sum(kept["paper"][1:]) <= 0.01 * 29 * 32
    assert sum(kept["tuned"][1:]) > 0.5 * 29 * 32


def test_presets_and_defaults() -> None:
    images = textbook.source_images(4)
    for name in ("eta", "eata"):
        buffer = cretta.SourceBuffer(images, augment="none")
        paper = cretta.adapt(golden.net(), name, buffer=buffer, preset="paper").options
        assert paper.entropy_margin == pytest.approx(0.4 * math.log(1000))
        assert (paper.redundancy_margin, paper.decay, paper.lr) == (0.05, 0.9, 1e-3)
        imagenet = cretta.adapt(golden.net(), name, buffer=buffer, preset="imagenet").options
        assert (imagenet.lr, imagenet.optimizer, imagenet.momentum) == (2.5e-4, "sgd", 0.9)
        group = golden.default_optimizer(cretta.adapt(golden.net(), name, buffer=buffer))
        assert group["kind"] is optimizers.Adam
        assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-3, (0.9, 0.999), 0.0)
    o = {p: cretta.adapt(golden.net(), "eata", buffer=buffer, preset=p).options for p in ("paper", "tuned")}
    assert (o["paper"].fisher_weight, o["tuned"].fisher_weight) == (2000.0, 1.0)
    assert (o["paper"].fisher_samples, o["paper"].fisher_batch) == (2000, 64)


# EATA.

SOURCE = textbook.source_images(150, dtype=golden.DOUBLE)
"""Two batches of 64 and one of 22."""


def eata(net: nn.Module | None = None, images: Tensor = SOURCE, **options: Any) -> golden.AnyAdapter:
    buffer = cretta.SourceBuffer(images, augment="none")
    return cretta.adapt(net if net is not None else golden.net(3.0), "eata", buffer=buffer, **options)


EATA_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # options, and what they mean to the textbook's F
    "defaults": ({}, {}),
    "larger steps": ({"lr": 1e-2}, {}),
    "a small weight": ({"lr": 1e-2, "fisher_weight": 1.0}, {}),
    "a weight of nothing": ({"lr": 1e-2, "fisher_weight": 0.0}, {}),
    "fewer samples": ({"lr": 1e-2, "fisher_samples": 100}, {"images": SOURCE[:100]}),
    "smaller batches": ({"lr": 1e-2, "fisher_batch": 40}, {"size": 40}),
    "one batch": ({"lr": 1e-2, "fisher_batch": 1000}, {"size": 150}),
}


@pytest.mark.parametrize("name", EATA_CASES)
def test_eata_equals_the_textbook(name: str) -> None:
    options, how = EATA_CASES[name]
    net, stream = golden.net(3.0), golden.stream((16, 16, 16, 16))
    fisher = textbook_fisher(net, **{"images": SOURCE, **how})
    averages: list[Tensor | None] = []
    alpha = options.get("fisher_weight", 2000.0)
    known = {"e": 0.6, "d": 0.7, "lr": options.get("lr", 1e-3)}
    expected = textbook_eata(net, stream, fisher=fisher, alpha=alpha, averages=averages, **known)
    assert golden.kinds(expected) == ["some"] * 4
    assert_run(eata(net, entropy_margin=0.6, redundancy_margin=0.7, **options), stream, expected, averages)
    if alpha >= 1:
        without = textbook_eata(net, stream, **known)
        assert expected[0].loss == without[0].loss, "nothing has moved yet"
        assert max((s.loss or 0) - (w.loss or 0) for s, w in zip(expected, without, strict=True)) > 1e-5


@pytest.mark.parametrize("size", [64, 40, 150])
def test_the_fisher_information_depends_on_its_batches(size: int) -> None:
    """Otherwise the comparison above would not see the size of the batches, nor a mean that is a sum."""
    net = golden.net(3.0)
    right = torch.cat(textbook_fisher(net, SOURCE))
    other = torch.cat(textbook_fisher(net, SOURCE, size))
    assert size == 64 or (right - other).abs().max() > 1e-3 * right.max()


def test_more_samples_are_asked_for_than_the_buffer_has() -> None:
    """2000 are the default; each is used once."""
    net, x = golden.net(3.0), golden.stream((16,))[0]
    model, exact = eata(net), eata(net, fisher_samples=150)
    for _ in range(3):
        assert torch.equal(model(x), exact(x))
    textbook.assert_bits(golden.everything(model), golden.everything(exact))


def test_eata_keeps_nothing_and_pays_nothing() -> None:
    """The penalty alone is no reason for a step."""
    net, stream = golden.net(3.0), golden.stream((16, 16))
    model = eata(net, redundancy_margin=1e-9, lr=1e-2)
    model(stream[0])
    assert model.last.adapted
    golden.assert_skips(model, stream[1], NOTHING_KEPT)
    assert model.last.loss is None
    # The cross-entropy for the Fisher information, computed in the first batch, is not the loss of the objective.
    model = eata(net, entropy_margin=1e-9)
    golden.assert_skips(model, stream[0], NOTHING_KEPT)
    assert model.last.loss is None


def test_eata_holds_on_to_the_source() -> None:
    net, stream = golden.net(3.0), golden.stream((16,) * 6)
    moved = {}
    for weight in (0.0, 1e5):
        model = eata(net, entropy_margin=2.0, redundancy_margin=2.0, fisher_weight=weight, lr=1e-2)
        for x in stream:
            model(x)
        moved[weight] = sum(
            (p - net.get_parameter(n)).square().sum().item() for n, p in model.model.module.named_parameters()
        )
    assert moved[1e5] < 0.5 * moved[0.0]


@pytest.mark.parametrize("statistics", ["batch", "moving"])
def test_the_fisher_information_is_of_the_source_wherever_the_model_is(statistics: str, tmp_path: Path) -> None:
    """A fresh adapter first computes it after it has taken up parameters, and statistics, that had moved."""
    stream = golden.stream((16,) * 6)

    def make() -> golden.AnyAdapter:
        return eata(lr=1e-2, entropy_margin=0.9, redundancy_margin=0.9, statistics=statistics)

    straight = golden.resume_equals(make, stream, 3, tmp_path / "state.safetensors")
    assert straight.last.adapted
    golden.reset_equals(make(), stream)


def test_a_moving_average_does_not_see_the_source_samples() -> None:
    """ETA's average over the stream, to the bit, also when F is computed in between."""
    stream = golden.stream((16, 16))
    options: dict[str, Any] = {"statistics": "moving", "entropy_margin": 10.0, "redundancy_margin": 2.0}
    with_source, without = eata(**options), cretta.adapt(golden.net(3.0), "eta", **options)
    with_source(stream[0])
    without(stream[0])
    one, other = ({n: t for n, t in m.state.snapshot().items() if "statistics" in n} for m in (with_source, without))
    assert len(one) == 4
    textbook.assert_bits(one, other)


def test_computing_the_fisher_information_leaves_no_trace() -> None:
    """The first batch, which computes it, does to the model what ETA's does: no penalty yet, no gradient left over."""
    net, x = golden.net(3.0), golden.stream((16,))[0]
    model, plain = eata(net, lr=1e-2), cretta.adapt(net, "eta", lr=1e-2)
    assert torch.equal(model(x), plain(x))
    textbook.assert_bits(model.state.snapshot(), plain.state.snapshot())


def test_a_failure_while_the_fisher_information_is_computed(tmp_path: Path) -> None:
    """At any of its forwards, the model stays where it was, moved as it may be, and the batch can come again."""
    stream = golden.stream((16, 16, 16))
    net = textbook.failing(golden.net(3.0))
    options: dict[str, Any] = {"lr": 1e-2, "entropy_margin": 10.0, "redundancy_margin": 2.0}
    straight = eata(net, **options)
    expected = [straight(x) for x in stream]
    for forward in (1, 2, 3, 4):
        left = eata(net, **options)
        for x in stream[:2]:
            left(x)
        fresh = golden.saved_and_restored(left, eata(net, **options), tmp_path / "state.safetensors")
        before = golden.everything(fresh)
        with golden.failing_at(forward):
            fresh(stream[2])
        textbook.assert_bits(golden.everything(fresh), before)
        assert torch.equal(fresh(stream[2]), expected[2])


def test_a_last_batch_of_a_single_source_sample() -> None:
    """It has no statistics of its own in a network over vectors; that is no reason to refuse the target's batch."""
    model = eata(plain_net(10), torch.cat(class_stream(10, batches=3))[:65])
    model(class_stream(10)[0])
    assert model.last.adapted


@pytest.mark.parametrize("buffer", [None, SOURCE])
def test_a_missing_buffer(buffer: Any) -> None:
    message = (
        r"eata needs source samples.*SourceBuffer\.sample.*'eta'"
        if buffer is None
        else r"buffer is Tensor.*SourceBuffer"
    )
    with pytest.raises(OptionError, match=message):
        cretta.adapt(golden.net(), "eata", buffer=buffer)


def test_a_buffer_that_does_not_fit_changes_nothing() -> None:
    model = eata(images=torch.rand(10, 1, 8, 8, dtype=golden.DOUBLE))
    before = golden.everything(model)
    with pytest.raises(CrettaError, match="expected buffer and batch to hold samples of one shape"):
        model(golden.stream((8,))[0])
    textbook.assert_bits(golden.everything(model), before)


def test_the_users_network_stays_as_it_is() -> None:
    net = golden.net(3.0)
    kept = golden.tensors(net)
    model = eata(net, lr=1e-2, entropy_margin=10.0, redundancy_margin=2.0)
    for x in golden.stream():
        model(x)
    textbook.assert_bits(golden.tensors(net), kept)
    moved = {n for n, p in model.model.module.named_parameters() if not torch.equal(p, kept[n])}
    assert moved == {"bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias"}


@pytest.mark.parametrize("method", ["eta", "eata"])
def test_a_gradient_that_is_not_finite_changes_nothing(method: str) -> None:
    """Not even the mean prediction, which the batch would have moved."""
    x, *rest = golden.stream((8, 8))
    buffer = cretta.SourceBuffer(SOURCE, augment="none")
    model, undisturbed = (
        cretta.adapt(golden.touchy(golden.net()), method, buffer=buffer, entropy_margin=10.0, redundancy_margin=2.0)
        for _ in range(2)
    )
    assert torch.equal(model(x), undisturbed(x))
    golden.assert_skips(model, golden.touching(x), "not finite")
    assert torch.equal(model(rest[0]), undisturbed(rest[0]))


def test_eta_resets_and_restores_to_the_bit(tmp_path: Path) -> None:
    def make() -> golden.AnyAdapter:
        return cretta.adapt(golden.net(3.0), "eta", lr=1e-2, entropy_margin=0.6, redundancy_margin=0.7)

    golden.reset_equals(make(), golden.stream())
    golden.resume_equals(make, golden.stream(), 2, tmp_path / "state.safetensors")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_restored_mean_prediction_is_where_the_model_is(tmp_path: Path) -> None:
    stream = [x.cuda() for x in golden.stream((16, 16, 16))]
    net = copy.deepcopy(golden.net(3.0)).cuda()
    golden.resume_equals(lambda: cretta.adapt(net, "eta", preset="tuned"), stream, 1, tmp_path / "state.safetensors")


@pytest.mark.parametrize(
    "options",
    [
        {"entropy_margin": 0.0},
        {"redundancy_margin": -0.1},
        {"decay": 1.0},
        {"fisher_weight": -1.0},
        {"fisher_samples": 0},
        {"fisher_batch": 0},
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=rf"{next(iter(options))}=.*expected"):
        eata(**options)
