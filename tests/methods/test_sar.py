"""SAR against its formula: the gradient of the reliable samples' entropy at θ + ρ g/‖g‖, and recovery."""

from __future__ import annotations

import copy
import dataclasses
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

MARGIN = 0.4 * math.log(textbook.CLASSES)
FIRST, SECOND = "no sample is reliable", "no sample is reliable after the ascent"


@dataclasses.dataclass
class Ascent:
    """What happened on the way to a step."""

    first: list[int]
    second: list[int]
    newly: list[int]
    """Reliable after the ascent only: they must not count."""
    climbed: list[Tensor]
    second_loss: float | None = None
    average: float | None = None


def textbook_sar(
    net: nn.Module,
    stream: Sequence[Tensor],
    *,
    e: float = MARGIN,
    lr: float = 0.01,
    rho: float = 0.05,
    momentum: float = 0.9,
    decay: float = 0.9,
    reset_below: float = 0.2,
    ways: list[Ascent] | None = None,
) -> list[golden.Step]:
    theta, parameters = golden.twin(net)
    source = golden.values(parameters)
    stepper = torch.optim.SGD(parameters, lr, momentum)
    average: float | None = None
    run = []
    for x in stream:
        logits = theta(x)
        h = textbook.entropy(logits)
        first = [i for i in range(len(x)) if h[i].item() < e]
        way = Ascent(first, [], [], golden.values(parameters), average=average)
        loss = golden.mean([h[i] for i in first]) if first else None
        reset = False
        if loss is not None:
            gradients = torch.autograd.grad(loss, parameters)
            norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
            here = golden.values(parameters)
            for p, g in zip(parameters, gradients, strict=True):
                p.data = p.data + rho * g / (norm + 1e-12)
            way.climbed = golden.values(parameters)
            again = textbook.entropy(theta(x))
            way.second = [i for i in first if again[i].item() < e]
            way.newly = [i for i in range(len(x)) if i not in first and again[i].item() < e]
            if way.second:
                second = golden.mean([again[i] for i in way.second])
                slopes = torch.autograd.grad(second, parameters)
                way.second_loss = second.item()
            for p, value in zip(parameters, here, strict=True):
                p.data = value
            if way.second_loss is not None:
                for p, slope in zip(parameters, slopes, strict=True):
                    p.grad = slope
                stepper.step()
                new = way.second_loss
                average = new if average is None else decay * average + (1 - decay) * new
                way.average = average
                if average < reset_below:
                    reset, average = True, None
                    for p, value in zip(parameters, source, strict=True):
                        p.data = value.clone()
                    stepper = torch.optim.SGD(parameters, lr, momentum)
        if ways is not None:
            ways.append(way)
        done = loss if way.second else None
        run.append(golden.Step.of(theta, logits, done, kept=len(way.second), reset=reset))
    return run


def assert_run(model: golden.AnyAdapter, stream: Sequence[Tensor], options: dict[str, Any]) -> list[Ascent]:
    ways: list[Ascent] = []
    expected = textbook_sar(model.net, stream, ways=ways, **options)
    for x, step, way in zip(stream, expected, ways, strict=True):
        if step.loss is None:
            logits = golden.assert_skips(model, x, SECOND if way.first else FIRST)
            assert model.last.reason == (SECOND if way.first else FIRST)
        else:
            before = model.learnable.flat[0].clone()
            logits = model(x)
            assert model.last.loss == pytest.approx(step.loss, rel=golden.TOLERANCE, abs=golden.TOLERANCE)
            assert model.last.adapted == (not torch.equal(model.learnable.flat[0], before))
            assert model.last.adapted or step.reset
            assert ("reset" in model.last.reason) == step.reset
            assert step.reset or model.last.reason == ""
            golden.assert_gradients(model, step.gradients)
        golden.assert_logits(logits, step.logits)
        golden.assert_parameters(model, step.theta)
        if step.reset or way.average is None:
            assert model.memory == {}
        else:
            assert float(model.memory["loss"]) == pytest.approx(way.average, rel=golden.TOLERANCE)
    return ways


def made(net: nn.Module, **options: Any) -> golden.AnyAdapter:
    """SAR by the names that the textbook gives its options."""
    names = {"e": "entropy_margin", "rho": "radius"}
    return cretta.adapt(net, "sar", **{names.get(k, k): v for k, v in options.items()})


CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "defaults": (1.0, {}),
    "without recovery": (1.0, {"reset_below": 0.0}),
    "all reliable": (1.0, {"e": 10.0, "lr": 0.1}),
    "a far ascent": (1.0, {"rho": 2.0, "e": 0.9, "reset_below": 0.0}),
    "no ascent": (1.0, {"rho": 0.0, "reset_below": 0.0}),
    "larger steps": (1.0, {"lr": 0.3, "e": 1.2, "reset_below": 0.0}),
    "another momentum": (1.0, {"lr": 0.1, "e": 1.2, "momentum": 0.5}),
    "no momentum": (1.0, {"lr": 0.1, "e": 1.2, "momentum": 0.0}),
    "another decay": (1.0, {"decay": 0.5, "e": 1.2}),
    "nothing reliable": (0.2, {}),
    "now and then": (1.0, {"e": 0.15, "reset_below": 0.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_textbook(name: str) -> None:
    confidence, options = CASES[name]
    ways = assert_run(made(golden.net(confidence), **options), golden.stream((8, 8, 5, 8, 8)), options)
    kept = [len(way.second) for way in ways]
    if name == "all reliable":
        assert kept == [8, 8, 5, 8, 8]
    elif name == "nothing reliable":
        assert kept == [0] * 5
    elif name == "now and then":
        assert kept[0] > 0
        assert 0 in kept
    else:
        assert all(k > 0 for k in kept)
        assert any(k < 8 for k in kept)


def test_the_second_filter_is_over_the_samples_kept_first() -> None:
    """A far ascent after which some of the kept are reliable no more and others have become so."""
    net, stream = golden.net(), golden.stream((16, 16))
    for e in (0.5, 0.7, 0.9, 1.1, 1.3):
        ways: list[Ascent] = []
        textbook_sar(net, stream[:1], e=e, rho=3.0, ways=ways)
        if ways[0].newly and 0 < len(ways[0].second) < len(ways[0].first):
            break
    else:
        pytest.fail("no margin shows the difference")
    assert_run(made(net, e=e, rho=3.0), stream, {"e": e, "rho": 3.0})


def test_the_margin_is_strict() -> None:
    net, x = golden.net(), golden.stream((1,))[0]
    uncertainty = float(cretta.functional.entropy(cretta.adapt(net, "bn_adapt")(x)))
    model = made(net, e=uncertainty, rho=0.0)
    golden.assert_skips(model, x, FIRST)
    assert model.last.reason == FIRST
    golden.assert_skips(made(net, e=math.nextafter(uncertainty, math.inf)), x, SECOND)
    still = made(net, e=math.nextafter(uncertainty, math.inf), rho=0.0)
    still(x)
    assert still.last.adapted


# Where the parameters are.


@pytest.mark.parametrize("dtype", [torch.float32, golden.DOUBLE])
def test_the_two_passes_and_the_way_back(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """First at θ, then at θ + ρ g/‖g‖; the optimizer finds θ to the bit, which adding and subtracting would not."""
    net, stream = golden.net(dtype=dtype), golden.stream((8, 8), dtype)
    model = made(net, reset_below=0.0, lr=0.1)
    model(stream[0])
    ways: list[Ascent] = []
    textbook_sar(net, stream, ways=ways, reset_below=0.0, lr=0.1)
    names = [n for n, p in model.model.module.named_parameters() if p.requires_grad]
    learning = [model.model.module.get_parameter(n) for n in names]
    here = golden.values(learning)
    seen: list[list[Tensor]] = []
    found: list[list[Tensor]] = []
    head = model.model.module.get_submodule("fc")
    head.register_forward_pre_hook(lambda module, inputs: seen.append(golden.values(learning)))
    assert model.state.optimizer is not None
    with monkeypatch.context() as patch:
        patch.setattr(model.state.optimizer, "step", lambda: found.append(golden.values(learning)))
        model(stream[1])
    assert len(seen) == 2
    assert len(found) == 1
    for at, back, climbed, origin, expected in zip(seen[0], found[0], seen[1], here, ways[1].climbed, strict=True):
        assert torch.equal(at, origin)
        assert torch.equal(back, origin)
        tolerance = 1e-5 if dtype == torch.float32 else golden.TOLERANCE
        torch.testing.assert_close(climbed, expected, rtol=tolerance, atol=tolerance)
    moved = torch.cat([(c - o).flatten() for c, o in zip(seen[1], here, strict=True)])
    assert moved.norm().item() == pytest.approx(0.05, rel=1e-4), "ρ is the length over all parameters together"
    textbook.assert_bits(dict(zip(names, golden.values(learning), strict=True)), dict(zip(names, here, strict=True)))


def test_a_gradient_of_nothing_moves_nothing() -> None:
    """ρ g/(‖g‖ + 1e-12) with g = 0, as where the logits do not depend on γ and β."""

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = 0 * self.norm(x) + torch.tensor([3.0, 0.0, 0.0, 0.0])
            return logits

    net = Constant().eval()
    model = made(net, e=10.0, reset_below=0.0)
    model(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    assert (model.last.adapted, model.last.skipped) == (False, False)
    assert "the gradient is zero" in model.last.reason
    for name, parameter in model.model.module.named_parameters():
        assert torch.equal(parameter, net.get_parameter(name))


# Nothing to learn from.


def test_nothing_reliable_in_the_first_pass() -> None:
    net, stream = golden.net(), golden.stream((8, 8))
    model = made(net, e=1e-3)
    for x in stream:
        with golden.Passes(model) as passes:
            logits = golden.assert_skips(model, x, FIRST)
        assert model.last.reason == FIRST
        assert (passes.forwards, passes.backwards) == ([8], [])
        golden.assert_logits(logits, textbook.bn_adapt(net, [x]).logits[0])


@pytest.mark.parametrize("dtype", [torch.float32, golden.DOUBLE])
def test_nothing_reliable_after_the_ascent(dtype: torch.dtype) -> None:
    """The one sample just below the margin is pushed over it; the weights come back to the bit, moved as they were."""
    net, (x, y) = golden.net(dtype=dtype), golden.stream((8, 8), dtype)
    probe = made(net, reset_below=0.0)
    probe(x)
    least = float(cretta.functional.entropy(probe.predict(y)).min())
    model = made(net, reset_below=0.0)
    model(x)
    object.__setattr__(model.options, "entropy_margin", least * (1 + 1e-6))
    before = golden.everything(model)
    with golden.Passes(model) as passes:
        model(y)
    assert (passes.forwards, passes.backwards) == ([8, 8], [8])
    textbook.assert_bits(golden.everything(model), before)
    assert model.last.skipped
    assert not model.last.adapted
    assert model.last.reason == SECOND


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    x, *rest = golden.stream((8, 8))
    model, undisturbed = (made(golden.touchy(golden.net()), lr=0.1, e=10.0) for _ in range(2))
    assert torch.equal(model(x), undisturbed(x))
    golden.assert_skips(model, golden.touching(x), "not finite")
    assert torch.equal(model(rest[0]), undisturbed(rest[0]))


def test_a_second_gradient_that_is_not_finite_changes_nothing() -> None:
    """It is not a number in the second pass only."""
    passes: list[int] = []

    def touchy_later(head: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Any:
        if textbook.in_verification():
            return None
        passes.append(len(logits))
        return None if len(passes) % 2 else golden.NotANumber.apply(logits)  # type: ignore[no-untyped-call]

    net = golden.net()
    net.fc.register_forward_hook(touchy_later)
    golden.assert_skips(made(net, e=10.0), golden.stream((8,))[0], "not finite")
    assert passes == [8, 8]


@pytest.mark.parametrize("forward", [1, 2])
def test_a_failure_in_either_pass_leaves_the_weights(forward: int) -> None:
    x, y = golden.stream((8, 8))
    model, undisturbed = (made(textbook.failing(golden.net()), lr=0.1) for _ in range(2))
    assert torch.equal(model(x), undisturbed(x))
    before = golden.everything(model)
    with golden.failing_at(forward):
        model(y)
    textbook.assert_bits(golden.everything(model), before)
    assert torch.equal(model(y), undisturbed(y))
    textbook.assert_bits(golden.everything(model), golden.everything(undisturbed))


# Recovery.


def losses(net: nn.Module, x: Tensor, **options: Any) -> float:
    """The second loss of a batch that meets the source model."""
    ways: list[Ascent] = []
    textbook_sar(net, [x], ways=ways, reset_below=0.0, **options)
    assert ways[0].second_loss is not None
    return ways[0].second_loss


def test_a_collapsed_model_is_reset_by_default() -> None:
    """Model, optimizer and moving loss, to the bit; the batch is answered by the model that saw it."""
    net, x = golden.net(8.0), golden.stream((8,))[0]
    assert losses(net, x) < 0.2
    model = made(net)
    before = golden.everything(model)
    logits = model(x)
    golden.assert_logits(logits, textbook.bn_adapt(net, [x]).logits[0])
    textbook.assert_bits(golden.everything(model), before)
    assert "optimizer.0.momentum_buffer" not in model.state.snapshot()
    assert "reset to the source model" in model.last.reason
    assert not model.last.skipped
    model = made(net, reset_below=0.0)
    model(x)
    assert "optimizer.0.momentum_buffer" in model.state.snapshot()
    assert model.last.reason == ""


def by_loss(net: nn.Module) -> tuple[Tensor, Tensor, float]:
    """A batch with a low and one with a high second loss, and what lies between, nearer to the high one."""
    stream = sorted(golden.stream((8,) * 6), key=lambda x: losses(net, x, e=10.0))
    low, high = (losses(net, x, e=10.0) for x in (stream[0], stream[-1]))
    between = low + 0.6 * (high - low)
    assert 0.9 * low + 0.1 * high < between < high
    return stream[0], stream[-1], between


def test_a_reset_forgets_the_moving_loss() -> None:
    """The official code writes the old average back, so that a reset calls for the next, whatever the batch is like.

    Here the low batch resets; of the high ones after it none does, as the average starts again.
    """
    net = golden.net()
    low, high, between = by_loss(net)
    options = {"e": 10.0, "reset_below": between, "lr": 1e-3}
    model = made(net, **options)
    resets = []
    for x in (low, high, high, low, high):
        model(x)
        resets.append("reset" in model.last.reason)
    assert resets == [True, False, False, False, False]
    ways = assert_run(made(net, **options), [low, high, high, low, high], options)
    assert ways[1].average == pytest.approx(losses(net, high, e=10.0)), "the first loss is the average"


def test_resets_and_steps_equal_the_textbook_over_a_longer_run() -> None:
    net = golden.net()
    low, high, between = by_loss(net)
    stream = [high, *[low] * 4, high, low, low, high, low]
    options: dict[str, Any] = {"e": 10.0, "reset_below": between, "lr": 0.02, "decay": 0.8}
    resets = [step.reset for step in textbook_sar(net, stream, **options)]
    assert resets[:2] == [False, False], "the average comes down slowly"
    assert 1 < sum(resets) < len(stream) / 2
    assert_run(made(net, **options), stream, options)


def test_a_skipped_batch_leaves_the_moving_loss() -> None:
    net, x = golden.net(), golden.stream((8,))[0]
    model = made(net, reset_below=0.0)
    model(x)
    kept = float(model.memory["loss"])
    object.__setattr__(model.options, "entropy_margin", 1e-6)
    golden.assert_skips(model, x, FIRST)
    assert float(model.memory["loss"]) == kept


def test_a_reset_by_the_user_forgets_it_too() -> None:
    golden.reset_equals(made(golden.net(), lr=0.1, reset_below=0.0), golden.stream())


# The rest.


def test_the_ascent_is_no_part_of_the_streams_statistics() -> None:
    """A moving average follows the model that answers, not one displaced by ρ that nobody asked."""
    net, x = golden.net(), golden.stream((8,))[0]
    still, far = (
        cretta.adapt(net, "sar", statistics="moving", radius=rho, entropy_margin=10.0, lr=1e-9) for rho in (0.0, 0.5)
    )
    still(x)
    far(x)
    assert far.last.adapted
    one, other = ({n: t for n, t in m.state.snapshot().items() if "statistics" in n} for m in (still, far))
    assert len(one) == 4
    for name, value in one.items():
        golden.assert_close(other[name], value, name, 1e-6)


def test_defaults_and_presets() -> None:
    model = made(golden.net())
    o = model.options
    assert (o.lr, o.optimizer, o.momentum, o.nesterov) == (0.01, "sgd", 0.9, False)
    assert (o.radius, o.decay, o.reset_below, o.entropy_margin) == (0.05, 0.9, 0.2, None)
    group = golden.default_optimizer(model)
    assert group["kind"] is optimizers.SGD
    assert (group["lr"], group["momentum"], group["nesterov"], group["dampening"]) == (0.01, 0.9, False, 0)
    assert group["weight_decay"] == 0
    paper = cretta.adapt(golden.net(), "sar", preset="paper").options
    assert paper.entropy_margin == pytest.approx(0.4 * math.log(1000))
    assert paper.lr == 0.01
    rates = {p: cretta.methods.get("sar").presets[p]["lr"] for p in ("cifar100", "tiny-imagenet", "imagenet")}
    assert rates == {"cifar100": 1e-3, "tiny-imagenet": 1e-3, "imagenet": 2.5e-4}


@pytest.mark.parametrize(("preset", "e"), [("paper", 0.4 * math.log(1000)), ("tuned", MARGIN), (None, MARGIN)])
def test_the_margin_of_a_preset(preset: str | None, e: float) -> None:
    assert_run(cretta.adapt(golden.net(), "sar", preset=preset), golden.stream(), {"e": e})


def test_the_ends_of_networks_that_the_imagenet_presets_skip() -> None:
    def layers(names: Sequence[str]) -> nn.Module:
        net = nn.Module()
        for name in names:
            net.add_module(name, nn.Sequential(nn.LayerNorm(3)))
        return net

    resnet = cretta.adapt(layers(["layer1", "layer3", "layer4"]), "sar", preset="imagenet")
    assert {n.split(".")[0] for n in resnet.learnable.names} == {"layer1", "layer3"}
    vit = nn.Module()
    vit.add_module("blocks", nn.Sequential(*[nn.Sequential(nn.LayerNorm(3)) for _ in range(12)]))
    vit.add_module("norm", nn.LayerNorm(3))
    learning = cretta.adapt(vit, "sar", preset="imagenet_vit").learnable.names
    assert {n.rsplit(".", 2)[0] for n in learning} == {f"blocks.{k}" for k in range(9)}


def wrapped(net: nn.Module, *names: str) -> nn.Module:
    """``net`` inside modules of these names, the innermost first."""
    for name in names:
        outer = nn.Module()
        outer.add_module(name, net)
        net = outer
    return net


def vision_transformer(depth: int = 12) -> nn.Module:
    net = nn.Module()
    net.add_module("blocks", nn.Sequential(*[nn.Sequential(nn.LayerNorm(3)) for _ in range(depth)]))
    net.add_module("norm", nn.LayerNorm(3))
    return net


@pytest.mark.parametrize("names", [(), ("model",), ("module", "backbone")], ids=str)
def test_a_preset_skips_the_same_layers_of_a_wrapped_network(names: tuple[str, ...], tmp_path: Path) -> None:
    """Names are matched by whole components at any depth: ``layer40`` and ``my_layer4`` are others."""
    prefix = "".join(f"{name}." for name in reversed(names))
    net = nn.Module()
    for name in ("layer3", "layer4", "layer40", "my_layer4"):
        net.add_module(name, nn.Sequential(nn.Sequential(nn.LayerNorm(3))))
    model = cretta.adapt(wrapped(net, *names), "sar", preset="imagenet")
    assert model.skip == (f"{prefix}layer4",)
    assert {n[len(prefix) :].split(".")[0] for n in model.learnable.names} == {"layer3", "layer40", "my_layer4"}
    model.save(tmp_path / "state.safetensors")
    copy.deepcopy(model).restore(tmp_path / "state.safetensors")
    learning = cretta.adapt(wrapped(vision_transformer(), *names), "sar", preset="imagenet_vit").learnable.names
    assert {n[len(prefix) :].rsplit(".", 2)[0] for n in learning} == {f"blocks.{k}" for k in range(9)}


def test_names_of_a_preset_that_match_nothing_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"preset='imagenet' keeps layer4 from learning, and SmallNet has no layer"):
        model = cretta.adapt(golden.net(), "sar", preset="imagenet")
    assert set(model.learnable.names) == {"bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias"}
    with pytest.warns(UserWarning, match=r"keeps blocks\.10, blocks\.11 from learning") as caught:
        cretta.adapt(vision_transformer(10), "sar", preset="imagenet_vit")
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    cretta.adapt(golden.net(), "sar", preset="imagenet", skip=())  # whoever says so is not warned
    cretta.adapt(golden.net(), "sar", preset="imagenet", skip=("bn1",))
    with pytest.raises(OptionError, match="unknown layer in skip= 'bn'"):
        cretta.adapt(wrapped(golden.net(), "bn1"), "sar", preset="imagenet", skip=("bn",))


def test_layers_of_other_kinds_climb_too() -> None:
    """LayerNorm and GroupNorm: g and its norm run over all of them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.LayerNorm(144), nn.Linear(144, 5)
        ).to(golden.DOUBLE)
    x = golden.stream((8,))[0]
    model = made(net.eval(), e=10.0, reset_below=0.0, rho=0.3)
    seen: list[Tensor] = []
    flat = model.learnable.flat[0]
    model.predict(x)  # the trial of its network is over then
    model.model.module.get_submodule("5").register_forward_pre_hook(
        lambda module, inputs: seen.append(flat.detach().clone())
    )
    model(x)
    assert len(seen) == 2
    assert (seen[1] - seen[0]).norm().item() == pytest.approx(0.3)
    assert len(flat) == 2 * 4 + 2 * 144
    assert ((seen[1] - seen[0]) != 0).all()


def test_the_users_network_stays_as_it_is() -> None:
    net = golden.net()
    kept = golden.tensors(net)
    model = made(net, lr=0.1)
    for x in golden.stream():
        model(x)
    textbook.assert_bits(golden.tensors(net), kept)
    moved = {n for n, p in model.model.module.named_parameters() if not torch.equal(p, kept[n])}
    assert moved == {"bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias"}


@pytest.mark.parametrize("options", [{}, {"momentum": 0.0}, {"optimizer": "adam"}], ids=str)
def test_saving_and_restoring_is_bit_exact(options: dict[str, Any], tmp_path: Path) -> None:
    net = golden.net()
    golden.resume_equals(
        lambda: made(net, lr=0.1, reset_below=0.0, **options), golden.stream(), 2, tmp_path / "state.safetensors"
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_restored_moving_loss_is_where_the_model_is(tmp_path: Path) -> None:
    net, stream = golden.net().cuda(), [x.cuda() for x in golden.stream()]
    golden.resume_equals(lambda: made(net, reset_below=0.0), stream, 2, tmp_path / "state.safetensors")


@pytest.mark.parametrize(
    "options", [{"radius": -0.1}, {"decay": 1.0}, {"reset_below": -1.0}, {"entropy_margin": 0.0}], ids=str
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=rf"{next(iter(options))}=.*expected"):
        cretta.adapt(golden.net(), "sar", **options)
