from __future__ import annotations

import copy
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import cretta
import textbook
from cretta.errors import BatchError, BusyError, CrettaError, ModelError, OptionError, SkipStep, StateError
from cretta.method import Facts, Objective
from processes import ENVIRONMENT, LONG

AnyAdapter = cretta.Adapter[Any]
METHODS = ("cretta", "tent")
QUIET = cretta.Guard(action="warn", classes=1e-6, drift=1e6)
"""Watches, and finds nothing."""


def buffer_of(count: int = 20) -> cretta.SourceBuffer:
    return cretta.SourceBuffer(textbook.source_images(count), augment="none")


def adapted(method: str, net: nn.Module | None = None, **options: Any) -> AnyAdapter:
    buffer = options.pop("buffer", None) or buffer_of()
    return cretta.adapt(net if net is not None else textbook.small_net(), method, buffer=buffer, **options)


def everything(model: AnyAdapter) -> dict[str, Tensor]:
    """All that evolves, and all tensors of the adapting network besides."""
    found = model.state.snapshot()
    for name, tensor in [*model.model.module.named_parameters(), *model.model.module.named_buffers()]:
        found[f"module.{name}"] = tensor.detach().clone()
    if model._monitor is not None:
        found |= {f"watch.{name}": value.clone() for name, value in model._monitor.snapshot().items()}
    return found


def anatomy(net: nn.Module) -> dict[str, object]:
    """Everything about a network that an adapter must leave as it is, except its tensors' values."""
    return {
        "training": [module.training for module in net.modules()],
        "requires_grad": [parameter.requires_grad for parameter in net.parameters()],
        "grad": [None if parameter.grad is None else parameter.grad.clone() for parameter in net.parameters()],
        "pointers": [tensor.data_ptr() for tensor in [*net.parameters(), *net.buffers()]],
        "versions": [tensor._version for tensor in [*net.parameters(), *net.buffers()]],
        "hooks": [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in net.modules()],
        "tracking": [getattr(module, "track_running_stats", None) for module in net.modules()],
    }


def tensors(net: nn.Module) -> dict[str, Tensor]:
    return {n: t.detach().clone() for n, t in [*net.named_parameters(), *net.named_buffers()]}


# What moves and what does not.


class StochasticDepth(nn.Module):
    """Home-made: drops whole samples' branches while training."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * (torch.rand(len(x), 1, 1, 1) > 0.5)


class Sleepy(textbook.SmallNet):
    """With dropout, stochastic depth, and a buffer that counts its forwards."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.depth = StochasticDepth()
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(self.depth(x))))
        logits: Tensor = self.fc(nn.functional.dropout(self.dropout(x).mean((2, 3)), 0.5, self.training))
        return logits


def sleepy_net() -> Sleepy:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Sleepy()
        textbook.settle(net, textbook.source_images(32).split(8))
    return net


@pytest.mark.parametrize("method", METHODS)
def test_only_gamma_and_beta_move(method: str) -> None:
    net = textbook.small_net()
    model = adapted(method, net, lr=1e-2)
    for x in textbook.batches():
        model(x)
    original = tensors(net)
    mine = dict(model.model.module.named_parameters())
    for name, parameter in net.named_parameters():
        if name.startswith("bn"):
            assert not torch.equal(mine[name], original[name]), f"{name} did not move"
            assert mine[name].data_ptr() != parameter.data_ptr(), f"{name} is the user's own"
            assert mine[name].requires_grad
            assert mine[name].grad is not None
            assert torch.isfinite(mine[name]).all()
        else:
            assert torch.equal(mine[name], original[name]), f"{name} moved"
            assert mine[name].data_ptr() == parameter.data_ptr(), f"{name} was copied"
            assert not mine[name].requires_grad
            assert mine[name].grad is None, f"{name} has a gradient"
    assert not model.model.module.training


@pytest.mark.parametrize("method", METHODS)
def test_every_channel_of_gamma_and_beta_moves(method: str) -> None:
    net = textbook.small_net()
    model = adapted(method, net, lr=1e-2)
    for x in textbook.batches():
        model(x)
    original = tensors(net)
    for name, parameter in model.model.module.named_parameters():
        if name.startswith("bn"):
            assert ((parameter.detach() - original[name]).abs() > 1e-5).float().mean() > 0.9


@pytest.mark.parametrize("options", [{}, {"reference": "batch"}, {"statistics": "moving"}, {"statistics": "mixture"}])
def test_the_frozen_model_shares_all_its_parameters(options: dict[str, Any]) -> None:
    net = textbook.small_net()
    model = adapted("cretta", net, **options)
    model(textbook.batches((8,))[0])
    theirs = {name: parameter.data_ptr() for name, parameter in net.named_parameters()}
    assert model._frozen
    for frozen in model._frozen.values():
        assert {name: p.data_ptr() for name, p in frozen.module.named_parameters()} == theirs
        assert not any(p.requires_grad for p in frozen.module.parameters())
        assert all(p.grad is None for p in frozen.module.parameters())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("cretta", {}),
        ("cretta", {"reference": "batch", "statistics": "moving"}),
        ("cretta", {"statistics": "mixture", "guard": QUIET}),
        ("tent", {}),
        ("tent", {"statistics": "moving", "guard": QUIET}),
        ("bn_adapt", {}),
        ("source", {}),
    ],
)
def test_the_users_network_stays_as_it_is(method: str, options: dict[str, Any], training: bool) -> None:
    net = sleepy_net().train(training)
    net.conv1.weight.requires_grad_(False)
    net.fc.bias.grad = torch.ones(textbook.CLASSES)
    values, rest = tensors(net), anatomy(net)
    model = adapted(method, net, lr=1e-2, **options)
    for x in textbook.batches((4,) * 50):
        model(x)
    model.predict(x)
    model.reset()
    textbook.assert_bits(tensors(net), values)
    now = anatomy(net)
    for key in rest:
        if key == "grad":
            grads = zip(now[key], rest[key], strict=True)  # type: ignore[call-overload]
            assert all(a is b is None or torch.equal(a, b) for a, b in grads)
        else:
            assert now[key] == rest[key], key


@pytest.mark.parametrize("method", [*METHODS, "source", "bn_adapt"])
def test_dropout_and_stochastic_depth_stay_asleep(method: str) -> None:
    """A network in train mode and the same without anything random in it give the same numbers."""
    sleepy = sleepy_net().train()
    plain = textbook.small_net()
    plain.load_state_dict({n: t for n, t in sleepy.state_dict().items() if n != "calls"})
    one, other = adapted(method, sleepy), adapted(method, plain)
    for x in textbook.batches():
        assert torch.equal(one(x), other(x))
        assert torch.equal(one.predict(x), other.predict(x))


def test_tied_norm_parameters_stay_tied() -> None:
    class Tied(textbook.SmallNet):
        def __init__(self) -> None:
            super().__init__()
            self.bn3 = nn.BatchNorm2d(12)
            self.bn3.weight, self.bn3.bias = self.bn2.weight, self.bn2.bias

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.bn1(self.conv1(x)))
            x = torch.relu(self.bn3(self.bn2(self.conv2(x))))
            logits: Tensor = self.fc(x.mean((2, 3)))
            return logits

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Tied().double()
    textbook.settle(net, textbook.source_images(32, dtype=torch.float64).split(8))
    stream = textbook.batches(dtype=torch.float64)
    model = cretta.adapt(net, "tent", lr=1e-2, optimizer="sgd")
    theta = textbook.batch_statistics(net)
    textbook.affine(theta)
    stepper = torch.optim.SGD([p for p in theta.parameters() if p.requires_grad], 1e-2, 0.9)
    for x in stream:
        logits = theta(x)
        stepper.zero_grad()
        textbook.entropy(logits).mean().backward()
        stepper.step()
        torch.testing.assert_close(model(x), logits.detach(), rtol=1e-8, atol=1e-8)
    module = model.model.module
    assert module.get_parameter("bn3.weight") is module.get_parameter("bn2.weight")


def test_skip_keeps_layers_and_all_below_them() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
            self.layer10 = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
            self.norm = nn.BatchNorm2d(4)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.norm(self.layer10(self.layer1(x)).relu()).mean((2, 3)))
            return logits

    net = Two()
    for skip, kept in (
        (("layer1",), {"layer10.1", "norm"}),  # layer10 only begins alike
        ("layer10", {"layer1.1", "norm"}),
        (["layer1.1", "norm"], {"layer10.1"}),
    ):
        model = cretta.adapt(net, "tent", skip=skip, lr=1e-2)
        for x in textbook.batches((4, 4)):
            model(x)
        original = dict(net.named_parameters())
        moved = {n for n, p in model.model.module.named_parameters() if not torch.equal(p, original[n])}
        assert moved == {f"{layer}.{name}" for layer in kept for name in ("weight", "bias")}
    with pytest.raises(ModelError, match=r"outside \('layer1', 'layer10', 'norm'\)"):
        cretta.adapt(net, "tent", skip=("layer1", "layer10", "norm"))


# Reset and episodes.

EVOLVING: dict[str, tuple[str, dict[str, Any]]] = {
    "cretta": ("cretta", {}),
    "cretta, batch reference": ("cretta", {"reference": "batch", "steps": 2}),
    "cretta, uniform": ("cretta", {"weighting": "uniform"}),
    "cretta, moving": ("cretta", {"statistics": "moving"}),
    "cretta, moving, batch reference": ("cretta", {"statistics": "moving", "reference": "batch"}),
    "tent": ("tent", {}),
    "tent, sgd, moving, guard": ("tent", {"optimizer": "sgd", "statistics": "moving", "guard": QUIET}),
    "bn_adapt, moving": ("bn_adapt", {"statistics": "moving"}),
}


@pytest.mark.parametrize("name", EVOLVING)
def test_reset_is_bit_exact(name: str) -> None:
    method, options = EVOLVING[name]
    model = adapted(method, lr=1e-2, **options)
    first = everything(model)
    stream = textbook.batches()
    before = [model(x) for x in stream]
    later = everything(model)
    assert any(not torch.equal(later[n], first.get(n, torch.empty(0))) for n in later)
    model.reset()
    textbook.assert_bits(everything(model), first)
    after = [model(x) for x in stream]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    textbook.assert_bits(everything(model), later)


def test_everything_evolves_that_should() -> None:
    """Otherwise a reset that forgets something could not be seen."""
    model = adapted("cretta", lr=1e-2, weighting="uniform", statistics="moving", adapt_every=2)
    first = model.state.snapshot()
    for x in textbook.batches((8, 8, 7)):
        model(x)
    last = model.state.snapshot()
    assert {n for n in first if torch.equal(first[n], last[n])} == set()
    new = set(last) - set(first)
    assert new == {"optimizer.0.step", "optimizer.0.exp_avg", "optimizer.0.exp_avg_sq"}


def test_a_state_is_a_copy() -> None:
    model = adapted("cretta", lr=1e-2, statistics="moving")
    model(textbook.batches((8,))[0])
    state = model.state.snapshot()
    kept = {name: value.clone() for name, value in state.items()}
    model(textbook.batches((8,))[0])
    textbook.assert_bits(state, kept)
    for value in state.values():
        value.zero_()
    assert model.state.snapshot()["parameters.0"].abs().sum() > 0


@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd"}, {"statistics": "moving"}], ids=str)
def test_a_state_is_taken_up_as_a_copy_too(options: dict[str, Any]) -> None:
    """Optimisers write in place; what was loaded must be there to be loaded again."""
    model = adapted("cretta", lr=1e-2, **options)
    first, *rest = textbook.batches()
    model(first)
    state = model.state.snapshot()
    kept = {name: value.clone() for name, value in state.items()}
    for _ in range(2):
        model.state.restore(state)
        textbook.assert_bits(model.state.snapshot(), kept)
        for x in rest:
            model(x)
        textbook.assert_bits(state, kept)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("statistics", ["batch", "moving"])
def test_episodic_forgets_before_each_batch(method: str, statistics: str) -> None:
    net, stream = textbook.small_net(), textbook.batches()
    model = adapted(method, net, episodic=True, lr=1e-2, predict="after", statistics=statistics)
    fresh = [adapted(method, net, lr=1e-2, predict="after", statistics=statistics)(x) for x in stream]
    assert all(torch.equal(model(x), expected) for x, expected in zip(stream, fresh, strict=True))
    lasting = adapted(method, net, lr=1e-2, predict="after", statistics=statistics)
    assert not all(torch.equal(lasting(x), expected) for x, expected in zip(stream, fresh, strict=True))


# Saving, leaving, restoring.


def noisy(images: Tensor) -> Tensor:
    return images + torch.randn(images.shape, dtype=images.dtype)


RESUMED: dict[str, tuple[str, dict[str, Any]]] = {
    "adaptive": ("cretta", {}),
    "uniform": ("cretta", {"weighting": "uniform", "reference": "batch"}),
    "callable": ("cretta", {"buffer": "callable"}),
    "tent": ("tent", {}),
    "tent-sgd": ("tent", {"optimizer": "sgd", "steps": 2}),
}


def to_resume(name: str, statistics: str) -> AnyAdapter:
    method, options = RESUMED[name]
    options = dict(options)
    buffer = buffer_of(13)
    if options.pop("buffer", None):
        buffer = cretta.SourceBuffer(textbook.source_images(13), augment=noisy, seed=3)
    return adapted(method, buffer=buffer, lr=1e-2, statistics=statistics, guard=QUIET, **options)


def resume(folder: str) -> None:
    """Runs in a process of its own: takes up every saved state and goes on."""
    torch.set_num_threads(1)
    here = Path(folder)
    for name in RESUMED:
        for statistics in ("batch", "moving"):
            model = to_resume(name, statistics)
            model.restore(here / f"{name}-{statistics}-middle.safetensors")
            logits = {str(k): model(x) for k, x in enumerate(textbook.batches()[2:])}
            save_file(logits, here / f"{name}-{statistics}-resumed-logits.safetensors")
            model.save(here / f"{name}-{statistics}-resumed-end.safetensors")


def in_a_new_process(code: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def left_and_resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of run, undisturbed and, from its middle on, in a new process."""
    folder = tmp_path_factory.mktemp("states")
    for name in RESUMED:
        for statistics in ("batch", "moving"):
            model = to_resume(name, statistics)
            stream = textbook.batches()
            for x in stream[:2]:
                model(x)
            model.save(folder / f"{name}-{statistics}-middle.safetensors")
            logits = {str(k): model(x) for k, x in enumerate(stream[2:])}
            save_file(logits, folder / f"{name}-{statistics}-logits.safetensors")
            model.save(folder / f"{name}-{statistics}-end.safetensors")
    in_a_new_process("import sys, test_adapter; test_adapter.resume(sys.argv[1])", str(folder))
    return folder


@pytest.mark.process
@pytest.mark.parametrize("statistics", ["batch", "moving"])
@pytest.mark.parametrize("name", RESUMED)
def test_a_new_process_goes_on_bit_for_bit(left_and_resumed: Path, name: str, statistics: str) -> None:
    stem = left_and_resumed / f"{name}-{statistics}"
    textbook.assert_bits(load_file(f"{stem}-resumed-logits.safetensors"), load_file(f"{stem}-logits.safetensors"))
    end = load_file(f"{stem}-end.safetensors")
    textbook.assert_bits(load_file(f"{stem}-resumed-end.safetensors"), end)
    assert "parameters.0" in end
    assert "guard.batches" in end
    assert "guard.averages" in end


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", RESUMED)
def test_a_state_goes_back_to_the_gpu_it_came_from(name: str, tmp_path: Path) -> None:
    """Files hold CPU tensors: parameters, moments, averages, memory and the guard's must find their way."""
    path, stream = tmp_path / "state.safetensors", [x.cuda() for x in textbook.batches()]
    model, other = (
        cretta.adapt(
            textbook.small_net().cuda(),
            RESUMED[name][0],
            buffer=buffer_of(13),
            guard=QUIET,
            statistics="moving",
            **{k: v for k, v in RESUMED[name][1].items() if k != "buffer"},
        )
        for _ in range(2)
    )
    for x in stream[:2]:
        model(x)
    model.save(path)
    other.restore(path)
    for x in stream[2:]:
        torch.testing.assert_close(other(x), model(x), rtol=1e-5, atol=1e-5)
    devices = {n: v.device for n, v in model.state.snapshot().items()}
    assert {n: v.device for n, v in other.state.snapshot().items()} == devices


def test_restoring_twice_and_resetting_afterwards(tmp_path: Path) -> None:
    """A restored adapter resets to the source model, not to the restored state."""
    path, stream = tmp_path / "state.safetensors", textbook.batches()
    model = adapted("cretta", lr=1e-2)
    first = everything(model)
    model(stream[0])
    middle = everything(model)
    model.save(path)
    for _ in range(2):
        model(stream[1])
        model.restore(path)
        textbook.assert_bits(everything(model), middle)
    model.reset()
    textbook.assert_bits(everything(model), first)


def test_a_state_from_before_the_first_batch(tmp_path: Path) -> None:
    model = adapted("tent", lr=1e-2)
    first = everything(model)
    model.save(tmp_path / "state.safetensors")
    model(textbook.batches((8,))[0])
    model.restore(tmp_path / "state.safetensors")
    textbook.assert_bits(everything(model), first)


def test_saving_changes_nothing_and_overwrites(tmp_path: Path) -> None:
    model = adapted("cretta", lr=1e-2, guard=QUIET)
    for x in textbook.batches((8, 8)):
        model(x)
        before = everything(model)
        model.save(tmp_path / "state.safetensors")
        textbook.assert_bits(everything(model), before)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_saving_into_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="does not exist"):
        adapted("tent").save(tmp_path / "nowhere" / "state.safetensors")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = adapted("cretta", lr=1e-2)
    for x in textbook.batches((8, 8)):
        model(x)
    path = tmp_path / "state.safetensors"
    model.save(path)
    return path


def refuse(model: AnyAdapter, path: Path, match: str | None = None) -> None:
    """The state is refused by a StateError, and the model stays as it is, bit for bit, and works."""
    model(textbook.batches((8,))[0])
    before = everything(model)
    with pytest.raises(StateError, match=match):
        model.restore(path)
    textbook.assert_bits(everything(model), before)
    model(textbook.batches((8,))[0])


def test_restore_into_another_method(saved: Path) -> None:
    refuse(adapted("tent", lr=1e-2), saved, "'cretta'.*'tent'")


def test_restore_into_another_buffer(saved: Path) -> None:
    refuse(adapted("cretta", lr=1e-2, buffer=buffer_of(19)), saved, "the buffer")
    other = cretta.SourceBuffer(textbook.source_images(20, seed=9), augment="none")
    refuse(adapted("cretta", lr=1e-2, buffer=other), saved, "the buffer")


def test_restore_into_another_network(saved: Path) -> None:
    # Eight digits of a fingerprint, not 64.
    short = r"the source model was [0-9a-f]{8}… when it was saved and is [0-9a-f]{8}… here\."
    refuse(adapted("cretta", textbook.small_net(seed=1), lr=1e-2), saved, short)
    refuse(adapted("cretta", textbook.small_net(width=4), lr=1e-2), saved, "the source model")


@pytest.mark.parametrize("part", ["conv1.weight", "fc.bias", "bn1.running_mean", "bn2.running_var"])
def test_restore_into_a_network_that_differs_in_what_is_frozen(saved: Path, part: str) -> None:
    """γ and β of two networks may well be alike: fresh ones, or frozen in a fine-tuning. They do not make a source."""
    net = textbook.small_net()
    net.state_dict()[part].add_(0.1)
    refuse(adapted("cretta", net, lr=1e-2), saved, "the source model")


@pytest.mark.parametrize("method", ["source", "bn_adapt"])
def test_restore_into_another_network_where_nothing_learns(method: str, tmp_path: Path) -> None:
    adapted(method).save(tmp_path / "state.safetensors")
    refuse(adapted(method, textbook.small_net(seed=1)), tmp_path / "state.safetensors", "the source model")


@pytest.mark.parametrize("options", [{"optimizer": "sgd"}, {"statistics": "moving"}])
def test_restore_with_options_that_make_another_state(saved: Path, options: dict[str, Any]) -> None:
    refuse(adapted("cretta", lr=1e-2, **options), saved, "same options")


def test_restore_with_another_learning_rate_warns_and_works(saved: Path) -> None:
    model = adapted("cretta", lr=5e-3)
    with pytest.warns(UserWarning, match=r"'lr': 0\.01"):
        model.restore(saved)
    assert model.options.lr == 5e-3
    assert torch.equal(model.state.snapshot()["parameters.0"], load_file(saved)["parameters.0"])


def test_restore_a_missing_file(tmp_path: Path) -> None:
    refuse(adapted("cretta"), tmp_path / "none.safetensors", "no such file")
    refuse(adapted("cretta"), tmp_path, "no such file")


@pytest.mark.parametrize("kept", [0, 7, 100, -1, -1000])
def test_restore_a_truncated_file(saved: Path, kept: int) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[:kept])
    refuse(adapted("cretta", lr=1e-2), saved, "damaged")


def test_restore_something_else(saved: Path, tmp_path: Path) -> None:
    saved.write_bytes(b"<html>404 Not Found</html>" * 100)
    refuse(adapted("cretta", lr=1e-2), saved, "damaged")
    save_file({"parameters.0": torch.zeros(3)}, saved)
    refuse(adapted("cretta", lr=1e-2), saved, "not saved by cretta")
    buffer_of().save(saved)
    refuse(adapted("cretta", lr=1e-2), saved, "source buffer")


def test_restore_a_file_with_flipped_bits(saved: Path) -> None:
    """The length is right and the header whole, but a number is not the one that was saved."""
    content = bytearray(saved.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    content[header + (len(content) - header) // 2] ^= 0xFF
    saved.write_bytes(content)
    refuse(adapted("cretta", lr=1e-2), saved, "damaged")


def damage(path: Path, name: str, value: Tensor | None) -> None:
    """Replaces a tensor in a saved file, or leaves it out; the rest, facts included, stays as it is."""
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
    content = load_file(path)
    del content[name]
    save_file(content if value is None else {**content, name: value}, path, metadata=facts)


@pytest.mark.parametrize(
    "name", ["parameters.0", "generator", "memory.cursor", "optimizer.0.exp_avg", "optimizer.0.step"]
)
@pytest.mark.parametrize("how", ["missing", "misshapen", "of another type"])
def test_restore_a_file_with_a_part_that_is_wrong(saved: Path, name: str, how: str) -> None:
    value = load_file(saved)[name]
    wrong = {"missing": None, "misshapen": torch.zeros(3, dtype=value.dtype), "of another type": value.to(torch.int16)}
    damage(saved, name, wrong[how])
    refuse(adapted("cretta", lr=1e-2), saved)


def test_restore_a_moving_average_without_its_statistics(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    model = adapted("tent", statistics="moving")
    model(textbook.batches((8,))[0])
    model.save(path)
    damage(path, "statistics.mean.bn2", None)
    refuse(adapted("tent", statistics="moving"), path)


# Batches that cannot be used.


@dataclass
class Bad:
    batch: Callable[[], object]
    message: str


def with_value(value: float) -> Tensor:
    x = textbook.batches((8,))[0]
    x[3, 1, 2, 2] = value
    x[5, 0, 0, 0] = value
    return x


BAD = {
    "nan": Bad(lambda: with_value(float("nan")), r"2 of 8 samples.*NaN or infinite.*nothing was changed"),
    "inf": Bad(lambda: with_value(float("inf")), r"2 of 8 samples.*NaN or infinite"),
    "-inf": Bad(lambda: with_value(float("-inf")), r"2 of 8 samples"),
    "empty": Bad(lambda: torch.zeros(0, 3, 8, 8), r"empty.*\(0, 3, 8, 8\).*at least one"),
    "no pixels": Bad(lambda: torch.zeros(4, 3, 0, 8), r"empty"),
    "unbatched": Bad(lambda: textbook.batches((8,))[0][0], r"\(3, 8, 8\).*4 dimensions, the batch first"),
    "too many dimensions": Bad(lambda: textbook.batches((8,))[0][None], r"\(1, 8, 3, 8, 8\).*4 dimensions"),
    "a vector": Bad(lambda: torch.zeros(3), r"\(3,\).*batch dimension.*unsqueeze\(0\)"),
    "a scalar": Bad(lambda: torch.tensor(1.0), r"\(\).*batch dimension"),
    "a list": Bad(lambda: [1.0, 2.0], r"torch\.Tensor, not list"),
    "an array": Bad(lambda: textbook.batches((8,))[0].numpy(), r"torch\.Tensor, not ndarray"),
    "none": Bad(lambda: None, r"torch\.Tensor, not NoneType"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("cretta", {}),
        ("cretta", {"weighting": "uniform", "statistics": "moving", "guard": QUIET}),
        ("cretta", {"objective": "pairwise"}),
        ("tent", {}),
        ("source", {}),
        ("bn_adapt", {"statistics": "moving"}),
    ],
)
def test_a_bad_batch_raises_and_changes_nothing(method: str, options: dict[str, Any], name: str) -> None:
    model = adapted(method, lr=1e-2, **options)
    model(textbook.batches((8,))[0])
    before, last = everything(model), model.last
    for use in (model, model.predict):
        with pytest.raises(BatchError, match=BAD[name].message):
            use(BAD[name].batch())  # type: ignore[arg-type]
        textbook.assert_bits(everything(model), before)
        assert model.last is last
    undisturbed = adapted(method, lr=1e-2, **options)
    undisturbed(textbook.batches((8,))[0])
    x = textbook.batches((8,), seed=7)[0]
    assert torch.equal(model(x), undisturbed(x))


def test_large_finite_batches_are_not_mistaken_for_infinite_ones() -> None:
    """Their sum overflows, they do not: what is refused are the logits that come of them."""
    x = torch.full((4, 3, 8, 8), 3e38) * torch.tensor([1.0, -1.0, 1.0, 1.0]).view(-1, 1, 1, 1)
    assert not torch.isfinite(x.sum())
    with pytest.raises(BatchError, match=r"the logits are not finite.*got values from -3e\+38 to 3e\+38"):
        adapted("source")(x)


# Networks and options that cannot be used.


class Answer(nn.Module):
    """A network with something to adapt that returns whatever it is told to."""

    def __init__(self, answer: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.net = textbook.small_net()
        self.answer = answer

    def forward(self, x: Tensor) -> object:
        return self.answer(x, self.net(x))


GARBAGE: dict[str, tuple[Callable[[Tensor, Tensor], object], str]] = {
    "a tuple": (lambda x, z: (x, z), r"shape \(8, 3, 8, 8\) for a batch of 8"),
    "an empty tuple": (lambda x, z: (), r"returned tuple.*\.logits"),
    "none": (lambda x, z: None, r"returned NoneType"),
    "a dict without logits": (lambda x, z: {"scores": z}, r"returned dict"),
    "an object with strange logits": (lambda x, z: Output(logits=[1, 2]), r"returned Output"),
    "labels": (lambda x, z: z.argmax(1), r"shape \(8,\) for a batch of 8.*\(8, classes\)"),
    "a map": (lambda x, z: z[:, :, None, None], r"shape \(8, 5, 1, 1\)"),
    "a mean": (lambda x, z: z.mean(0, keepdim=True), r"shape \(1, 5\) for a batch of 8"),
    "a number": (lambda x, z: z.sum(), r"shape \(\)"),
}


@dataclass
class Output:
    logits: Any


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize(
    ("method", "options"), [("cretta", {}), ("tent", {"statistics": "moving"}), ("source", {}), ("bn_adapt", {})]
)
def test_a_network_that_returns_garbage(method: str, options: dict[str, Any], name: str) -> None:
    answer, message = GARBAGE[name]
    model = adapted(method, Answer(answer), **options)
    before = everything(model)
    x = textbook.batches((8,))[0]
    for use in (model, model.predict):
        with pytest.raises(ModelError, match=message):
            use(x)
        textbook.assert_bits(everything(model), before)


class Moody:
    """Makes the forward with the number ``Moody.fails`` fail, counted over all copies, rewritten or not."""

    fails = -1
    count = 0

    @staticmethod
    def count_one(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if textbook.in_verification():
            return
        Moody.count += 1
        if Moody.count == Moody.fails:
            raise RuntimeError("out of memory")


def moody_net() -> textbook.SmallNet:
    Moody.fails = -1
    net = textbook.small_net()
    net.fc.register_forward_pre_hook(Moody.count_one)
    return net


@pytest.mark.parametrize("late", [False, True], ids=["while learning", "while answering"])
@pytest.mark.parametrize(
    ("options", "forwards"),
    [({}, 4), ({"weighting": "uniform"}, 3), ({"statistics": "moving"}, 4), ({"statistics": "moving", "steps": 2}, 6)],
    ids=str,
)
def test_a_network_that_fails_midway_leaves_everything_as_it_was(
    options: dict[str, Any], forwards: int, late: bool
) -> None:
    """As when memory runs out: at φ's forward, at θ's on target or source, or at the answer after the step.

    φ sees the target once, however many steps there are.

    A batch that raised can then be given again.
    """
    first, second = textbook.batches((8, 8))
    for failing in [forwards] if late else range(1, forwards):
        model = adapted("cretta", moody_net(), lr=1e-2, **options)
        undisturbed = adapted("cretta", lr=1e-2, **options)
        undisturbed(first)
        model(first)
        before = everything(model)
        Moody.count, Moody.fails = 0, failing
        try:
            with pytest.raises(RuntimeError, match="out of memory"):
                model(second)
        finally:
            Moody.fails = -1
        textbook.assert_bits(everything(model), before)
        Moody.count = 0
        assert torch.equal(model(second), undisturbed(second))
        assert Moody.count == forwards


@pytest.mark.parametrize("action", ["warn", "rollback", "reset"])
def test_an_alarm_turned_into_an_error_leaves_everything_as_it_was(action: str) -> None:
    """Under ``-W error`` the guard's warning is an exception, and what raises has changed nothing."""
    model = adapted("tent", lr=5.0, guard=cretta.Guard(action=action, classes=1.0, drift=0.5))
    alarmed = False
    for x in textbook.batches((8,) * 10):
        before = everything(model)
        try:
            model(x)
        except cretta.CollapseWarning:
            alarmed = True
            textbook.assert_bits(everything(model), before)
            break
    assert alarmed


def test_a_failure_in_a_later_step_undoes_the_earlier_ones() -> None:
    model = adapted("tent", moody_net(), lr=1e-2, steps=3)
    x = textbook.batches((8,))[0]
    before = everything(model)
    Moody.count, Moody.fails = 0, 2
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            model(x)
    finally:
        Moody.fails = -1
    textbook.assert_bits(everything(model), before)


@pytest.mark.parametrize("method", METHODS)
def test_a_network_that_answers_without_gradients_is_named_as_such(method: str) -> None:
    """Its forward runs under no_grad, as many an inference wrapper's does: it cannot learn, and must be told so."""

    class Wrapped(textbook.SmallNet):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    net = Wrapped()
    net.load_state_dict(textbook.small_net().state_dict())
    model = adapted(method, net)
    before = everything(model)
    with pytest.raises(ModelError, match="gradient"):
        model(textbook.batches((8,))[0])
    textbook.assert_bits(everything(model), before)


def test_a_network_without_norm_layers() -> None:
    for method in METHODS:
        with pytest.raises(ModelError, match=r"Sequential has no normalization layer.*BatchNorm, GroupNorm.*'source'"):
            adapted(method, nn.Sequential(nn.Flatten(), nn.Linear(192, 3)))
        with pytest.raises(ModelError, match="no normalization layer"):
            adapted(method, nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_a_half_precision_network(method: str, dtype: torch.dtype) -> None:
    with pytest.raises(ModelError, match=rf"bn1\.weight is {dtype}.*net\.float\(\).*autocast"):
        adapted(method, textbook.small_net().to(dtype))


def test_what_is_no_module() -> None:
    with pytest.raises(ModelError, match=r"net is function; expected a torch\.nn\.Module"):
        cretta.adapt(lambda x: x, "tent")  # type: ignore[arg-type]


def test_a_lazy_network_that_was_never_run() -> None:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(3))
    with pytest.raises(ModelError, match=r"lazy.*run one batch"):
        adapted("tent", net)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lr": 0.0}, ["lr=0.0", "above 0", "0.001"]),
        ({"lr": "fast"}, ["lr='fast'", "finite number"]),
        ({"lr": float("inf")}, ["lr=inf", "finite"]),
        ({"optimizer": "rmsprop"}, ["optimizer='rmsprop'", "'adam', 'sgd'"]),
        ({"momentum": 1.0}, ["momentum=1.0", "at least 0", "below 1"]),
        ({"nesterov": "yes"}, ["nesterov='yes'", "True or False"]),
        ({"weight_decay": -0.1}, ["weight_decay=-0.1", "at least 0"]),
        ({"steps": 0}, ["steps=0", "at least 1"]),
        ({"steps": 1.5}, ["steps=1.5", "an integer"]),
        ({"episodic": 1}, ["episodic=1", "True or False"]),
        ({"statistics": "train"}, ["statistics='train'", "'batch', 'running', 'mixture', 'moving'"]),
        ({"batch_weight": 0.0}, ["batch_weight=0.0", "above 0", "at most 1"]),
        ({"batch_weight": 1.1}, ["batch_weight=1.1", "at most 1"]),
        ({"predict": "later"}, ["predict='later'", "'before', 'after'"]),
        ({"skip": 4}, ["skip=4", "sequence of strings"]),
        ({"channels_last": None}, ["channels_last=None", "True or False"]),
        ({"guard": "panic"}, ["guard='panic'", "'warn', 'rollback', 'reset'"]),
        ({"seed": -1}, ["seed=-1", "at least 0"]),
        ({"learning_rate": 0.1}, ["unknown option of tent 'learning_rate'", "lr", "optimizer"]),
        ({"optimiser": "sgd"}, ["'optimiser'", "Did you mean 'optimizer'?"]),
        ({"beta": 1.0}, ["unknown option of tent 'beta'"]),
        ({"preset": "cifar"}, ["unknown preset of tent 'cifar'", "cifar10", "imagenet"]),
    ],
    ids=str,
)
def test_a_wrong_option_says_what_was_given_and_what_is_allowed(options: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        adapted("tent", **options)
    for part in told:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"optimizer": "sgd", "nesterov": True, "momentum": 0.0}, {"seed": 2**64}, {"seed": 2**200}],
    ids=["nesterov without momentum", "seed of 65 bits", "seed of 201 bits"],
)
def test_what_torch_would_refuse_is_an_option_error(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        adapted("tent", **options)


def test_all_errors_have_one_base() -> None:
    for kind in (BatchError, BusyError, ModelError, OptionError, StateError):
        assert issubclass(kind, CrettaError)
        assert issubclass(kind, ValueError) != issubclass(kind, RuntimeError)
        assert getattr(cretta, kind.__name__) is kind


# Steps that are not finite.


class NanGradient(torch.autograd.Function):
    """The identity, with a gradient that is not a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        return slopes[0] * float("nan")


class Touchy(textbook.SmallNet):
    """Answers a batch that holds a value above 100 with numbers, or gradients, that are not finite."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.load_state_dict(textbook.small_net().state_dict())

    def forward(self, x: Tensor) -> Tensor:
        touched = bool(x.max() > 100)
        z = super().forward(x)
        if not touched:
            return z
        if self.how == "gradient":
            answered: Tensor = NanGradient.apply(z)  # type: ignore[no-untyped-call]
            return answered
        return z * float(self.how)


def touching() -> Tensor:
    x = textbook.batches((8,))[0]
    x[0, 0, 0, 0] = 101.0
    return x


@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("cretta", {}),
        ("cretta", {"reference": "batch", "pairs": "cartesian"}),
        ("cretta", {"objective": "nce"}),
        ("cretta", {"objective": "target"}),
        ("cretta", {"weighting": "uniform"}),
        ("cretta", {"statistics": "moving"}),
        ("cretta", {"predict": "before", "optimizer": "sgd"}),
        ("cretta", {"steps": 3}),
        ("tent", {}),
        ("tent", {"statistics": "moving"}),
    ],
    ids=str,
)
def test_a_step_that_is_not_finite_is_skipped(method: str, options: dict[str, Any], how: str) -> None:
    """And the model goes on as if that batch had never come."""
    model, undisturbed = (adapted(method, Touchy(how), lr=1e-2, **options) for _ in range(2))
    stream = textbook.batches()
    for x in stream[:2]:
        assert torch.equal(model(x), undisturbed(x))
    before = everything(model)
    if how == "gradient":
        assert torch.isfinite(model(touching())).all()
        last = model.last
        assert last.skipped
        assert not last.adapted
        assert "not finite" in last.reason
    else:
        for use in (model, model.predict):
            with pytest.raises(BatchError, match="the logits are not finite; nothing was changed"):
                use(touching())
    textbook.assert_bits(everything(model), before)
    for x in stream[2:]:
        assert torch.equal(model(x), undisturbed(x))
        last = model.last
        assert (last.adapted, last.skipped, last.reason) == (True, False, "")


def test_a_moving_average_survives_activations_that_overflow() -> None:
    """The batch is finite, its variance is not; one such batch must not spoil all that follow."""
    for method in ("tent", "bn_adapt"):
        model = adapted(method, statistics="moving")
        x, *rest = textbook.batches((8, 8))
        model(x)
        with pytest.warns(UserWarning, match="far outside"):
            model(1e30 * x)
        assert all(
            torch.isfinite(value).all() for name, value in model.state.snapshot().items() if "statistics" in name
        )
        assert torch.isfinite(model(rest[0])).all()


class Second(cretta.Adapter):
    """A method whose second step of a batch finds nothing to learn, or is not finite."""

    name = "second"
    facts = Facts(updates="norm affine", statistics="batch", logits="before")
    what = "nothing"

    def begin(self) -> None:
        self.memory["steps"] = torch.tensor(0)

    def objective(self, x: Tensor) -> Objective:
        steps = int(self.memory["steps"])
        self.memory["steps"] = torch.tensor(steps + 1)
        logits = self.model(x)
        if steps == 0:
            return Objective(logits.square().mean(), logits)
        if self.what == "nothing":
            raise SkipStep("nothing there", logits)
        return Objective(logits.square().mean() * float("nan"), logits)


@pytest.mark.parametrize("what", ["nothing", "nan"])
def test_the_record_says_whether_parameters_were_updated(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``adapted`` is true exactly if the parameters are others than before the batch, whichever step was left out."""
    monkeypatch.setattr(Second, "what", what)
    model = Second(textbook.small_net(), steps=3, lr=1e-2)
    before = model.state.snapshot()["parameters.0"]
    model(textbook.batches((8,))[0])
    moved = not torch.equal(model.state.snapshot()["parameters.0"], before)
    assert model.last.adapted == moved
    assert model.last.reason


def parameters_of(model: AnyAdapter) -> Tensor:
    return model.state.snapshot()["parameters.0"]


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*autograd kernel was not registered", "ignore:torch.quantize"
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_quantized_network_does_not_claim_to_adapt(method: str, optimizer: str) -> None:
    """Quantized layers pass zeros back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5)).eval()
    model = adapted(method, torch.ao.quantization.quantize_dynamic(net, {nn.Linear}), optimizer=optimizer)
    before = parameters_of(model)
    for x in textbook.batches((8, 8)):
        assert torch.isfinite(model(x)).all()
        assert torch.equal(parameters_of(model), before)
        assert (model.last.adapted, model.last.skipped) == (False, False)
        assert "no parameter moved: the gradient is zero" in model.last.reason
        assert "adapted=False" in repr(model.last)


def test_a_saturated_loss_does_not_claim_to_adapt() -> None:
    """A buffer on the scale 0 to 255 puts w, and the loss with it, to 0."""
    images = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    net = textbook.small_net()
    net.fc.weight.data.mul_(10)
    model = adapted("cretta", net, buffer=cretta.SourceBuffer(255 * images, augment="none"))
    before = parameters_of(model)
    with pytest.warns(UserWarning, match="differ in scale"):
        model(images[:8])
    assert (model.last.loss, model.last.weight) == (0.0, 0.0)
    assert torch.equal(parameters_of(model), before)
    assert not model.last.adapted
    assert "nor has a loss of zero" in model.last.reason


@pytest.mark.parametrize(("lr", "steps"), [(1e-12, 1), (1e-12, 3), (1e-2, 1), (1e-2, 3)])
@pytest.mark.parametrize("predict", ["before", "after"])
def test_adapted_is_whether_parameters_changed(lr: float, steps: int, predict: str) -> None:
    model = adapted("tent", optimizer="sgd", lr=lr, steps=steps, predict=predict)
    for x in textbook.batches((8, 8)):
        before = parameters_of(model)
        model(x)
        assert model.last.adapted == (not torch.equal(parameters_of(model), before)) == (lr > 1e-3)
        assert (model.last.reason == "") == model.last.adapted


class Idle(cretta.Adapter):
    """Finds nothing to learn from."""

    name = "idle"
    facts = Facts(updates="norm affine", statistics="batch", logits="after")

    def objective(self, x: Tensor) -> Objective:
        self.memory["seen"] = torch.tensor(1)
        raise SkipStep("nobody is sure enough", self.model(x))


def test_a_batch_without_anything_to_learn_is_skipped_with_the_methods_reason() -> None:
    net, x = textbook.small_net(dtype=torch.float64), textbook.batches((8,), dtype=torch.float64)[0]
    model = Idle(net)
    before = everything(model)
    torch.testing.assert_close(model(x), textbook.bn_adapt(net, [x]).logits[0])
    assert model.last.skipped
    assert model.last.reason == "nobody is sure enough"
    assert model.last.loss is None
    textbook.assert_bits(everything(model), before)


# Predicting only.


@pytest.mark.parametrize("name", EVOLVING)
def test_predict_changes_nothing_and_says_what_the_model_would(name: str) -> None:
    method, options = EVOLVING[name]
    model = adapted(method, lr=1e-2, **{**options, "predict": "before", "steps": 1})
    for x in textbook.batches():
        before, last = everything(model), model.last
        predicted = model.predict(x)
        assert not predicted.requires_grad
        textbook.assert_bits(everything(model), before)
        assert model.last is last
        # The logits from before the update are those of the model as it was.
        assert torch.equal(model(x), predicted)


@pytest.mark.parametrize("method", METHODS)
def test_the_answer_after_the_update_is_what_predict_says_then(method: str) -> None:
    model = adapted(method, lr=1e-2, predict="after")
    for x in textbook.batches():
        before = model.predict(x)
        answer = model(x)
        assert torch.equal(model.predict(x), answer)
        assert (answer - before).abs().max() > 1e-4


def test_predicting_in_between_does_not_disturb_a_run() -> None:
    ways: list[dict[str, Any]] = [{}, {"statistics": "moving"}, {"weighting": "uniform"}]
    for options in ways:
        one, other = (adapted("cretta", lr=1e-2, **options) for _ in range(2))
        for x in textbook.batches():
            one.predict(x.flip(0)[:3])
            assert torch.equal(one(x), other(x))


def test_before_the_first_batch_there_is_nothing_to_tell() -> None:
    last = adapted("cretta").last
    assert (last.size, last.adapted, last.skipped, last.loss, last.weight) == (0, False, False, None, None)
    assert last.reason


# Whoever calls.


def expected_run(method: str, net: nn.Module, stream: list[Tensor]) -> list[Tensor]:
    model = adapted(method, net, lr=1e-2)
    return [model(x) for x in stream]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_callers_without_gradients(method: str, mode: Callable[[], Any]) -> None:
    net, stream = textbook.small_net(), textbook.batches()
    expected = expected_run(method, net, stream)
    with mode():
        model = adapted(method, net, lr=1e-2)
        inside = [model(x) for x in stream]
        model.predict(stream[0])
        model.reset()
        again = [model(x) for x in stream]
    assert all(torch.equal(a, b) for a, b in zip(inside, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("method", [*METHODS, "source", "bn_adapt"])
@pytest.mark.parametrize("statistics", ["batch", "moving"])
def test_everything_made_in_inference_mode(method: str, statistics: str) -> None:
    """Network, buffer, batches and adapter; then used inside and outside in turns."""
    model = adapted(method, lr=1e-2, statistics=statistics)
    expected = [model(x) for x in textbook.batches()]
    with torch.inference_mode():
        net = textbook.small_net()
        assert next(net.parameters()).is_inference()
        buffer = buffer_of()
        stream = textbook.batches()
        assert stream[0].is_inference()
        inside = adapted(method, net, buffer=buffer, lr=1e-2, statistics=statistics)
    for k, x in enumerate(stream):
        with torch.inference_mode(k % 2 == 0):
            assert torch.equal(inside(x), expected[k])
            inside.predict(x)
            inside.state.snapshot()
    with torch.inference_mode():
        inside.reset()
    assert torch.equal(inside(stream[0]), expected[0])


def test_a_batch_that_requires_grad() -> None:
    net, stream = textbook.small_net(), textbook.batches()
    expected = expected_run("cretta", net, stream)
    model = adapted("cretta", net, lr=1e-2)
    for x, wanted in zip(stream, expected, strict=True):
        x.requires_grad_()
        logits = model(x)
        assert torch.equal(logits, wanted)
        assert not logits.requires_grad
        assert not model.predict(x).requires_grad
        assert x.grad is None


def test_a_batch_is_left_as_it_is() -> None:
    x = textbook.batches((8,))[0]
    kept, version = x.clone(), x._version
    model = adapted("cretta")
    logits = model(x)
    logits.zero_()
    assert torch.equal(x, kept)
    assert x._version == version
    assert x.is_contiguous()


@pytest.mark.parametrize("statistics", ["batch", "mixture", "moving", "running"])
@pytest.mark.parametrize("method", METHODS)
def test_autocast(method: str, statistics: str) -> None:
    net, stream = textbook.small_net(), textbook.batches()
    single = adapted(method, net, lr=1e-3, statistics=statistics)
    expected = [single(x) for x in stream]
    model = adapted(method, net, lr=1e-3, statistics=statistics)
    with torch.autocast("cpu", torch.bfloat16):
        got = [model(x) for x in stream]
        model.predict(stream[0])
    assert not all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() < 0.15
    assert model.last.adapted
    for name, parameter in model.model.module.named_parameters():
        assert parameter.dtype == torch.float32
        if name.startswith("bn"):
            assert not torch.equal(parameter, net.get_parameter(name))
    for name, value in model.state.snapshot().items():
        assert not name.startswith(("parameters", "statistics", "optimizer")) or value.dtype == torch.float32, name


class Whole(cretta.Adapter):
    """Learns all parameters."""

    name = "whole"
    facts = Facts(updates="all", statistics="batch", logits="after")

    def objective(self, x: Tensor) -> Objective:
        logits = self.model(x)
        return Objective(cretta.functional.entropy(logits).mean(), logits)


def test_a_class_is_as_good_as_a_name() -> None:
    x = textbook.batches((8,))[0]
    model = cretta.adapt(textbook.small_net(), Whole, lr=1e-2)
    assert type(model) is Whole
    assert torch.equal(model(x), Whole(textbook.small_net(), lr=1e-2)(x))
    by_class = cretta.adapt(textbook.small_net(), cretta.CreTTA, buffer=buffer_of(), preset="cifar10+fast", beta=2.0)
    by_name = adapted("cretta", preset="cifar10+fast", beta=2.0)
    assert by_class.options == by_name.options
    assert torch.equal(by_class(x), by_name(x))


def test_a_class_that_is_no_method_is_refused() -> None:
    class Nameless(cretta.Adapter):
        facts = Whole.facts

    with pytest.raises(OptionError, match=r"the class dict; expected the name of a method, or a subclass of cretta\."):
        cretta.adapt(textbook.small_net(), dict)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"Nameless is not a method: it has no name.*set name and facts"):
        cretta.adapt(textbook.small_net(), Nameless)
    with pytest.raises(OptionError, match="Adapter is not a method"):
        cretta.adapt(textbook.small_net(), cretta.Adapter)
    with pytest.raises(OptionError, match="unknown method 3"):
        cretta.adapt(textbook.small_net(), 3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="busy='never': expected one of 'wait', 'raise'"):
        adapted("tent", busy="never")


def test_a_method_may_learn_everything() -> None:
    net, stream = textbook.small_net(dtype=torch.float64), textbook.batches(dtype=torch.float64)
    theta = textbook.batch_statistics(net).requires_grad_(True)
    stepper = torch.optim.Adam(theta.parameters(), 1e-2)
    model = Whole(net, lr=1e-2)
    kept = tensors(net)
    for x in stream:
        stepper.zero_grad()
        textbook.entropy(theta(x)).mean().backward()
        stepper.step()
        torch.testing.assert_close(model(x), theta(x).detach(), rtol=1e-7, atol=1e-7)
    textbook.assert_bits(tensors(net), kept)


def test_under_one_autocast_every_batch_teaches_every_parameter() -> None:
    """autocast keeps the half-precision copies of weights; one made without gradients would cut them off."""
    net = textbook.small_net()
    model = Whole(net, lr=1e-2)
    with torch.autocast("cpu", torch.bfloat16):
        for x in textbook.batches():
            model.predict(x)
            model(x)
            slopes = {n: p.grad.abs().sum() for n, p in model.model.module.named_parameters() if p.grad is not None}
            assert len(slopes) == len(list(net.parameters()))
            assert [n for n, slope in slopes.items() if not slope > 0] == []


def test_under_one_autocast_a_reset_is_seen() -> None:
    model = Whole(textbook.small_net(), lr=0.1)
    x = textbook.batches((8,))[0]
    with torch.autocast("cpu", torch.bfloat16):
        first = model.predict(x)
        after = model(x)
        model.reset()
        again = model.predict(x)
    assert not torch.equal(first, after)
    assert torch.equal(again, first)


def test_deterministic_algorithms_are_no_obstacle() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        model = adapted("cretta", lr=1e-2, weighting="uniform", statistics="moving")
        assert all(torch.isfinite(model(x)).all() for x in textbook.batches())
    finally:
        torch.use_deterministic_algorithms(False)


# Threads.


class Gate:
    """Shared by all copies of a network: lets one forward wait until it is told to go on."""

    armed = False
    entered = threading.Event()
    opened = threading.Event()


class Waiting(textbook.SmallNet):
    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        if Gate.armed:
            Gate.armed = False
            Gate.entered.set()
            assert Gate.opened.wait(LONG)
        return z


@pytest.fixture
def gate() -> Iterator[type[Gate]]:
    Gate.entered, Gate.opened, Gate.armed = threading.Event(), threading.Event(), True
    yield Gate
    Gate.opened.set()
    Gate.armed = False


def test_two_threads_at_once(gate: type[Gate], tmp_path: Path) -> None:
    first, second, third = textbook.batches((8, 8, 8))
    undisturbed = adapted("cretta", lr=1e-2, statistics="moving")
    expected = [undisturbed(x) for x in (first, second)]
    net = Waiting()
    net.load_state_dict(textbook.small_net().state_dict())
    model = adapted("cretta", net, lr=1e-2, statistics="moving", busy="raise")
    answers: list[Tensor] = []
    thread = threading.Thread(target=lambda: answers.append(model(first)))
    thread.start()
    assert gate.entered.wait(LONG)
    uses: list[Callable[[], object]] = [
        lambda: model(third),
        lambda: model.predict(third),
        model.reset,
        lambda: model.save(tmp_path / "state.safetensors"),
        lambda: model.restore(tmp_path / "state.safetensors"),
    ]
    for use in uses:
        with pytest.raises(BusyError, match=r"another thread.*Nothing was changed"):
            use()
    gate.opened.set()
    thread.join(LONG)
    assert not thread.is_alive()
    assert len(answers) == 1
    assert torch.equal(answers[0], expected[0])
    assert torch.equal(model(second), expected[1])
    textbook.assert_bits(model.state.snapshot(), undisturbed.state.snapshot())


class Announced:
    """A lock that says when somebody begins to wait for it."""

    def __init__(self) -> None:
        self.lock, self.waiting = threading.Lock(), threading.Event()

    def acquire(self, blocking: bool) -> bool:
        if self.lock.acquire(blocking=False):
            return True
        self.waiting.set()
        return blocking and self.lock.acquire()

    def release(self) -> None:
        self.lock.release()


@pytest.mark.parametrize("use", ["predict", "call", "save"])
def test_others_wait_while_a_thread_adapts(gate: type[Gate], use: str, tmp_path: Path) -> None:
    """And find the model as that batch left it."""
    first, second = textbook.batches((8, 8))
    undisturbed = adapted("cretta", lr=1e-2)
    undisturbed(first)
    net = Waiting()
    net.load_state_dict(textbook.small_net().state_dict())
    model = adapted("cretta", net, lr=1e-2)
    model._busy = lock = Announced()  # type: ignore[assignment]
    uses: dict[str, Callable[[AnyAdapter, str], object]] = {
        "predict": lambda one, name: one.predict(second),
        "call": lambda one, name: one(second),
        "save": lambda one, name: one.save(tmp_path / name),
    }
    answers: list[object] = []
    adapting = threading.Thread(target=lambda: model(first))
    adapting.start()
    assert gate.entered.wait(20)
    other = threading.Thread(target=lambda: answers.append(uses[use](model, "waited")))
    other.start()
    assert lock.waiting.wait(20)
    assert answers == []
    gate.opened.set()
    for thread in (adapting, other):
        thread.join(20)
        assert not thread.is_alive()
    (answer,) = answers
    expected = uses[use](undisturbed, "undisturbed")
    if use == "save":
        parts = [load_file(tmp_path / name) for name in ("waited", "undisturbed")]
        assert torch.equal(parts[0]["parameters.0"], parts[1]["parameters.0"])
    else:
        assert isinstance(answer, Tensor)
        assert isinstance(expected, Tensor)
        assert torch.equal(answer, expected)
    textbook.assert_bits(model.state.snapshot(), undisturbed.state.snapshot())


@pytest.mark.parametrize("busy", ["wait", "raise"])
def test_a_network_that_calls_its_own_adapter_is_told_so(busy: str) -> None:
    """In one thread, waiting would never end."""
    model = adapted("tent", busy=busy)
    x = textbook.batches((8,))[0]
    before = everything(model)
    handle = model.model.module.get_submodule("fc").register_forward_hook(lambda *_: model.predict(x))
    with pytest.raises(BusyError, match=r"in this very thread.*Nothing was changed"):
        model(x)
    textbook.assert_bits(everything(model), before)
    handle.remove()
    model(x)


def test_an_error_does_not_leave_it_busy() -> None:
    model = adapted("cretta")
    for _ in range(2):
        with pytest.raises(BatchError):
            model(torch.zeros(0, 3, 8, 8))
        with pytest.raises(BatchError):
            model.predict(torch.zeros(0, 3, 8, 8))
        with pytest.raises(StateError):
            model.restore("nowhere.safetensors")
    model(textbook.batches((8,))[0])


def test_adapters_of_one_network_do_not_meet() -> None:
    net, buffer, stream = textbook.small_net(), buffer_of(), textbook.batches()
    expected = expected_run("cretta", net, stream)
    one, other, third = (adapted(m, net, buffer=buffer, lr=1e-2) for m in ("cretta", "cretta", "tent"))
    for x, wanted in zip(stream, expected, strict=True):
        assert torch.equal(one(x), wanted)
        third(x)
        assert torch.equal(other(x), wanted)


# Kinds of networks.


class Vit(nn.Module):
    """Patches, a class token, LayerNorm and MultiheadAttention."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 5, width) / 2)
        self.norm1, self.norm2, self.norm = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.3, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.3), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.norm2(x))
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


def convolutional(norm: nn.Module, dimensions: int = 2) -> nn.Module:
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dimensions]
    pool = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}[dimensions]
    return nn.Sequential(conv(3, 8, 3), norm, nn.ReLU(), pool(1), nn.Flatten(), nn.Linear(8, 5))


class Named(nn.Module):
    """Answers as a Hugging Face model does, or with a dictionary."""

    def __init__(self, kind: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.net = textbook.small_net()
        self.kind = kind

    def forward(self, x: Tensor) -> object:
        return self.kind(self.net(x))


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d on features": (
        lambda: nn.Sequential(nn.Linear(7, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)),
        (7,),
    ),
    "BatchNorm1d on sequences": (lambda: convolutional(nn.BatchNorm1d(8), 1), (3, 9)),
    "BatchNorm2d": (lambda: convolutional(nn.BatchNorm2d(8)), (3, 8, 8)),
    "BatchNorm3d": (lambda: convolutional(nn.BatchNorm3d(8), 3), (3, 5, 5, 5)),
    "GroupNorm": (lambda: convolutional(nn.GroupNorm(2, 8)), (3, 8, 8)),
    "LayerNorm": (lambda: convolutional(nn.LayerNorm([8, 6, 6])), (3, 8, 8)),
    "LayerNorm without bias": (lambda: convolutional(nn.LayerNorm([8, 6, 6], bias=False)), (3, 8, 8)),
    "InstanceNorm": (lambda: convolutional(nn.InstanceNorm2d(8, affine=True)), (3, 8, 8)),
    "InstanceNorm with running statistics": (
        lambda: convolutional(nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
        (3, 8, 8),
    ),
    "RMSNorm": (lambda: convolutional(nn.RMSNorm([6, 6])), (3, 8, 8)),
    "a transformer": (Vit, (3, 8, 8)),
    "a GroupNorm ResNet": (lambda: cretta.models.ResNet(8, classes=5, width=8, norm="group"), (3, 8, 8)),
    "a BatchNorm ResNet": (lambda: cretta.models.ResNet(8, classes=5, width=8), (3, 8, 8)),
    "an output object": (lambda: Named(lambda z: Output(z)), (3, 8, 8)),
    "an output dictionary": (lambda: Named(lambda z: {"logits": z, "hidden": None}), (3, 8, 8)),
    "a norm layer alone": (lambda: nn.BatchNorm1d(5), (5,)),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_kinds_of_networks_adapt(method: str, name: str) -> None:
    build, shape = KINDS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = build()
        data = [torch.rand(6, *shape) for _ in range(3)]
        buffer = cretta.SourceBuffer(torch.rand(10, *shape), augment="none")
    textbook.settle(net, data)
    net.train()
    values = tensors(net)
    # GroupNorm in channels-last memory can end the process; it has a test in one of its own.
    model = adapted(method, net, buffer=buffer, lr=1e-2, channels_last="GroupNorm" not in name)
    for x in data:
        logits = model(1.5 * x + 0.5)
        assert logits.shape == (6, 5)
        assert torch.isfinite(logits).all()
        assert model.last.adapted, model.last.reason
    names = model.learnable.names
    norms = [n for n, m in net.named_modules() if "Norm" in type(m).__name__ and list(m.parameters(recurse=False))]
    assert len(names) == sum(len(list(net.get_submodule(n).parameters(recurse=False))) for n in norms)
    for n, parameter in model.model.module.named_parameters():
        layer = n.rpartition(".")[0]
        if layer in norms:
            assert not torch.equal(parameter, values[n]), f"{n} did not move"
            assert torch.isfinite(parameter).all()
        else:
            assert torch.equal(parameter, values[n]), f"{n} moved"
            assert parameter.grad is None
    textbook.assert_bits(tensors(net), values)
    before = {n: p.detach().clone() for n, p in model.model.module.named_parameters()}
    model.reset()
    assert any(not torch.equal(p, before[n]) for n, p in model.model.module.named_parameters())
    textbook.assert_bits(
        {n: p.detach() for n, p in model.model.module.named_parameters()},
        {n: v for n, v in values.items() if n in before},
    )


def group_norm_in_channels_last() -> None:
    """Runs in a process of its own: a network that begins convolution, GroupNorm, in the layout of the default."""
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = cretta.models.ResNet(8, classes=5, width=8, norm="group")
    for method in METHODS:
        last, first = (adapted(method, net, lr=1e-2, channels_last=flag) for flag in (True, False))
        for x in textbook.batches():
            torch.testing.assert_close(last(x), first(x), rtol=1e-4, atol=1e-4)
            x = x.contiguous(memory_format=torch.channels_last)  # a caller may come with it too
            torch.testing.assert_close(last(x), first(x), rtol=1e-4, atol=1e-4)
        assert last.last.adapted


@pytest.mark.process
def test_group_norm_in_channels_last() -> None:
    """torch's CPU kernel crashes where γ learns, the input does not ask for a gradient and lies channels-last."""
    in_a_new_process("import test_adapter; test_adapter.group_norm_in_channels_last()")


@pytest.mark.parametrize("kind", ["an output object", "an output dictionary"])
def test_output_objects_give_the_same_logits(kind: str) -> None:
    stream = textbook.batches()
    model = adapted("cretta", KINDS[kind][0](), lr=1e-2)
    plain = adapted("cretta", textbook.small_net(), lr=1e-2)
    assert all(torch.equal(model(x), plain(x)) for x in stream)


def test_a_transformer_equals_a_plain_loop() -> None:
    """LayerNorm has no statistics to exchange: TENT is a plain training loop on γ and β, dropout asleep."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Vit().double()
    textbook.settle(net, textbook.source_images(16, dtype=torch.float64).split(8))
    theta = copy.deepcopy(net).eval().requires_grad_(False)
    learning = [p for m in theta.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()]
    for p in learning:
        p.requires_grad_(True)
    stepper = torch.optim.Adam(learning, 1e-2)
    model = cretta.adapt(net.train(), "tent", lr=1e-2)
    for x in textbook.batches(dtype=torch.float64):
        logits = theta(x)
        stepper.zero_grad()
        textbook.entropy(logits).mean().backward()
        stepper.step()
        torch.testing.assert_close(model(x), logits.detach(), rtol=1e-7, atol=1e-7)


def test_skipping_the_end_of_a_transformer() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Vit()
    model = adapted("tent", net, skip=("norm2", "norm"), lr=1e-2)
    model(textbook.batches((8,))[0])
    assert model.learnable.names == ("norm1.weight", "norm1.bias")


# The same again.


@pytest.mark.parametrize("name", EVOLVING)
def test_the_same_seed_twice(name: str) -> None:
    method, options = EVOLVING[name]
    one, other = (adapted(method, lr=1e-2, seed=4, **options) for _ in range(2))
    torch.manual_seed(1)
    for k, x in enumerate(textbook.batches()):
        torch.manual_seed(k)  # the global generator has no say
        a = one(x)
        torch.manual_seed(k + 100)
        assert torch.equal(a, other(x))


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    model = adapted(
        "cretta", weighting="uniform", buffer=cretta.SourceBuffer(textbook.source_images(13), augment=noisy)
    )
    for x in textbook.batches():
        model(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_another_seed_draws_other_weights() -> None:
    a, b = (adapted("cretta", weighting="uniform", seed=seed) for seed in (0, 1))
    for x in textbook.batches((8, 8)):
        a(x)
        b(x)
    assert a.last.weight != b.last.weight


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("statistics", ["batch", "moving"])
def test_memory_layout_does_not_matter(method: str, statistics: str) -> None:
    net = textbook.small_net()
    last, first = (adapted(method, net, channels_last=flag, statistics=statistics) for flag in (True, False))
    for x in textbook.batches():
        a, b = last(x), first(x)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        # Whichever way the batch itself came.
        torch.testing.assert_close(
            last.predict(x.contiguous(memory_format=torch.channels_last)), last.predict(x), rtol=1e-5, atol=1e-5
        )


def test_batches_of_changing_size() -> None:
    net, stream = textbook.small_net(), textbook.batches((8, 3, 16, 2, 9))
    model = adapted("cretta", net)
    expected = textbook.cretta(net, stream, textbook.source_images(20))
    for x, wanted in zip(stream, expected.logits, strict=True):
        torch.testing.assert_close(model(x), wanted, rtol=1e-5, atol=1e-5)


# The public surface.


def test_the_readme_lines_of_the_design() -> None:
    net, x = textbook.small_net(), textbook.batches((8,))[0]
    model = cretta.adapt(net, "cretta", buffer=buffer_of(), beta=1.0, lr=1e-3)
    logits = model(x)
    assert torch.equal(model.predict(x), logits)
    assert model.last.weight is not None
    assert "lr" not in repr(model)
    assert repr(cretta.adapt(net, "tent", lr=0.5)) == "Tent(SmallNet, lr=0.5)"


def test_warnings_are_for_the_user_to_see(saved: Path) -> None:
    """A user who turns warnings into errors gets one before anything has changed."""
    model = adapted("cretta", lr=5e-3)
    before = everything(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="lr"):
            model.restore(saved)
    textbook.assert_bits(everything(model), before)


def test_a_bad_batch_changes_nothing_in_an_episodic_adapter_either() -> None:
    """Refused only in the forward, after the episode's own reset."""
    model = adapted("tent", lr=1e-2, episodic=True)
    x = textbook.batches((8,))[0]
    model(x)
    before = everything(model)
    with pytest.raises(BatchError):
        model(x[0])
    textbook.assert_bits(everything(model), before)
