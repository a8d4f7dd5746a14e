"""What must hold for every method, whoever wrote it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta.adapter import Adapter

NAMES = cretta.methods.names()
LEARNING = [name for name in NAMES if cretta.methods.get(name).facts.updates != "nothing"]
# Kept small for speed, and lenient enough that an untrained network's predictions pass the filters.
OPTIONS: dict[str, dict[str, Any]] = {
    "pl": {"threshold": 0.0, "lr": 1e-3},
    "eta": {"entropy_margin": 10.0, "redundancy_margin": 2.0},
    "eata": {"entropy_margin": 10.0, "redundancy_margin": 2.0},
    "sar": {"entropy_margin": 10.0, "reset_below": 0.0},
    "tea": {"sampling_steps": 2, "replay": 30},
}


class Tokens(nn.Module):
    """A network with LayerNorm and no convolution's BatchNorm: patches, a mixer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(textbook.CHANNELS, 8, 4, stride=4)
        self.norm1 = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)
        self.norm2 = nn.LayerNorm(8)
        self.head = nn.Linear(8, textbook.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        tokens = tokens + self.mix(self.norm1(tokens)).tanh()
        logits: Tensor = self.head(self.norm2(tokens).mean(1))
        return logits


class Groups(nn.Module):
    """A network with GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(textbook.CHANNELS, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.GroupNorm(4, 8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, textbook.CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(
        count, textbook.CHANNELS, textbook.SIDE, textbook.SIDE, generator=torch.Generator().manual_seed(seed)
    )


def make(name: str, net: nn.Module | None = None, **options: Any) -> Adapter[Any]:
    buffer = cretta.SourceBuffer(images(20, seed=9), augment="none")
    net = net if net is not None else textbook.small_net()
    return cretta.adapt(net, name, buffer=buffer, **{**OPTIONS.get(name, {}), **options})


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def everything(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("size", [1, 2, 7, 200])
@pytest.mark.parametrize("name", NAMES)
def test_output_is_a_finite_row_for_each_sample(name: str, size: int) -> None:
    model = make(name)
    for seed in range(2):
        logits = model(images(size, seed))
        assert logits.shape == (size, textbook.CLASSES)
        assert torch.isfinite(logits).all()
        assert not logits.requires_grad
    assert all(torch.isfinite(flat).all() for flat in model.learnable.flat)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_identical_images(name: str) -> None:
    model = make(name)
    logits = model(images(1).expand(8, -1, -1, -1))
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(flat).all() for flat in model.learnable.flat)


@pytest.mark.parametrize("network", [Tokens, Groups])
@pytest.mark.parametrize("name", NAMES)
def test_networks_without_batch_norm(name: str, network: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = network()
    if name == "bn_adapt":
        with pytest.raises(cretta.ModelError, match="no BatchNorm"):
            make(name, net)
        return
    model = make(name, net)
    for seed in range(2):
        assert torch.isfinite(model(images(6, seed))).all()
    moved = not same(model.state.snapshot(), model.initial)
    assert moved == (name in LEARNING)


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_one_result(name: str) -> None:
    one, two = make(name, seed=4), make(name, seed=4)
    for seed in range(3):
        assert torch.equal(one(images(6, seed)), two(images(6, seed)))
    assert same(one.state.snapshot(), two.state.snapshot())


@pytest.mark.parametrize("statistics", [None, "moving"])
@pytest.mark.parametrize("name", NAMES)
def test_reset_restores_bit_for_bit(name: str, statistics: str | None) -> None:
    model = make(name, statistics=statistics)
    before = model.state.snapshot()
    first = [model(images(6, seed)) for seed in range(3)]
    if name in LEARNING:
        assert model.last.adapted
        assert not same(before, model.state.snapshot())
    model.reset()
    assert same(before, model.state.snapshot())
    again = [model(images(6, seed)) for seed in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_restored_it_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    undisturbed, one, two = make(name), make(name), make(name)
    expected = [undisturbed(images(6, seed)) for seed in range(5)]
    for seed in range(2):
        one(images(6, seed))
    one.save(tmp_path / "state.safetensors")
    two(images(3, 77))  # whatever was there is overwritten
    two.restore(tmp_path / "state.safetensors")
    for seed in range(2, 5):
        assert torch.equal(two(images(6, seed)), expected[seed])
    assert same(undisturbed.state.snapshot(), two.state.snapshot())


@pytest.mark.parametrize("name", NAMES)
def test_only_the_declared_parameters_move_and_net_never(name: str) -> None:
    net = textbook.small_net()
    before = everything(net)
    model = make(name, net)
    for seed in range(3):
        model(images(6, seed))
    assert same(before, everything(net))
    updates = model.facts.updates
    affine = {"bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias"}
    allowed = {"nothing": set(), "norm affine": affine, "all": {n for n, _ in net.named_parameters()}}[updates]
    moved = {n for n, p in model.model.module.named_parameters() if not torch.equal(p.detach(), before[n])}
    assert moved == allowed


@pytest.mark.parametrize("name", NAMES)
def test_predict_changes_nothing(name: str) -> None:
    model = make(name, statistics="moving" if name != "source" else None)
    model(images(6))
    before = model.state.snapshot()
    first = model.predict(images(5, 3))
    assert same(before, model.state.snapshot())
    assert torch.equal(first, model.predict(images(5, 3)))


@pytest.mark.parametrize("name", LEARNING)
def test_a_step_that_is_not_finite_is_left_out(name: str) -> None:
    model = make(name)
    model(images(6))
    before = model.state.snapshot()
    backward = model.backward

    def overflow(*terms: Tensor | Callable[[], Tensor]) -> None:
        backward(*[(term if isinstance(term, Tensor) else term()) * torch.inf for term in terms])

    model.backward = overflow  # type: ignore[method-assign]
    logits = model(images(6, 1))
    assert torch.isfinite(logits).all()
    assert model.last.skipped
    assert "not finite" in model.last.reason
    assert same(before, model.state.snapshot())


@pytest.mark.parametrize("name", NAMES)
def test_the_passes_per_batch_are_as_declared(name: str) -> None:
    """Counted after four batches, when what is computed once per source sample is cached."""
    defaults: dict[str, Any] = {"sampling_steps": 20} if name == "tea" else {}
    model = make(name, **defaults)
    for seed in range(4):
        model(images(10, seed))
    for seed in range(4, 6):
        with golden.Passes(model) as passes:
            model(images(10, seed))
        assert model.last.adapted == (name in LEARNING)
        assert passes.forwards == [10] * model.facts.forwards
        assert passes.backwards == [10] * model.facts.backwards


@pytest.mark.parametrize("name", NAMES)
def test_the_logits_are_from_before_or_after_the_update_as_declared(name: str) -> None:
    model, x = make(name, lr=1e-2), images(6)
    before = model.predict(x)
    logits = model(x)
    expected = before if model.facts.logits == "before" else model.predict(x)
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_buffer_is_required_exactly_where_declared(name: str) -> None:
    method = cretta.methods.get(name)
    if method.facts.source_data == "required":
        with pytest.raises(cretta.BufferRequired, match=rf"{name} needs source samples, got buffer=None"):
            method(textbook.small_net())
    else:
        method(textbook.small_net())


@pytest.mark.parametrize("name", NAMES)
def test_options_are_documented_and_presets_valid(name: str) -> None:
    method = cretta.methods.get(name)
    assert method.name == name
    assert method.__doc__
    for option in method.option_type.names():
        assert f"\n{option} = " in method.__doc__
    for preset in method.presets:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*has no layer of that name")
            make(name, preset=preset)


@pytest.mark.parametrize("name", NAMES)
def test_temperature_has_an_effect_exactly_where_the_formula_has_an_energy(name: str) -> None:
    formula = re.search(r"\bL = .+", cretta.methods.get(name).__doc__ or "")
    has_energy = formula is not None and re.search(r"(?<![A-Z])E(?![A-Z])", formula[0]) is not None
    # SGD, since Adam's first step has the same length for any scale of the gradient.
    one, two = (make(name, optimizer="sgd", lr=1e-2, temperature=temperature) for temperature in (1.0, 3.0))
    for seed in range(2):
        one(images(6, seed))
        two(images(6, seed))
    assert same(one.state.snapshot(), two.state.snapshot()) != has_energy
