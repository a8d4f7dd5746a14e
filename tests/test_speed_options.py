"""What makes adapters quicker or smaller must not change what they compute: against textbook steps and plain paths."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import cretta
import textbook
from cretta.errors import OptionError
from cretta.models import WideResNet
from step_memory import peak_memory

DOUBLE = torch.float64
LR = 5e-3
TEA: dict[str, Any] = {"sampling_steps": 3, "replay": 40, "lr": LR}
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def wide_net(dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = WideResNet(10, 1, 5).to(dtype)
    return textbook.settle(net, textbook.source_images(32, dtype=dtype).split(8))


def buffer_of(count: int = 20, dtype: torch.dtype = torch.float32) -> cretta.SourceBuffer:
    return cretta.SourceBuffer(textbook.source_images(count, dtype=dtype), augment="none")


def adapter(method: str, net: nn.Module | None = None, **options: Any) -> cretta.Adapter[Any]:
    return cretta.adapt(net or wide_net(), method, buffer=buffer_of(), **options)


def assert_near(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def assert_moved(logits: Sequence[Tensor], stream: Sequence[Tensor], by: float = 1e-2) -> None:
    """The steps matter: without them the last logits would be others."""
    still = textbook.bn_adapt(wide_net(), stream).logits
    assert (logits[-1] - still[-1]).abs().max() > by


def parameters(model: cretta.Adapter[Any]) -> list[Tensor]:
    return [flat.detach().clone() for flat in model.learnable.flat]


# Against textbook steps.

PLAINER: list[dict[str, Any]] = [{}, {"channels_last": False}, {"fuse": False}]


@pytest.mark.parametrize("options", PLAINER, ids=str)
def test_tent_is_the_textbooks(options: dict[str, Any]) -> None:
    stream = textbook.batches()
    model = adapter("tent", lr=LR, **options)
    logits = [model(x) for x in stream]
    assert_near(logits, textbook.tent(wide_net(), stream, lr=LR).logits, 1e-4)
    assert_moved(logits, stream)
    assert (model.backend.name == "plain") == (options.get("fuse") is False)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("options", PLAINER, ids=str)
def test_cretta_is_the_textbooks(options: dict[str, Any], lean: bool) -> None:
    stream = textbook.batches()
    model = adapter("cretta", lr=LR, lean=lean, **options)
    logits = [model(x) for x in stream]
    assert_near(logits, textbook.cretta(wide_net(), stream, textbook.source_images(20), lr=LR).logits, 1e-4)
    assert_moved(logits, stream)


def cretta_of_few(stream: Sequence[Tensor], images: Tensor, fraction: float) -> list[Tensor]:
    """CreTTA with fewer source samples than the batch has: target i is paired with source i modulo their number."""
    theta, phi = textbook.batch_statistics(wide_net()), wide_net()
    stepper = torch.optim.Adam(textbook.affine(theta), LR)
    position, logits = 0, []
    for x in stream:
        count = math.ceil(len(x) * fraction)
        source = torch.stack([images[(position + i) % len(images)] for i in range(count)])
        position += count
        target_energy, source_energy = textbook.energy(theta(x)), textbook.energy(theta(source))
        with torch.no_grad():
            known_target, known_source = textbook.energy(phi(x)), textbook.energy(phi(source))
        losses = []
        for i in range(len(x)):
            known, learned = known_target[i] - known_source[i % count], target_energy[i] - source_energy[i % count]
            losses.append(-torch.log(textbook.sigmoid(known - learned)))
        stepper.zero_grad()
        torch.stack(losses).mean().backward()
        stepper.step()
        with torch.no_grad():
            logits.append(theta(x))
    return logits


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("fraction", [0.5, 0.45])
def test_cretta_with_few_source_samples_is_a_slow_loops(fraction: float, lean: bool) -> None:
    stream = textbook.batches((40,) * 5)
    model = adapter("cretta", lr=LR, source_fraction=fraction, lean=lean)
    logits = [model(x) for x in stream]
    assert_near(logits, cretta_of_few(stream, textbook.source_images(20), fraction), 1e-4)
    assert_moved(logits, stream)


def tea_of(stream: Sequence[Tensor], net: nn.Module, *, channels_last: bool) -> list[Tensor]:
    theta = textbook.batch_statistics(net)
    stepper = torch.optim.Adam(textbook.affine(theta), LR)
    generator = torch.Generator().manual_seed(0)
    kept = torch.empty(40, *stream[0].shape[1:], dtype=stream[0].dtype).uniform_(-1, 1, generator=generator)
    logits = []
    for x in stream:
        index = torch.randint(40, (len(x),), generator=generator)
        renewed = torch.rand(len(x), generator=generator) < 0.05
        fresh = torch.empty_like(x).uniform_(-1, 1, generator=generator)
        samples = torch.stack([fresh[i] if renewed[i] else kept[index[i]] for i in range(len(x))])
        if channels_last:
            samples = samples.contiguous(memory_format=torch.channels_last)
        for _ in range(3):
            samples = samples.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(-textbook.energy(theta(samples)).sum(), samples)
            noise = torch.empty_like(samples.detach()).normal_(generator=generator)
            samples = samples.detach() + 0.1 * slope + 0.01 * noise
        loss = textbook.energy(theta(x)).mean() - textbook.energy(theta(samples)).mean()
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        for i in range(len(x)):
            kept[index[i]] = samples[i]
        with torch.no_grad():
            logits.append(theta(x))
    return logits


@pytest.mark.parametrize("options", PLAINER, ids=str)
def test_tea_is_a_slow_loops(options: dict[str, Any]) -> None:
    stream = textbook.batches()
    model = adapter("tea", **TEA, **options)
    logits = [model(x) for x in stream]
    assert_near(logits, tea_of(stream, wide_net(), channels_last=options.get("channels_last", True)), 1e-4)
    assert_moved(logits, stream)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("sar", {"lr": 0.2, "entropy_margin": 1.7}),
        ("eata", {"lr": LR, "entropy_margin": 1.7, "redundancy_margin": 1.0}),
        ("pl", {"lr": LR, "threshold": 0.0}),
        ("shot", {"lr": 1e-3}),
        ("aea", {"lr": LR}),
    ],
)
def test_other_methods_do_not_know_of_the_rewriting(method: str, options: dict[str, Any]) -> None:
    stream = textbook.batches()
    logits = {}
    for fuse in (True, False):
        model = adapter(method, fuse=fuse, **options)
        logits[fuse] = [model(x) for x in stream]
        assert model.last.adapted
        assert (model.backend.name != "plain") == fuse
    assert_near(logits[True], logits[False], 1e-4)
    assert_moved(logits[True], stream, 1e-3)


# Lean.

OBJECTIVES: list[dict[str, Any]] = [
    {"objective": "residual"},
    {"objective": "residual", "pairs": "cartesian", "beta": 0.5},
    {"objective": "residual", "weighting": "uniform"},
    {"objective": "residual", "reference": "batch", "source_fraction": 0.4},
    {"objective": "residual", "steps": 2, "temperature": 2.0},
    {"objective": "pairwise"},
    {"objective": "nce"},
    {"objective": "nce_residual"},
]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (DOUBLE, 1e-10)], ids=["float32", "float64"])
@pytest.mark.parametrize("options", OBJECTIVES, ids=str)
def test_lean_computes_the_same(options: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    stream, models = textbook.batches(dtype=dtype), []
    for lean in (True, False):
        net = textbook.small_net(dtype=dtype)
        models.append(cretta.CreTTA(net, buffer_of(dtype=dtype), lean=lean, lr=LR, **options))
    for x in stream:
        assert_near([models[0](x)], [models[1](x)], tolerance)
        for name in ("loss", "weight", "source_energy", "energy"):
            one, other = models[0].last[name], models[1].last[name]
            assert (one is None) == (other is None) == (name == "weight" and "nce" in options["objective"])
            assert one is None or one == pytest.approx(other, rel=tolerance, abs=tolerance), name
    assert_near(parameters(models[0]), parameters(models[1]), tolerance)
    assert (parameters(models[0])[0] - models[0].source_parameters[0]).abs().max() > 1e-3


@pytest.mark.parametrize("statistics", ["mixture", "moving"])
def test_lean_keeps_to_the_statistics(statistics: str) -> None:
    stream, models = textbook.batches(dtype=DOUBLE), []
    for lean in (True, False):
        net = textbook.small_net(dtype=DOUBLE)
        models.append(cretta.CreTTA(net, buffer_of(dtype=DOUBLE), lean=lean, lr=LR, statistics=statistics))
    for x in stream:
        assert_near([models[0](x)], [models[1](x)], 1e-10)
    states = [model.state.snapshot() for model in models]
    assert_near([v.double() for v in states[0].values()], [v.double() for v in states[1].values()], 1e-10)


def test_lean_takes_less_memory() -> None:
    (x,) = textbook.batches((16,))
    lean, normal = (peak_memory(adapter("cretta", lean=lean), x) for lean in (True, False))
    assert lean < 0.75 * normal


def test_the_rewritten_network_takes_less_memory() -> None:
    (x,) = textbook.batches((16,))
    fused, plain = (peak_memory(adapter("tent", fuse=fuse), x) for fuse in (True, False))
    assert fused < 0.75 * plain


# One batch in so many.


@pytest.mark.parametrize("method", ["tent", "cretta", "tea"])
def test_one_batch_in_three_is_learned_from(method: str) -> None:
    options = {**(TEA if method == "tea" else {}), "lr": LR}
    model = cretta.adapt(textbook.small_net(), method, buffer=buffer_of(), adapt_every=3, **options)
    for k, x in enumerate(textbook.batches([8] * 8)):
        before, expected = parameters(model), model.predict(x)
        logits = model(x)
        moved = not torch.equal(parameters(model)[0], before[0])
        assert moved == (k % 3 == 0)
        assert model.last.adapted == moved
        assert not model.last.skipped
        assert bool(model.last.reason) != moved
        if not moved:
            assert torch.equal(logits, expected)


def test_the_batches_in_between_leave_the_buffer_alone() -> None:
    model = cretta.CreTTA(textbook.small_net(), buffer_of(), adapt_every=2)
    cursors = []
    for x in textbook.batches():
        model(x)
        cursors.append(int(model.memory["cursor"]))
    assert cursors == [8, 8, 16, 16, 4]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_counting_goes_on_where_it_was_saved(cut: int, tmp_path: Path) -> None:
    stream, path = textbook.batches([8] * 7), tmp_path / "state.safetensors"
    options: dict[str, Any] = {"adapt_every": 3, "lr": LR}
    whole = cretta.CreTTA(textbook.small_net(), buffer_of(), **options)
    expected = [whole(x) for x in stream]
    first = cretta.CreTTA(textbook.small_net(), buffer_of(), **options)
    for x in stream[:cut]:
        first(x)
    first.save(path)
    second = cretta.CreTTA(textbook.small_net(), buffer_of(), **options)
    second.restore(path)
    for x, logits in zip(stream[cut:], expected[cut:], strict=True):
        assert torch.equal(second(x), logits)
    textbook.assert_bits(second.state.snapshot(), whole.state.snapshot())


def test_a_reset_starts_counting_anew() -> None:
    model, stream = cretta.adapt(textbook.small_net(), "tent", adapt_every=3), textbook.batches()
    expected = [model(x) for x in stream]
    model.reset()
    textbook.assert_bits(model.state.snapshot(), model.initial)
    for x, logits in zip(stream, expected, strict=True):
        assert torch.equal(model(x), logits)


def test_a_reset_by_the_guard_starts_a_new_cycle() -> None:
    guard = cretta.Guard(action="reset", drift=1e-6, window=1)
    model = cretta.adapt(textbook.small_net(), "tent", adapt_every=3, predict="after", guard=guard)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cretta.CollapseWarning)
        for x in textbook.batches([8] * 2):
            model(x)
            assert "reset" in model.last.guard
            textbook.assert_bits(model.state.snapshot(), model.initial)


def test_a_batch_that_is_refused_does_not_count() -> None:
    model, (x,) = cretta.adapt(textbook.small_net(), "tent", adapt_every=2), textbook.batches((8,))
    adapted = []
    for _ in range(4):
        with pytest.raises(cretta.BatchError, match="NaN"):
            model(x * torch.nan)
        model(x)
        adapted.append(model.last.adapted)
    assert adapted == [True, False, True, False]


def test_a_batch_with_nothing_to_learn_from_counts_too() -> None:
    model = cretta.adapt(textbook.small_net(), "eta", adapt_every=3, entropy_margin=1e-9)
    skipped = []
    for x in textbook.batches([8] * 7):
        model(x)
        skipped.append(model.last.skipped)
    assert skipped == [True, False, False, True, False, False, True]


def test_batches_are_counted_though_each_is_an_episode() -> None:
    model = cretta.adapt(textbook.small_net(), "tent", adapt_every=3, episodic=True)
    adapted = []
    for x in textbook.batches([8] * 7):
        model(x)
        adapted.append(model.last.adapted)
    assert adapted == [True, False, False, True, False, False, True]


# Fewer source samples.


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25, 0.3, 0.01])
def test_as_many_source_samples_are_read_as_the_fraction_says(fraction: float) -> None:
    model = cretta.CreTTA(textbook.small_net(), buffer_of(200), source_fraction=fraction)
    read = 0
    for x in textbook.batches((80, 70, 30, 8)):
        model(x)
        read += math.ceil(len(x) * fraction)
        assert int(model.memory["cursor"]) == read


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01, math.nan, math.inf, "half", None])
def test_a_fraction_is_above_0_and_at_most_1(fraction: Any) -> None:
    with pytest.raises(OptionError, match="source_fraction"):
        cretta.CreTTA(textbook.small_net(), buffer_of(), source_fraction=fraction)


@pytest.mark.parametrize("every", [0, -1, 1.5, "often"])
def test_batches_are_counted_by_whole_numbers(every: Any) -> None:
    with pytest.raises(OptionError, match="adapt_every"):
        cretta.adapt(textbook.small_net(), "tent", adapt_every=every)


def test_the_preset_fast_is_its_options() -> None:
    stream = textbook.batches()
    by_name = cretta.CreTTA(textbook.small_net(), buffer_of(), preset="fast")
    by_hand = cretta.CreTTA(textbook.small_net(), buffer_of(), **dict(cretta.CreTTA.presets["fast"]))
    assert by_name.options == by_hand.options
    assert by_name.options.source_fraction < 1
    for x in stream:
        assert torch.equal(by_name(x), by_hand(x))
    textbook.assert_bits(by_name.state.snapshot(), by_hand.state.snapshot())


def test_presets_combine_and_the_later_wins() -> None:
    model = cretta.CreTTA(textbook.small_net(), buffer_of(), preset="cifar100+fast", lr=0.5)
    o = model.options
    assert (o.beta, o.augment, o.source_fraction, o.predict, o.lr) == (2.0, "cifar100", 0.2, "before", 0.5)
    assert cretta.CreTTA.preset_options("cifar100+cifar10")["beta"] == 1.0
    for wrong in ("cifar100+fats", "+fast", ""):
        with pytest.raises(OptionError, match="preset of cretta"):
            cretta.CreTTA(textbook.small_net(), buffer_of(), preset=wrong)


# How the network is run.


@pytest.mark.parametrize("first", [True, False])
def test_autocast_outside_decides_nothing(first: bool) -> None:
    """A trial in half precision would tell little; the next batch in full precision settles it."""
    model = cretta.adapt(textbook.small_net(), "tent")
    for x, mixed in zip(textbook.batches((8, 8)), (first, not first), strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            model(x)
    assert model.backend.name != "plain"


def test_large_finite_batches_are_learned_from() -> None:
    """Their sum overflows, they do not."""
    linear = nn.Linear(4, 3, bias=False)
    linear.weight.data.mul_(1e-38)
    net = nn.Sequential(nn.Flatten(), linear, nn.LayerNorm(3))
    x = torch.tensor([[2e38, 0, 0, 0], [2e38, 1e38, 0, 0], [0, 2e38, 1e38, 0]])
    assert not torch.isfinite(x.sum())
    model = cretta.adapt(net, "tent")
    model(x)
    assert model.last.adapted


def test_states_are_restored_whatever_the_default_type_is(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model, (x, y) = cretta.adapt(textbook.small_net(), "tent"), textbook.batches((8, 8))
        model(x)
        model.save(tmp_path / "state.safetensors")
        other = cretta.adapt(textbook.small_net(), "tent")
        other.restore(tmp_path / "state.safetensors")
        assert torch.equal(other(y), model(y))
    finally:
        torch.set_default_dtype(torch.float32)


# How often the host waits for the device.


class Reads(TorchDispatchMode):
    """Counts numbers read from tensors of floats or truth values."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.count += args[0].is_floating_point() or args[0].dtype == torch.bool
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("method", "options"),
    [("tent", {}), ("cretta", {}), ("cretta", {"lean": True}), ("cretta", {"source_fraction": 0.5}), ("tea", TEA)],
    ids=str,
)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_step_reads_the_device_once(method: str, options: dict[str, Any], optimizer: str) -> None:
    model = adapter(method, optimizer=optimizer, **options)
    for x in textbook.batches((8, 8)):
        model(x)
    (x,) = textbook.batches((8,))
    with Reads() as reads:
        model(x)
    assert model.last.adapted
    assert reads.count == 1


# Optimizers of one kernel.


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_saved_optimizers_go_on_bit_for_bit(optimizer: str, tmp_path: Path) -> None:
    stream, path = textbook.batches(), tmp_path / "state.safetensors"
    options: dict[str, Any] = {"optimizer": optimizer, "lr": LR, "momentum": 0.9, "weight_decay": 0.01}
    whole = cretta.adapt(textbook.small_net(), "tent", **options)
    expected = [whole(x) for x in stream]
    first = cretta.adapt(textbook.small_net(), "tent", **options)
    for x in stream[:2]:
        first(x)
    first.save(path)
    second = cretta.adapt(textbook.small_net(), "tent", **options)
    second.restore(path)
    textbook.assert_bits(second.state.snapshot(), first.state.snapshot())
    for x, logits in zip(stream[2:], expected[2:], strict=True):
        assert torch.equal(second(x), logits)
    textbook.assert_bits(second.state.snapshot(), whole.state.snapshot())


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_optimizers_of_one_kernel_are_the_textbooks(optimizer: str) -> None:
    stream = textbook.batches(dtype=DOUBLE)
    options: dict[str, Any] = {"optimizer": optimizer, "lr": LR, "momentum": 0.9, "weight_decay": 0.01}
    model = cretta.adapt(textbook.small_net(dtype=DOUBLE), "tent", **options)
    logits = [model(x) for x in stream]
    assert_near(logits, textbook.tent(textbook.small_net(dtype=DOUBLE), stream, **options).logits, 1e-8)


# Half precision and compiled networks.


@pytest.mark.parametrize("method", ["tent", "cretta"])
def test_half_precision_stays_near_and_learns_in_full(method: str) -> None:
    stream = textbook.batches()
    half, full = (adapter(method, precision=precision, lr=1e-3) for precision in ("bfloat16", "full"))
    for x in stream:
        one, other = half(x), full(x)
        assert one.dtype == torch.float32
        assert (one - other).abs().max() < 0.1 * other.abs().max()
        assert not torch.equal(one, other)
        assert half.last.adapted
    assert all(parameter.dtype == torch.float32 for parameter in half.model.module.parameters())
    assert not torch.equal(parameters(half)[0], half.source_parameters[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_images_under_autocast_are_learned_from(dtype: torch.dtype) -> None:
    """Their sum is beyond half precision; they are not."""
    (x,) = textbook.batches((64,))
    x = (x * 3 + 20).to(dtype)
    model = cretta.adapt(textbook.small_net(), "tent")
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
    assert model.last.adapted, model.last


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("method", ["tent", "cretta"])
def test_compiled_networks_compute_the_same(method: str) -> None:
    compiled, plain = (adapter(method, textbook.small_net(), compile=mode, lr=LR) for mode in ("default", None))
    for x in textbook.batches((8, 8)):
        assert_near([compiled(x)], [plain(x)], 1e-4)
    assert_near(parameters(compiled), parameters(plain), 1e-4)
