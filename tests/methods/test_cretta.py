from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta.errors import BatchError, ModelError, OptionError

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
DOUBLE = torch.float64


def buffer_of(count: int = 8) -> cretta.SourceBuffer:
    return cretta.SourceBuffer(textbook.source_images(count), augment="none")


def run_both(
    options: Mapping[str, Any],
    *,
    buffer: int = 20,
    sizes: Sequence[int] = (8, 8, 8, 8, 8),
    dtype: torch.dtype = DOUBLE,
    device: str = "cpu",
) -> tuple[textbook.Run, list[Tensor], cretta.CreTTA]:
    net = textbook.small_net(dtype=dtype).to(device)
    images = textbook.source_images(buffer, dtype=dtype).to(device)
    stream = [x.to(device) for x in textbook.batches(sizes, dtype=dtype)]
    expected = textbook.cretta(net, stream, images, **options)
    model = cretta.CreTTA(net, cretta.SourceBuffer(images, augment="none"), **options)
    return expected, [model(x) for x in stream], model


def assert_same(expected: textbook.Run, got: Sequence[Tensor], model: cretta.CreTTA, tolerance: float = 1e-8) -> None:
    assert len(got) == len(expected.logits) > 0
    for one, other in zip(got, expected.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    mine, theirs = dict(model.model.module.named_parameters()), dict(expected.model.named_parameters())
    assert mine.keys() == theirs.keys()
    for name, parameter in theirs.items():
        torch.testing.assert_close(mine[name].data, parameter.data, rtol=tolerance, atol=tolerance, msg=name)


# Against the textbook.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=["float32", "float64"])
@pytest.mark.parametrize("predict", ["after", "before"])
@pytest.mark.parametrize("reference", ["running", "batch"])
def test_equals_the_textbook(reference: str, predict: str, dtype: torch.dtype, device: str) -> None:
    expected, got, model = run_both({"reference": reference, "predict": predict}, dtype=dtype, device=device)
    assert_same(expected, got, model, 1e-8 if dtype == DOUBLE else 1e-5)


VARIANTS: dict[str, dict[str, Any]] = {
    "cartesian": {"pairs": "cartesian"},
    "cartesian, batch reference": {"pairs": "cartesian", "reference": "batch"},
    "pairwise": {"objective": "pairwise"},
    "pairwise, cartesian": {"objective": "pairwise", "pairs": "cartesian", "beta": 0.3},
    "target": {"objective": "target"},
    "nce_residual": {"objective": "nce_residual"},
    "nce_residual, batch reference": {"objective": "nce_residual", "reference": "batch"},
    "nce": {"objective": "nce"},
    "nce, batch reference": {"objective": "nce", "reference": "batch"},
    "source from target": {"source": "target"},
    "source from target, batch reference": {"source": "target", "reference": "batch"},
    "source from target, cartesian": {"source": "target", "pairs": "cartesian"},
    "source from target, pairwise": {"source": "target", "objective": "pairwise"},
    "source from target, nce": {"source": "target", "objective": "nce"},
    "beta": {"beta": 2.5},
    "contrast": {"contrast": 0.3},
    "contrast, cartesian, batch reference": {"contrast": 0.6, "pairs": "cartesian", "reference": "batch", "beta": 2.0},
    "contrast, source from target": {"contrast": 0.5, "source": "target"},
    "no contrast": {"contrast": 0.0, "beta": 2.0},
    "temperature": {"temperature": 2.5},
    "temperature and beta": {"temperature": 0.5, "beta": 0.4, "predict": "before"},
    "uniform": {"weighting": "uniform", "seed": 11},
    "uniform, cartesian, beta": {"weighting": "uniform", "pairs": "cartesian", "beta": 3.0},
    "uniform, pairwise": {"weighting": "uniform", "objective": "pairwise"},
    "sgd": {"optimizer": "sgd", "momentum": 0.9},
    "sgd without momentum": {"optimizer": "sgd", "momentum": 0.0},
    "sgd, nesterov": {"optimizer": "sgd", "momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    "adam, weight decay": {"weight_decay": 0.1},
    "adam, momentum": {"momentum": 0.3},
    "three steps, after": {"steps": 3},
    "three steps, before": {"steps": 3, "predict": "before"},
    "three steps, batch reference": {"steps": 3, "reference": "batch"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_equals_the_textbook(name: str) -> None:
    options = {"lr": 1e-2, **VARIANTS[name]}
    expected, got, model = run_both(options)
    assert_same(expected, got, model)


@pytest.mark.parametrize("buffer", [1, 3, 8, 13, 21, 100])
@pytest.mark.parametrize("reference", ["running", "batch"])
def test_buffers_smaller_and_larger_than_the_batch(buffer: int, reference: str) -> None:
    """Batches of uneven sizes: the buffer goes on where the last batch left it, over its end and round."""
    options = {"lr": 1e-2, "reference": reference}
    expected, got, model = run_both(options, buffer=buffer, sizes=(8, 5, 8, 3, 7))
    assert_same(expected, got, model)
    assert int(model.memory["cursor"]) == (8 + 5 + 8 + 3 + 7) % buffer


@pytest.mark.slow
def test_the_variants_are_different_things() -> None:
    """A comparison with the textbook proves little where an option changes nothing."""
    net, stream, runs = textbook.small_net(), textbook.batches(), {}
    ways = {"paper": {}, "batch reference": {"reference": "batch"}, "before": {"predict": "before"}, **VARIANTS}
    for name, options in [*ways.items(), ("small buffer", {})]:
        model = cretta.CreTTA(net, buffer_of(3 if name == "small buffer" else 20), **{"lr": 1e-2, **options})
        runs[name] = [model(x) for x in stream][-1]
    for (one, a), (other, b) in itertools.combinations(runs.items(), 2):
        assert (a - b).abs().max() > 1e-4, f"{one!r} and {other!r} give the same logits"


def test_what_the_last_batch_did_equals_the_textbook() -> None:
    for options in (
        {},
        {"reference": "batch", "beta": 2.0},
        {"weighting": "uniform"},
        {"objective": "pairwise"},
        {"temperature": 2.5},
    ):
        net, images = textbook.small_net(dtype=DOUBLE), textbook.source_images(20, dtype=DOUBLE)
        stream = textbook.batches(dtype=DOUBLE)
        expected = textbook.cretta(net, stream, images, **options)
        model = cretta.CreTTA(net, cretta.SourceBuffer(images, augment="none"), **options)
        for k, x in enumerate(stream):
            logits = model(x)
            assert model.last.adapted
            assert not model.last.skipped
            assert model.last.reason == ""
            assert model.last.size == len(x)
            assert model.last.loss == pytest.approx(expected.losses[k], rel=1e-8)
            assert model.last.weight == pytest.approx(expected.weights[k], rel=1e-8)
            assert model.last.source_energy == pytest.approx(expected.source_energies[k], rel=1e-8)
            assert model.last.energy == pytest.approx(
                textbook.energy(logits, model.options.temperature).mean().item(), rel=1e-8
            )


def test_objectives_without_a_weight_report_none() -> None:
    for objective in ("target", "nce", "nce_residual"):
        assert run_both({"objective": objective}, sizes=(4,))[2].last.weight is None


# What the paper's numbers imply.


def first_batch(**options: Any) -> cretta.CreTTA:
    return run_both(options, sizes=(8,), dtype=torch.float32)[2]


def test_with_theta_equal_to_phi_the_weight_is_a_half() -> None:
    """l = 0 for every pair, so w = σ(0) = 0.5, to the last bit, and the loss ln 2."""
    model = first_batch(reference="batch")
    assert model.last.weight == 0.5
    assert model.last.loss == pytest.approx(math.log(2), rel=1e-6)
    assert first_batch(reference="batch", pairs="cartesian", beta=3.0, temperature=2.0).last.weight == 0.5
    assert first_batch(reference="batch", source="target").last.weight == 0.5


def test_with_running_statistics_in_phi_it_is_not() -> None:
    weight = first_batch(reference="running").last.weight
    assert weight is not None
    assert abs(weight - 0.5) > 1e-2


def test_uniform_weights_lie_in_zero_one_and_differ_from_batch_to_batch() -> None:
    net, images = textbook.small_net(), textbook.source_images(20)
    model = cretta.CreTTA(net, cretta.SourceBuffer(images, augment="none"), weighting="uniform", pairs="cartesian")
    means = []
    for x in textbook.batches((16, 16, 16)):
        model(x)
        means.append(model.last.weight)
    assert len(set(means)) == 3
    assert all(mean is not None and 0.4 < mean < 0.6 for mean in means)


def test_the_target_gains_on_the_source() -> None:
    """The direction of learning: relative to φ, target energies fall below source energies."""
    net, images, x = textbook.small_net(), textbook.source_images(8), textbook.batches((8,))[0]
    model = cretta.CreTTA(net, cretta.SourceBuffer(images, augment="none"), lr=1e-2)

    def logit() -> float:
        phi = net.eval()
        with torch.no_grad():
            learned = cretta.energy(model.model(x)).mean() - cretta.energy(model.model.source(images)).mean()
            known = cretta.energy(phi(x)).mean() - cretta.energy(phi(images)).mean()
        return float(known - learned)

    before, losses = logit(), []
    for _ in range(20):
        model(x)
        losses.append(model.last.loss)
    assert logit() > before + 0.3
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < 0.8 * losses[0]


def test_source_and_target_pass_apart_each_with_its_own_statistics() -> None:
    """The target's logits are the same whatever the buffer holds."""
    net, x = textbook.small_net(), textbook.batches((8,))[0]
    for images in (textbook.source_images(20), 1 - 2 * textbook.source_images(20)):
        model = cretta.CreTTA(net, cretta.SourceBuffer(images, augment="none"), predict="before")
        torch.testing.assert_close(model(x), textbook.bn_adapt(net, [x]).logits[0], rtol=1e-5, atol=1e-5)


# The reference energies that are kept.


def counted(buffer: cretta.SourceBuffer, batches: int, size: int = 8, **options: Any) -> list[list[tuple[int, bool]]]:
    """For each batch, the samples that pass, in whichever copy, and whether with gradients."""
    seen: list[tuple[int, bool]] = []

    def hook(head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not textbook.in_verification():
            seen.append((len(inputs[0]), torch.is_grad_enabled()))

    net = textbook.small_net()
    net.fc.register_forward_pre_hook(hook)
    model = cretta.CreTTA(net, buffer, **options)
    found = []
    for x in textbook.batches((size,) * batches):
        seen.clear()
        model(x)
        found.append(list(seen))
    return found


def test_reference_energies_of_the_source_are_computed_once() -> None:
    """Afterwards a batch costs three forwards of θ, two with gradients, and one of φ, without."""
    buffer = cretta.SourceBuffer(textbook.source_images(16), augment="none")
    for reference in ("running", "batch"):
        rounds = counted(buffer, 4, reference=reference)
        for later in rounds[2:]:
            assert sorted(later) == [(8, False), (8, False), (8, True), (8, True)]
    assert len(counted(buffer, 1)[0]) == 5  # φ on the source too
    assert len(counted(buffer, 3, objective="target")[2]) == 2
    assert len(counted(buffer, 3, objective="pairwise")[2]) == 3
    assert len(counted(buffer, 3, predict="before")[2]) == 3


def test_the_augmentation_option_overrides_the_buffers_own() -> None:
    images = torch.rand(8, 3, textbook.SIDE, textbook.SIDE, generator=torch.Generator().manual_seed(0))
    buffer = cretta.SourceBuffer(images, augment="rotate")
    net, x = textbook.small_net(), images.flip(0) ** 2
    plain = cretta.CreTTA(net, cretta.SourceBuffer(images, augment="none"))(x)
    turned = cretta.CreTTA(net, buffer)(x)
    assert torch.equal(cretta.CreTTA(net, buffer, augment="none")(x), plain)
    assert not torch.allclose(turned, plain, atol=1e-6)
    assert buffer.augment == "rotate"


# Options and presets.

PAPER = {
    # Printed settings: lr, β, augmentation.
    "cifar10": (1e-3, 1.0, "rotate"),
    "cifar100": (2e-3, 2.0, "cifar100"),
    "tiny-imagenet": (1e-3, 2.0, "none"),
    "imagenet": (2.5e-4, 1.0, "none"),
    "pacs": (1e-3, 1.0, "cifar100"),
}


def test_presets_have_the_papers_values() -> None:
    assert set(cretta.CreTTA.presets) == {*PAPER, "fast"}
    for name, (lr, beta, augment) in PAPER.items():
        options = cretta.CreTTA(textbook.small_net(), buffer_of(), preset=name).options
        assert (options.lr, options.beta, options.augment) == (lr, beta, augment)
        assert (options.optimizer, options.steps, options.temperature) == ("adam", 1, 1.0)
        assert (options.reference, options.predict or "after", options.pairs) == ("running", "after", "one_to_one")
        assert (options.source_fraction, options.lean, options.adapt_every) == (1.0, False, 1)


def test_the_fast_preset_takes_fewer_source_samples_and_no_second_look() -> None:
    plain = cretta.CreTTA(textbook.small_net(), buffer_of()).options
    fast = cretta.CreTTA(textbook.small_net(), buffer_of(), preset="fast").options
    assert fast == dataclasses.replace(plain, source_fraction=0.2, predict="before")
    buffer = cretta.SourceBuffer(textbook.source_images(16), augment="none")
    parts = [(52, False), (54, False), (54, False)]
    assert sorted(counted(buffer, 3, 160, preset="fast")[-1]) == [(32, True), *parts, (160, True)]


@pytest.mark.parametrize("without", [{"source": "target"}, {"objective": "target"}])
@pytest.mark.parametrize("given", [{"lean": True}, {"source_fraction": 0.5}, {"preset": "fast"}])
def test_options_of_the_buffers_samples_need_a_buffer(without: dict[str, Any], given: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"lean=.* and source_fraction=.* Leave them out"):
        cretta.adapt(textbook.small_net(), "cretta", **without, **given)


def test_keywords_override_a_preset() -> None:
    model = cretta.adapt(textbook.small_net(), "cretta", buffer=buffer_of(), preset="cifar100", lr=5e-4)
    assert model.options.lr == 5e-4
    assert model.options.beta == 2.0


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"'cifar1000'.*mean 'cifar100'.*cifar10, cifar100, fast, imagenet, pacs"):
        cretta.CreTTA(textbook.small_net(), buffer_of(), preset="cifar1000")


def test_without_a_buffer_it_says_how_to_get_one() -> None:
    with pytest.raises(OptionError, match=r"SourceBuffer\.sample.*source='target'"):
        cretta.CreTTA(textbook.small_net())
    with pytest.raises(OptionError, match=r"SourceBuffer\.sample"):
        cretta.adapt(textbook.small_net(), "cretta")


@pytest.mark.parametrize("options", [{"source": "target"}, {"objective": "target"}, {"contrast": 0.0}])
def test_what_needs_no_buffer_runs_without(options: dict[str, Any]) -> None:
    net, x = textbook.small_net(), textbook.batches((8,))[0]
    model = cretta.CreTTA(net, **options)
    torch.testing.assert_close(model(x), textbook.cretta(net, [x], x, **options).logits[0], rtol=1e-5, atol=1e-5)
    assert model.last.adapted


def test_a_tensor_is_not_a_buffer() -> None:
    """The likeliest slip: images passed as they are. It must not wait for the first batch to be found."""
    with pytest.raises(OptionError, match="SourceBuffer"):
        cretta.CreTTA(textbook.small_net(), textbook.source_images(8))  # type: ignore[arg-type]


def test_a_buffer_of_other_images_is_refused_and_nothing_changes() -> None:
    model = cretta.CreTTA(textbook.small_net(), cretta.SourceBuffer(torch.rand(8, 1, 8, 8), augment="none"))
    before = model.state.snapshot()
    with pytest.raises(BatchError, match=r"\(1, 8, 8\).*\(3, 8, 8\)"):
        model(textbook.batches((8,))[0])
    textbook.assert_bits(model.state.snapshot(), before)


@pytest.mark.parametrize("options", [{"objective": "pairwise"}, {"objective": "nce"}, {"weighting": "uniform"}])
def test_the_weight_of_source_samples_needs_the_residual_objective(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"contrast=0.5 .*objective='residual' with weighting='adaptive'"):
        cretta.CreTTA(textbook.small_net(), buffer_of(), contrast=0.5, **options)


def test_without_contrast_the_descent_ends() -> None:
    """The energy falls by a number of nats that w allows; plain descent of the energy does not end."""
    net, x = textbook.small_net(), textbook.batches((8,))[0]
    falls = {}
    ways: dict[str, dict[str, Any]] = {"no contrast": {"contrast": 0.0, "beta": 4.0}, "plain": {"objective": "target"}}
    for name, options in ways.items():
        model = cretta.CreTTA(net, lr=0.03, reference="batch", **options)
        energies = [cretta.energy(model(x)).mean().item() for _ in range(200)]
        falls[name] = energies[99] - energies[199]
        if name == "no contrast":
            assert model.last.weight is not None
            assert model.last.weight < 1e-3
            assert model.last.source_energy is None
    assert 0 < 20 * falls["no contrast"] < falls["plain"]


def test_uniform_weights_need_a_contrast() -> None:
    with pytest.raises(OptionError, match=r"objective='nce'.*'residual' or 'pairwise'"):
        cretta.CreTTA(textbook.small_net(), buffer_of(), weighting="uniform", objective="nce")


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("beta", 0, "above 0"),
        ("beta", -1.0, "above 0"),
        ("beta", float("nan"), "finite"),
        ("contrast", -0.1, "at least 0"),
        ("contrast", 1.5, "at most 1"),
        ("temperature", 0.0, "above 0"),
        ("reference", "eval", "'running', 'batch'"),
        ("pairs", "all", "'one_to_one', 'cartesian'"),
        ("objective", "mle", "'residual', 'pairwise', 'target', 'nce_residual', 'nce'"),
        ("weighting", 0.5, "'adaptive', 'uniform'"),
        ("source", "test", "'buffer', 'target'"),
        ("augment", "flip", "'none', 'rotate', 'cifar100'"),
        ("predict", "during", "'before', 'after'"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(option: str, value: object, allowed: str) -> None:
    with pytest.raises(OptionError) as caught:
        cretta.CreTTA(textbook.small_net(), buffer_of(), **{option: value})  # type: ignore[arg-type]
    assert f"{option}={value!r}" in str(caught.value)
    assert allowed in str(caught.value)


def test_a_network_without_running_statistics_is_pointed_to_the_batch_reference() -> None:
    """φ is asked for training's statistics, and there are none; the remedy is reference='batch'."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(4 * 36, 3)
    )
    x = textbook.batches((8,))[0]
    with pytest.raises(ModelError, match="reference='batch'"):
        cretta.CreTTA(net, buffer_of())(x)
    model = cretta.CreTTA(net, buffer_of(), reference="batch")
    assert torch.isfinite(model(x)).all()
    assert model.last.adapted


def test_the_signature_shows_the_options() -> None:
    parameters = inspect.signature(cretta.CreTTA).parameters
    assert list(parameters)[:3] == ["net", "buffer", "preset"]
    shown = {name: p.default for name, p in parameters.items()}
    assert shown["buffer"] is None
    assert shown["preset"] is None
    expected = {
        "lr": 1e-3,
        "optimizer": "adam",
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 0.0,
        "steps": 1,
        "adapt_every": 1,
        "episodic": False,
        "statistics": None,
        "batch_weight": 0.1,
        "predict": None,
        "skip": (),
        "channels_last": True,
        "fuse": True,
        "compile": None,
        "precision": "full",
        "guard": None,
        "calibrate": None,
        "calibrate_every": 10,
        "reset_every": 0,
        "busy": "wait",
        "seed": 0,
        "beta": 1.0,
        "contrast": 1.0,
        "temperature": 1.0,
        "reference": "running",
        "pairs": "one_to_one",
        "objective": "residual",
        "weighting": "adaptive",
        "source": "buffer",
        "source_fraction": 1.0,
        "lean": False,
        "augment": None,
    }
    assert {name: shown[name] for name in expected} == expected
    assert set(shown) == {"net", "buffer", "preset"} | set(expected)
    assert all(p.kind is p.KEYWORD_ONLY for name, p in parameters.items() if name not in ("net", "buffer"))


def test_by_name_and_by_class_are_the_same() -> None:
    net, x = textbook.small_net(), textbook.batches((8,))[0]
    by_class = cretta.CreTTA(net, buffer_of(), beta=2.0)
    by_name = cretta.adapt(net, "cretta", buffer=buffer_of(), beta=2.0)
    assert isinstance(by_name, cretta.CreTTA)
    assert torch.equal(by_class(x), by_name(x))


@pytest.mark.parametrize("kind", ["reference", "source"])
def test_one_sample(kind: str) -> None:
    """Half of one sample is still one sample; a buffer of one still pairs with all."""
    net, x = textbook.small_net(), textbook.batches((1,))[0]
    model = cretta.CreTTA(net, buffer_of(1), source="target" if kind == "source" else "buffer")
    assert torch.isfinite(model(x)).all()


@pytest.mark.parametrize("objective", ["residual", "pairwise", "target", "nce", "nce_residual"])
def test_a_one_class_batch_stays_finite(objective: str) -> None:
    x = textbook.batches((1,))[0].expand(8, -1, -1, -1) + 1e-3 * textbook.source_images(8)
    model = cretta.CreTTA(textbook.small_net(), buffer_of(), objective=objective, lr=1e-2)
    for _ in range(5):
        assert torch.isfinite(model(x)).all()
        assert model.last.adapted
