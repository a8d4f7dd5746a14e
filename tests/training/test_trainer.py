from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from cretta import states
from cretta.data import ArrayDataset, embedded
from cretta.errors import OptionError, StateError
from cretta.models import build, load, load_checkpoint
from cretta.models.opened import open_model
from cretta.training import News, Recipe, train, trainer
from cretta.training.trainer import evaluate, flip_and_crop


def small(count: int = 100) -> ArrayDataset:
    whole = embedded("train")
    return ArrayDataset("small", whole.images[:count], whole.labels[:count], whole.classes)


def model() -> Any:
    torch.manual_seed(5)
    return build("resnet-8-4")


def test_a_step_is_plain_sgd_with_nesterov_momentum_and_decay_of_matrices_only(tmp_path: Path) -> None:
    recipe = Recipe(epochs=0.6, batch_size=20, augmix=0.0, padding=0, progressive=False, lr=0.1)  # three steps
    dataset = small()
    trained, plain = model(), model()
    train(dataset, trained, recipe, tmp_path / "out.safetensors")

    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(dataset.images).permute(0, 3, 1, 2)
    momentum = {name: torch.zeros_like(weight) for name, weight in plain.named_parameters()}
    plain.train()
    for step in range(3):
        chosen = order[20 * step : 20 * step + 20]
        generator = torch.Generator().manual_seed(2 * step + 1)
        torch.randint(0, 1, (2, 20), generator=generator)
        flipped = torch.rand(20, 1, generator=generator).view(-1) < 0.5
        batch = images[chosen].clone()
        batch[flipped] = batch[flipped].flip(3)
        rate = recipe.rate(step / 3)
        assert rate == pytest.approx(0.1 * min(step / 3 / 0.15, (1 - step / 3) / 0.85))
        plain.zero_grad()
        F.cross_entropy(plain(batch.float() / 255), torch.from_numpy(dataset.labels)[chosen]).backward()
        with torch.no_grad():
            for name, weight in plain.named_parameters():
                gradient = weight.grad + (5e-4 * weight if weight.dim() > 1 else 0)
                momentum[name] = 0.9 * momentum[name] + gradient
                weight -= rate * (gradient + 0.9 * momentum[name])
    for (name, found), expected in zip(trained.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.equal(trained.state_dict()["conv1.weight"], model().state_dict()["conv1.weight"])


def test_it_learns_what_it_is_shown(tmp_path: Path) -> None:
    trained = build("resnet-8-16")
    shown = small(40)
    before, _ = evaluate(trained, shown)
    result = train(
        shown,
        trained,
        Recipe(epochs=40, batch_size=20, augmix=0.0, padding=0, progressive=False, lr=0.1),
        tmp_path / "out.safetensors",
        test=shown,
    )
    assert result.accuracy > max(0.8, before + 0.4)
    assert result.epochs == 40
    assert evaluate(trained, shown)[0] == result.accuracy


def test_what_is_written_is_the_model_and_says_what_it_is(tmp_path: Path) -> None:
    trained = model()
    path = tmp_path / "out.safetensors"
    told = {"architecture": "resnet-8-4", "classes": list(small().classes)}
    result = train(small(), trained, Recipe(epochs=0.4, batch_size=20), path, test=small(30), facts=told)
    again = load_checkpoint(path, build("resnet-8-4")).eval()
    x = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(again(x), trained(x))
    _, facts = states.read(path, "model weights")
    assert facts["architecture"] == "resnet-8-4"
    opened = open_model(str(path))
    assert opened.side == 32
    assert opened.classes == small().classes
    torch.testing.assert_close(opened.net(x), trained(x))
    assert facts["accuracy"] == result.accuracy
    assert facts["recipe"]["epochs"] == 0.4
    assert [each.name for each in tmp_path.iterdir()] == ["out.safetensors"]


@pytest.mark.parametrize("ema", [None, 0.8])
def test_interrupted_anywhere_and_continued_it_gives_the_same_bytes(tmp_path: Path, ema: float | None) -> None:
    recipe = Recipe(epochs=1.6, batch_size=20, ema=ema)  # eight steps, all four sizes, an epoch's end inside
    sides: list[int] = []
    train(small(), model(), recipe, tmp_path / "whole.safetensors", progress=lambda news: sides.append(news.side))
    assert sorted(set(sides)) == [20, 24, 28, 32]

    def stop(news: News) -> None:
        if news.step in (1, 5):
            raise KeyboardInterrupt

    path = tmp_path / "cut.safetensors"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(small(), model(), recipe, path, progress=stop)
        assert not path.exists()
    train(small(), model(), recipe, path)
    whole, cut = load_file(tmp_path / "whole.safetensors"), load_file(path)
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_the_average_is_an_average(tmp_path: Path) -> None:
    recipe = Recipe(epochs=0.4, batch_size=20, ema=0.75)
    seen: list[dict[str, torch.Tensor]] = []
    trained = model()
    first = {name: value.clone() for name, value in trained.state_dict().items()}
    train(
        small(),
        trained,
        recipe,
        tmp_path / "out.safetensors",
        progress=lambda news: seen.append({name: value.clone() for name, value in trained.state_dict().items()}),
    )
    name = "fc.weight"
    expected = first[name]
    for state in seen:
        expected = 0.75 * expected + 0.25 * state[name]
    assert not torch.equal(seen[0][name], seen[1][name])
    torch.testing.assert_close(trained.state_dict()[name], expected)


def test_a_budget_of_time_is_kept_over_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which each step takes a second."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__, monotonic=time.monotonic)
    monkeypatch.setattr(trainer, "time", clock)
    recipe = Recipe(minutes=0.2, batch_size=20, progressive=False)
    heard: list[float] = []

    def stop(news: News) -> None:
        heard.append(news.share)
        if news.share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(small(), model(), recipe, tmp_path / "out.safetensors", progress=stop)
    again: list[float] = []
    result = train(
        small(), model(), recipe, tmp_path / "out.safetensors", progress=lambda news: again.append(news.share)
    )
    assert heard == pytest.approx([step / 12 for step in range(1, 8)])
    assert again == pytest.approx([step / 12 for step in range(8, 13)])
    assert result.minutes == pytest.approx(0.2)


def test_another_training_does_not_take_the_checkpoint(tmp_path: Path) -> None:
    def stop(news: News) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "out.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(small(), model(), Recipe(epochs=1, batch_size=20), path, progress=stop)
    kept = Path(f"{path}.checkpoint").read_bytes()
    with pytest.raises(StateError, match="recipe differ"):
        train(small(), model(), Recipe(epochs=2, batch_size=20), path)
    with pytest.raises(StateError, match="another model"):
        train(small(), build("resnet-8-8"), Recipe(epochs=1, batch_size=20), path)
    with pytest.raises(StateError, match="images differ"):
        train(small(90), model(), Recipe(epochs=1, batch_size=20), path)
    assert Path(f"{path}.checkpoint").read_bytes() == kept


def test_a_loss_that_is_not_finite_stops_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="smaller lr"):
        train(small(), model(), Recipe(epochs=20, batch_size=20, lr=1e9, warmup=0.0), tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, "epochs=None"), ({"epochs": 1.0, "minutes": 1.0}, "one of them"), ({"epochs": -1.0}, "above 0")],
)
def test_a_budget_is_needed(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Recipe(**options)


def test_what_cannot_be_trained_on_is_refused(tmp_path: Path) -> None:
    images = np.zeros((30, 8, 8, 3), np.uint8)
    recipe, path = Recipe(epochs=1, batch_size=20), tmp_path / "out.safetensors"
    unlabelled = ArrayDataset("unlabelled", images, np.full(30, -1), ())
    with pytest.raises(OptionError, match="without labels"):
        train(unlabelled, model(), recipe, path)
    with pytest.raises(OptionError, match="only 10 images"):
        train(small(10), model(), recipe, path)
    oblong = ArrayDataset("oblong", np.zeros((30, 8, 9, 3), np.uint8), np.zeros(30, np.int64), ("a",))
    with pytest.raises(OptionError, match="8 × 9"):
        train(oblong, model(), recipe, path)
    with pytest.raises(OptionError, match="nowhere"):
        train(small(), model(), recipe, tmp_path / "nowhere" / "out.safetensors")
    assert not list(tmp_path.iterdir())


def test_crops_reflect_at_the_border_and_mirror_half_of_the_images() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.arange(5 * 6, dtype=torch.uint8).view(1, 1, 5, 6).expand(400, 3, -1, -1).contiguous()
    found = flip_and_crop(images, generator, 2)
    padded = F.pad(images[:1].float(), (2, 2, 2, 2), mode="reflect")[0].to(torch.uint8)
    possible = {}
    for top in range(5):
        for left in range(5):
            window = padded[:, top : top + 5, left : left + 6]
            possible[tuple(window.flatten().tolist())] = False
            possible[tuple(window.flip(2).flatten().tolist())] = True
    kinds = [possible[tuple(each.flatten().tolist())] for each in found]
    assert 150 < sum(kinds) < 250
    assert len({tuple(each.flatten().tolist()) for each in found}) > 45


def test_evaluation_is_a_plain_loop() -> None:
    net = load("wrn-40-2-cifar10")
    test = embedded("test")
    few = ArrayDataset("few", test.images[:30], test.labels[:30], test.classes)
    x = torch.from_numpy(few.images).permute(0, 3, 1, 2).float() / 255
    right = float((net(x).argmax(1) == torch.from_numpy(few.labels)).float().mean())
    assert evaluate(net, few, batch_size=7)[0] == pytest.approx(right)
