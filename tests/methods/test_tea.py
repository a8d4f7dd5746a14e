"""TEA against its formula, SGLD written as a slow loop with the same random numbers; and what every method costs."""

from __future__ import annotations

import dataclasses
import gc
import weakref
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
from cretta.errors import BatchError, OptionError, StateError

SMALL: dict[str, Any] = {"sampling_steps": 3, "replay": 40, "lr": 1e-2}
"""Enough to see everything, and quick."""


@dataclasses.dataclass
class Drawn:
    """What SGLD made for a batch."""

    index: list[int]
    renewed: list[bool]
    start: Tensor
    samples: Tensor
    replay: Tensor
    """The whole replay buffer after the batch."""


def textbook_tea(
    net: nn.Module,
    stream: Sequence[Tensor],
    *,
    sampling_steps: int = 20,
    step_size: float = 0.1,
    noise: float = 0.01,
    replay: int = 10_000,
    renewal: float = 0.05,
    temperature: float = 1.0,
    lr: float = 1e-3,
    channels_last: bool = True,
    seed: int = 0,
    moving: float | None = None,
    drawn: list[Drawn] | None = None,
) -> list[golden.Step]:
    """With ``moving`` statistics, that share of the batch's: the stream's average for it, training's for samples."""
    theta, parameters = golden.twin(net)
    average: golden.Statistics = {}
    if moving is not None:
        assert isinstance(net, textbook.SmallNet)
        average = golden.running(net)
    training = dict(average)

    def of_samples(images: Tensor) -> Tensor:
        return theta(images) if moving is None else golden.blended(theta, images, training, moving)[0]

    def of_batch(images: Tensor) -> tuple[Tensor, golden.Statistics]:
        return (theta(images), {}) if moving is None else golden.blended(theta, images, average, moving)

    stepper = torch.optim.Adam(parameters, lr)
    generator = torch.Generator().manual_seed(seed)
    kept: Tensor | None = None
    run = []
    for x in stream:
        if kept is None:
            kept = torch.empty(replay, *x.shape[1:], dtype=x.dtype).uniform_(-1, 1, generator=generator)
        index = torch.randint(replay, (len(x),), generator=generator).tolist()
        renewed = [u < renewal for u in torch.rand(len(x), generator=generator).tolist()]
        fresh = torch.empty(len(x), *x.shape[1:], dtype=x.dtype).uniform_(-1, 1, generator=generator)
        start = torch.stack([fresh[i] if renewed[i] else kept[index[i]] for i in range(len(x))])
        samples = start.contiguous(memory_format=torch.channels_last) if channels_last else start
        for _ in range(sampling_steps):
            samples = samples.detach().requires_grad_(True)
            logits = of_samples(samples)
            heights = [temperature * torch.log(torch.exp(row / temperature).sum()) for row in logits]
            total = heights[0]
            for height in heights[1:]:
                total = total + height
            (slope,) = torch.autograd.grad(total, [samples])
            drawn_noise = torch.empty_like(samples.detach()).normal_(generator=generator)
            samples = samples.detach() + step_size * slope + noise * drawn_noise
        fake = textbook.energy(of_samples(samples), temperature)
        real = textbook.energy(of_batch(x)[0], temperature)
        loss = (-fake).mean() - (-real).mean()  # of logsumexp: down on the samples, up on the batch
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        for i in range(len(x)):
            kept[index[i]] = samples[i]
        if drawn is not None:
            drawn.append(Drawn(index, renewed, start, samples, kept.clone()))
        with torch.no_grad():
            after, average = of_batch(x)
        run.append(golden.Step.of(theta, after, loss))
    return run


def assert_run(
    net: nn.Module, stream: Sequence[Tensor], options: dict[str, Any], tolerance: float = golden.TOLERANCE
) -> list[Drawn]:
    drawn: list[Drawn] = []
    expected = textbook_tea(net, stream, drawn=drawn, **options)
    model = cretta.adapt(net, "tea", **options)
    for x, step, made in zip(stream, expected, drawn, strict=True):
        logits = model(x)
        assert step.loss is not None
        golden.assert_adapted(model, step.loss)
        golden.assert_logits(logits, step.logits, tolerance)
        golden.assert_gradients(model, step.gradients, tolerance)
        golden.assert_parameters(model, step.theta, tolerance)
        golden.assert_logits(model.memory["samples"], made.replay, tolerance)
        assert model.memory.keys() == {"samples"}
    return drawn


CASES: dict[str, dict[str, Any]] = {
    "small": {},
    "plain layout": {"channels_last": False},
    "one step": {"sampling_steps": 1},
    "large steps": {"step_size": 2.0, "noise": 0.3},
    "no noise": {"noise": 0.0},
    "all drawn again": {"renewal": 1.0},
    "none drawn again": {"renewal": 0.0},
    "half drawn again": {"renewal": 0.5},
    "a replay smaller than the batch": {"replay": 3},
    "a replay of one": {"replay": 1},
    "temperature": {"temperature": 2.5},
    "seed": {"seed": 7},
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_textbook(name: str) -> None:
    """Loss, gradients, parameters, answers from after the update and the whole replay buffer, batch by batch."""
    assert_run(golden.net(), golden.stream((8, 5, 8)), {**SMALL, **CASES[name]})


def test_the_papers_settings_equal_the_textbook() -> None:
    """20 steps of 0.1 with noise 0.01, 10 000 images in [-1, 1), 5 % drawn again, Adam 1e-3: all by default."""
    drawn = assert_run(golden.net(), golden.stream((20, 20, 20)), {"seed": 1}, 1e-6)
    renewed = sum(sum(made.renewed) for made in drawn)
    assert 0 < renewed < 0.2 * 60, "the stream shows nothing of the renewal"


def test_the_cases_are_different_things() -> None:
    net, stream = golden.net(), golden.stream((8, 8))
    seen: list[Tensor] = []
    for name, options in CASES.items():
        if name in ("one step", "a replay of one"):  # these change the shape of what follows, not a term
            continue
        last = textbook_tea(net, stream, **{**SMALL, **options})[-1].logits
        assert all((last - other).abs().max() > 1e-6 for other in seen), name
        seen.append(last)


# The samples.


def test_the_start_is_uniform_and_only_drawn_entries_change() -> None:
    net, x = golden.net(), golden.stream((8,))[0]
    drawn: list[Drawn] = []
    textbook_tea(net, [x], drawn=drawn, **SMALL)
    model = cretta.adapt(net, "tea", **SMALL)
    model(x)
    samples = model.memory["samples"]
    assert samples.shape == (40, 3, 8, 8)
    assert samples.dtype == x.dtype
    first = torch.empty(40, 3, 8, 8, dtype=x.dtype).uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    rest = [k for k in range(40) if k not in drawn[0].index]
    assert torch.equal(samples[rest], first[rest])
    assert not any(torch.equal(samples[k], first[k]) for k in drawn[0].index)
    assert samples[rest].min() >= -1
    assert samples[rest].max() < 1
    assert abs(samples[rest].mean()) < 0.02
    assert samples[rest].var().item() == pytest.approx(1 / 3, rel=0.05)


@pytest.mark.parametrize("channels_last", [True, False])
def test_an_entry_drawn_twice_holds_one_of_its_samples_whole(channels_last: bool) -> None:
    """And every run the same one."""
    net, x = golden.net(), golden.stream((16,))[0]
    options = {**SMALL, "replay": 4, "channels_last": channels_last}
    drawn: list[Drawn] = []
    textbook_tea(net, [x], drawn=drawn, **options)
    assert len(set(drawn[0].index)) < 16
    kept = []
    for _ in range(3):
        model = cretta.adapt(net, "tea", **options)
        model(x)
        kept.append(model.memory["samples"])
    for entry in set(drawn[0].index):
        candidates = [drawn[0].samples[i] for i in range(16) if drawn[0].index[i] == entry]
        assert min(float((kept[0][entry] - c).abs().max()) for c in candidates) < golden.TOLERANCE
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[0], kept[2])


def test_an_entry_drawn_twice_is_the_same_however_many_threads_write() -> None:
    """200 draws from 10 000 nearly always hold a pair; whichever comes last in the batch stays."""
    net = nn.Sequential(nn.BatchNorm1d(2048), nn.Linear(2048, 3)).eval()
    x = torch.randn(256, 2048, generator=torch.Generator().manual_seed(0))
    threads, kept = torch.get_num_threads(), []
    torch.set_num_threads(4)
    try:
        for _ in range(12):
            model = cretta.adapt(net, "tea", sampling_steps=1, replay=2)
            model(x)
            kept.append(model.memory["samples"])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(kept[0], other) for other in kept)


def test_sgld_climbs() -> None:
    """Without noise and from one start, the samples' energy falls with the steps."""
    net, x = golden.net(), golden.stream((8,))[0]
    phi = textbook.batch_statistics(net)
    heights = []
    for steps in (1, 5, 20):
        drawn: list[Drawn] = []
        options = {**SMALL, "sampling_steps": steps, "noise": 0.0, "step_size": 1.0}
        textbook_tea(net, [x], drawn=drawn, **options)
        model = cretta.adapt(net, "tea", **options)
        model(x)
        samples = model.memory["samples"][drawn[0].index]
        heights.append(-textbook.energy(phi(samples).detach()).mean().item())
    assert heights == sorted(heights)
    assert heights[-1] > heights[0] + 0.1


def test_the_batchs_energy_falls_against_the_samples() -> None:
    """A step down the loss, judged by the source's and the stepped model's energies of the same images."""
    net, x = golden.net(), golden.stream((16,))[0]
    options = {**SMALL, "optimizer": "sgd", "lr": 1e-2}
    drawn: list[Drawn] = []
    textbook_tea(net, [x], drawn=drawn, **SMALL)
    model = cretta.adapt(net, "tea", **options)
    source = textbook.batch_statistics(net)

    def gap(theta: Any) -> float:
        with torch.no_grad():
            return float(textbook.energy(theta(x)).mean() - textbook.energy(theta(drawn[0].samples)).mean())

    before = gap(source)
    model(x)
    assert model.last.loss == pytest.approx(before)
    assert model.last.source_energy == pytest.approx(float(textbook.energy(source(drawn[0].samples).detach()).mean()))
    assert gap(model.model.module) < before - 1e-3


# The answer.


def test_the_answer_is_from_after_the_update() -> None:
    net, x = golden.net(), golden.stream((8,))[0]
    model = cretta.adapt(net, "tea", **SMALL)
    after = model(x)
    assert torch.equal(after, model.predict(x))
    before = cretta.adapt(net, "tea", predict="before", **SMALL)(x)
    golden.assert_logits(before, textbook.bn_adapt(net, [x]).logits[0])
    assert (after - before).abs().max() > 1e-3
    assert model.last.energy == pytest.approx(float(textbook.energy(after).mean()))


# Graphs and gradients.


def test_no_graph_outlives_the_batch() -> None:
    net, stream = golden.net(), golden.stream((8, 8))
    model = cretta.adapt(net, "tea", **{**SMALL, "sampling_steps": 6})
    outputs: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        alive.append(sum(reference() is not None for reference in outputs))
        if output.grad_fn is not None:
            outputs.append(weakref.ref(output))

    model.model.module.register_forward_hook(hook)
    for x in stream:
        answer = model(x)
        gc.collect()
        assert all(reference() is None for reference in outputs)
        assert answer.grad_fn is None
        assert not answer.requires_grad
        samples = model.memory["samples"]
        assert samples.grad_fn is None
        assert not samples.requires_grad
        assert samples.grad is None
        assert all(value.grad_fn is None and not value.requires_grad for value in model.last.values.values())
    assert max(alive) <= 2, "graphs of earlier SGLD steps are kept"
    stored = {name for name, value in vars(model).items() if isinstance(value, Tensor) and value.shape == x.shape}
    assert stored == {"_last_batch"}, "samples outlive the batch"


def test_sampling_gives_the_parameters_no_gradient() -> None:
    """While SGLD runs their .grad stays as it was; the step is by the loss's gradient alone."""
    net, stream = golden.net(), golden.stream((8, 8))
    model = cretta.adapt(net, "tea", **SMALL)
    model(stream[0])
    learning = [p for p in model.model.module.parameters() if p.requires_grad]
    left = [p.grad.clone() for p in learning if p.grad is not None]
    seen: list[bool] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        now = [p.grad for p in learning if p.grad is not None]
        seen.append(all(torch.equal(a, b) for a, b in zip(now, left, strict=True)))

    model.model.module.get_submodule("fc").register_forward_pre_hook(hook)
    model(stream[1])
    assert seen == [True] * 4 + [False] * 2, (
        "three of SGLD, one of the batch; then, that passed back, one of the samples; then, stepped, the answer"
    )
    expected = textbook_tea(net, stream, **SMALL)[-1]
    golden.assert_gradients(model, expected.gradients)


# Memory.


def test_reset_forgets_the_replay_buffer() -> None:
    """The official one keeps it, so that one shift leaks into the next."""
    model = cretta.adapt(golden.net(), "tea", **SMALL)
    golden.reset_equals(model, golden.stream())
    model.reset()
    assert model.memory == {}


@pytest.mark.parametrize("options", [{}, {"statistics": "moving"}], ids=str)
def test_saving_and_restoring_is_bit_exact(options: dict[str, Any], tmp_path: Path) -> None:
    net = golden.net()
    golden.resume_equals(
        lambda: cretta.adapt(net, "tea", **SMALL, **options), golden.stream(), 2, tmp_path / "state.safetensors"
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_restored_samples_are_where_the_model_is(tmp_path: Path) -> None:
    net, stream = golden.net().cuda(), [x.cuda() for x in golden.stream()]
    golden.resume_equals(lambda: cretta.adapt(net, "tea", **SMALL), stream, 2, tmp_path / "state.safetensors")


@pytest.mark.parametrize("replay", [10, 80])
def test_a_state_with_a_replay_buffer_of_another_size(replay: int, tmp_path: Path) -> None:
    """Refused, or taken up and gone on with; not an index out of range at the next batch."""
    net, x = golden.net(), golden.stream((64,))[0]
    model = cretta.adapt(net, "tea", **SMALL)
    model(x)
    model.save(tmp_path / "state.safetensors")
    other = cretta.adapt(net, "tea", **{**SMALL, "replay": replay})
    try:
        with pytest.warns(UserWarning, match="replay"):
            other.restore(tmp_path / "state.safetensors")
    except StateError:
        return
    other(x)
    assert other.last.adapted


def test_a_skipped_step_keeps_no_samples() -> None:
    """A batch whose gradient is not finite changes nothing, and the next is as if it had never come."""
    x, y, z = golden.stream((8, 8, 8))
    model, undisturbed = (cretta.adapt(golden.touchy(golden.net()), "tea", **SMALL) for _ in range(2))
    logits = golden.assert_skips(model, golden.touching(x), "not finite")  # first of all: there is no buffer yet
    golden.assert_logits(logits, textbook.bn_adapt(golden.net(), [golden.touching(x)]).logits[0])
    assert model.memory == {}
    assert torch.equal(model(y), undisturbed(y))
    golden.assert_skips(model, golden.touching(x), "not finite")
    assert torch.equal(model(z), undisturbed(z))
    textbook.assert_bits(golden.everything(model), golden.everything(undisturbed))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "second batch"])
def test_a_failure_at_any_forward_changes_nothing(first: bool, steps: int) -> None:
    """In SGLD, at the loss, in a second step or at the answer after the update; the batch can then come again."""
    x, y = golden.stream((8, 8))
    net = textbook.failing(golden.net())
    undisturbed = cretta.adapt(net, "tea", steps=steps, **SMALL)
    expected = [undisturbed(x), undisturbed(y)]
    for forward in range(1, 5 * steps + 2):
        model = cretta.adapt(net, "tea", steps=steps, **SMALL)
        batch, answer = (x, expected[0]) if first else (y, expected[1])
        if not first:
            model(x)
        before = golden.everything(model)
        with golden.failing_at(forward):
            model(batch)
        textbook.assert_bits(golden.everything(model), before)
        assert torch.equal(model(batch), answer), f"after a failure at forward {forward}"


def test_predicting_draws_nothing() -> None:
    x, y = golden.stream((8, 8))
    model, undisturbed = (cretta.adapt(golden.net(), "tea", **SMALL) for _ in range(2))
    model.predict(x)
    assert torch.equal(model(x), undisturbed(x))
    model.predict(y)
    assert torch.equal(model(y), undisturbed(y))


def test_the_global_generator_is_left_alone() -> None:
    x = golden.stream((8,))[0]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.random.get_rng_state()
        one = cretta.adapt(golden.net(), "tea", **SMALL)(x)
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.manual_seed(2)
        assert torch.equal(cretta.adapt(golden.net(), "tea", **SMALL)(x), one)
    assert not torch.equal(cretta.adapt(golden.net(), "tea", seed=1, **SMALL)(x), one)


def test_images_of_another_size_than_the_samples() -> None:
    """Said as such; nothing changes."""
    net = golden.net()
    model = cretta.adapt(net, "tea", **SMALL)
    model(golden.stream((8,))[0])
    before = golden.everything(model)
    with pytest.raises(BatchError, match=r"12, 12"):
        model(torch.zeros(8, 3, 12, 12, dtype=golden.DOUBLE))
    textbook.assert_bits(golden.everything(model), before)


# Statistics.


def test_moving_statistics_equal_the_textbook() -> None:
    """The samples are normalized with training's statistics and their own, whatever the stream has brought."""
    net, stream = golden.net(), golden.stream((8, 5, 8))
    expected = textbook_tea(net, stream, moving=0.3, **SMALL)
    model = cretta.adapt(net, "tea", statistics="moving", batch_weight=0.3, **SMALL)
    for x, step in zip(stream, expected, strict=True):
        logits = model(x)
        assert step.loss is not None
        golden.assert_adapted(model, step.loss)
        golden.assert_logits(logits, step.logits)
        golden.assert_parameters(model, step.theta)


def test_samples_are_no_part_of_the_stream() -> None:
    """Moving statistics: of the first layer they are known from the batches alone, as what lies before it is frozen."""
    net, stream = golden.net(), golden.stream((8, 5, 8))
    model = cretta.adapt(net, "tea", statistics="moving", batch_weight=0.2, **SMALL)
    mean, variance = golden.running(net)["bn1"]
    for x in stream:
        inner = net.conv1(x).detach().transpose(0, 1).flatten(1)
        mean = 0.8 * mean + 0.2 * inner.mean(1)
        variance = 0.8 * variance + 0.2 * inner.var(1, unbiased=False)
        model(x)
        state = model.state.snapshot()
        golden.assert_logits(state["statistics.mean.bn1"], mean)
        golden.assert_logits(state["statistics.variance.bn1"], variance)


def test_samples_and_batch_pass_apart() -> None:
    """SGLD sees the statistics of the samples alone: the batch does not touch them in the first step."""
    net, (x, y) = golden.net(), golden.stream((8, 8))
    kept = []
    for batch in (x, 3 * y):
        model = cretta.adapt(net, "tea", **SMALL)
        model(batch)
        kept.append(model.memory["samples"])
    assert torch.equal(*kept)


# The rest.


def test_vectors_instead_of_images() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)).to(golden.DOUBLE).eval()
    generator = torch.Generator().manual_seed(0)
    stream = [torch.randn(8, 6, generator=generator, dtype=golden.DOUBLE) for _ in range(3)]
    model = cretta.adapt(net, "tea", **SMALL)
    expected = textbook_tea(net, stream, channels_last=False, **SMALL)
    for x, step in zip(stream, expected, strict=True):
        golden.assert_logits(model(x), step.logits)


def test_defaults_and_presets() -> None:
    model = cretta.adapt(golden.net(), "tea")
    o = model.options
    assert (o.sampling_steps, o.step_size, o.noise, o.replay, o.renewal) == (20, 0.1, 0.01, 10_000, 0.05)
    group = golden.default_optimizer(model)
    assert group["kind"] is optimizers.Adam
    assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-3, (0.9, 0.999), 0.0)
    rates = {p: cretta.adapt(golden.net(), "tea", preset=p).options.lr for p in model.presets}
    assert rates == {"cifar10": 1e-3, "cifar100": 1e-5, "tiny-imagenet": 1e-4, "pacs": 1e-3}
    pacs = cretta.adapt(golden.net(), "tea", preset="pacs").options
    assert (pacs.sampling_steps, pacs.step_size) == (100, 0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"sampling_steps": 0},
        {"step_size": 0.0},
        {"noise": -0.1},
        {"replay": 0},
        {"renewal": 1.1},
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=rf"{next(iter(options))}=.*expected"):
        cretta.adapt(golden.net(), "tea", **options)
