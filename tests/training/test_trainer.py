from __future__ import annotations

import copy
import csv
import itertools
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from cretta.data import ArrayDataset, embedded
from cretta.errors import BusyError, OptionError, StateError
from cretta.models import build, load, load_checkpoint
from cretta.models.open import open_model
from cretta.storage import tensorfile
from cretta.training import Progress, Recipe, train, trainer
from cretta.training.augmix import augmix, jensen_shannon
from cretta.training.batches import TrainingBatches, flip_and_crop
from cretta.training.trainer import evaluate


def small(count: int = 100) -> ArrayDataset:
    whole = embedded("train")
    return ArrayDataset("small", whole.images[:count], whole.labels[:count], whole.classes)


def model() -> Any:
    torch.manual_seed(5)
    return build("resnet-8-4")


def test_a_step_is_plain_sgd_with_nesterov_momentum_and_decay_of_matrices_only(tmp_path: Path) -> None:
    recipe = Recipe(epochs=0.6, batch_size=20, augmix=0.0, padding=0, progressive=0, lr=0.1, backend="plain")  # 3 steps
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


@pytest.mark.slow
def test_it_learns_what_it_is_shown(tmp_path: Path) -> None:
    trained = build("resnet-8-16")
    shown = small(40)
    before, _ = evaluate(trained, shown)
    result = train(
        shown,
        trained,
        Recipe(epochs=40, batch_size=20, augmix=0.0, padding=0, progressive=0, lr=0.1, backend="plain"),
        tmp_path / "out.safetensors",
        test=shown,
    )
    assert result.accuracy > max(0.8, before + 0.4)
    assert result.epochs == 40
    assert evaluate(trained, shown)[0] == result.accuracy


def test_what_is_written_is_the_model_and_says_what_it_is(tmp_path: Path) -> None:
    trained = model()
    path = tmp_path / "out.safetensors"
    description = {"architecture": "resnet-8-4", "classes": list(small().classes)}
    result = train(small(), trained, Recipe(epochs=0.4, batch_size=20), path, test=small(30), facts=description)
    again = load_checkpoint(path, build("resnet-8-4")).eval()
    x = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(again(x), trained(x))
    _, facts = tensorfile.read(path, "model weights")
    assert facts["architecture"] == "resnet-8-4"
    opened = open_model(str(path))
    assert opened.side == 32
    assert opened.classes == small().classes
    torch.testing.assert_close(opened.net(x), trained(x))
    assert facts["accuracy"] == result.accuracy
    assert facts["recipe"]["epochs"] == 0.4
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.csv", "out.safetensors"]


@pytest.mark.parametrize(
    "options", [{}, {"average": 0.4, "holdout": 20}, {"jsd": 12.0}, {"backend": "kernels"}], ids=str
)
@pytest.mark.slow
def test_interrupted_anywhere_and_continued_it_gives_the_same_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    count = 100 + options.get("holdout", 0)
    # Eight steps, all four sizes, an epoch's end inside.
    recipe = Recipe(**{"epochs": 1.6, "batch_size": 20, "backend": "plain", **options})
    sides: list[int] = []
    train(small(count), model(), recipe, tmp_path / "whole.safetensors", progress=lambda now: sides.append(now.side))
    assert sorted(set(sides)) == [20, 24, 28, 32]

    def stop(last: int, news: Progress) -> None:
        steps.append(news.step)
        if news.step == last:
            raise KeyboardInterrupt

    path = tmp_path / "cut.safetensors"
    steps: list[int] = []
    for last in (2, 6):
        with pytest.raises(KeyboardInterrupt):
            train(small(count), model(), recipe, path, save_every=0, progress=partial(stop, last))
        assert not path.exists()
    assert steps == [1, 2, 2, 3, 4, 5, 6]
    train(small(count), model(), recipe, path)
    assert _without_time(tmp_path / "cut.csv") == _without_time(tmp_path / "whole.csv")
    whole, cut = load_file(tmp_path / "whole.safetensors"), load_file(path)
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def _without_time(log: Path) -> list[dict[str, str]]:
    with log.open(newline="") as file:
        return [{name: value for name, value in row.items() if name != "minutes"} for row in csv.DictReader(file)]


def test_the_average_is_the_mean_of_the_last_weights_with_statistics_of_its_own(tmp_path: Path) -> None:
    recipe = Recipe(epochs=1.0, batch_size=20, average=0.6, augmix=0.0, padding=0, progressive=0, backend="plain")
    seen: list[dict[str, torch.Tensor]] = []
    trained = model()
    train(
        small(),
        trained,
        recipe,
        tmp_path / "out.safetensors",
        progress=lambda now: seen.append({name: value.clone() for name, value in trained.state_dict().items()}),
    )
    assert len(seen) == 5
    assert not torch.equal(seen[2]["fc.weight"], seen[3]["fc.weight"])
    for name in ("fc.weight", "norm1.weight", "conv1.weight"):
        expected = (seen[2][name] + seen[3][name] + seen[4][name]) / 3
        torch.testing.assert_close(trained.state_dict()[name], expected)
    # The first layer's statistics over every image, each seen equally often (64 batches are 12.8 epochs).
    images = torch.from_numpy(small().images).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        mean = trained.conv1(images).mean((0, 2, 3))
    torch.testing.assert_close(trained.norm1.running_mean, mean, rtol=0.02, atol=0.01)


def test_the_log_has_a_row_per_epoch_with_the_accuracy_on_held_out_images(tmp_path: Path) -> None:
    trained, dataset = model(), small(120)
    recipe = Recipe(epochs=2, batch_size=20, holdout=20, backend="plain")
    result = train(dataset, trained, recipe, tmp_path / "out.safetensors")
    held_out = np.sort(np.random.default_rng(0).permutation(120)[:20])
    few = ArrayDataset("few", dataset.images[held_out], dataset.labels[held_out], dataset.classes)
    accuracy, error = evaluate(trained, few)
    assert [row.step for row in result.log] == [5, 10]
    assert [row.epoch for row in result.log] == [1, 2]
    assert result.log[-1].accuracy == accuracy
    rows = _without_time(tmp_path / "out.csv")
    assert float(rows[1]["accuracy"]) == pytest.approx(accuracy, rel=1e-5)
    assert float(rows[1]["calibration_error"]) == pytest.approx(error, rel=1e-5)
    assert tensorfile.read(tmp_path / "out.safetensors", "model weights")[1]["holdout_accuracy"] == accuracy


def test_held_out_images_are_not_trained_on(tmp_path: Path) -> None:
    dataset = small(60)
    held_out = np.sort(np.random.default_rng(0).permutation(60)[:20])
    images = dataset.images.copy()
    images[held_out] = 255 - images[held_out]
    other = ArrayDataset("small", images, dataset.labels, dataset.classes)
    results = []
    for number, each in enumerate((dataset, other)):
        results.append(model())
        path = tmp_path / f"{number}.safetensors"
        train(each, results[-1], Recipe(epochs=1, batch_size=20, holdout=20, backend="plain"), path)
    assert all(torch.equal(a, b) for a, b in zip(results[0].parameters(), results[1].parameters(), strict=True))


def test_the_divergence_is_that_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = tuple(torch.randn(4, 5, generator=generator) for _ in range(3))

    def entropy(p: torch.Tensor) -> torch.Tensor:
        return -(p * p.log()).sum(1)

    probabilities = [each.double().softmax(1) for each in logits]
    mixture = torch.stack(probabilities).mean(0)
    expected = (entropy(mixture) - torch.stack([entropy(p) for p in probabilities]).mean(0)).mean()
    assert float(jensen_shannon(logits)) == pytest.approx(float(expected), abs=1e-6)
    assert float(jensen_shannon((logits[0],) * 3)) == pytest.approx(0, abs=1e-6)


def test_with_the_divergence_a_step_sees_the_plain_batch_and_two_versions_of_it(tmp_path: Path) -> None:
    shapes: list[torch.Size] = []
    trained = model()
    trained.register_forward_pre_hook(lambda module, args: shapes.append(args[0].shape))
    losses: list[float] = []
    options: dict[str, Any] = {"epochs": 0.2, "batch_size": 20, "progressive": 0, "padding": 0, "backend": "plain"}
    start = copy.deepcopy(trained.state_dict())
    path = tmp_path / "out.safetensors"
    train(small(), trained, Recipe(jsd=12.0, **options), path, progress=lambda now: losses.append(now.loss))
    assert shapes[0] == (60, 3, 32, 32)
    plain = model()
    plain.load_state_dict(start)
    plain.train()
    generator = torch.Generator().manual_seed(1)
    chosen = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:20]
    images = flip_and_crop(torch.from_numpy(small().images).permute(0, 3, 1, 2)[chosen], generator, 0)
    views = [images.float() / 255, augmix(images, generator), augmix(images, generator)]
    logits = plain(torch.cat(views)).chunk(3)
    labels = torch.from_numpy(small().labels)[chosen]
    expected = F.cross_entropy(logits[0], labels) + 12 * jensen_shannon(logits)
    assert losses == [pytest.approx(float(expected.detach()), rel=1e-4)]


def test_a_budget_of_time_is_kept_over_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which each step takes a second."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__, monotonic=time.monotonic)
    monkeypatch.setattr(trainer, "time", clock)
    recipe = Recipe(minutes=0.2, batch_size=20, progressive=0, backend="plain")
    heard: list[float] = []

    def stop(news: Progress) -> None:
        heard.append(news.share)
        if news.share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(small(), model(), recipe, tmp_path / "out.safetensors", save_every=0, progress=stop)
    again: list[float] = []
    result = train(
        small(), model(), recipe, tmp_path / "out.safetensors", progress=lambda news: again.append(news.share)
    )
    assert heard == pytest.approx([step / 12 for step in range(1, 8)])
    # The step in which it was stopped, the seventh, is taken again.
    assert again == pytest.approx([step / 12 for step in range(7, 13)])
    assert result.minutes == pytest.approx(0.2)


def test_another_training_does_not_take_the_checkpoint(tmp_path: Path) -> None:
    def stop(news: Progress) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "out.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(small(), model(), Recipe(epochs=1, batch_size=20, backend="plain"), path, progress=stop)
    before = Path(f"{path}.checkpoint").read_bytes()
    with pytest.raises(StateError, match=r"epochs was 1\.0 and is 2\.0"):
        train(small(), model(), Recipe(epochs=2, batch_size=20, backend="plain"), path)
    with pytest.raises(StateError, match="another model"):
        train(small(), build("resnet-8-8"), Recipe(epochs=1, batch_size=20, backend="plain"), path)
    with pytest.raises(StateError, match="images was 100 and is 90"):
        train(small(90), model(), Recipe(epochs=1, batch_size=20, backend="plain"), path)
    assert Path(f"{path}.checkpoint").read_bytes() == before


def test_two_trainings_of_one_output_do_not_overwrite_each_other(tmp_path: Path) -> None:
    path, recipe = tmp_path / "out.safetensors", Recipe(epochs=1, batch_size=20, progressive=0, backend="plain")

    def again(_: object) -> None:
        with pytest.raises(BusyError, match="another process is working"):
            train(small(), model(), recipe, path)

    train(small(), model(), recipe, path, progress=again)
    assert [file.name for file in tmp_path.iterdir() if "lock" in file.name] == []


def test_a_loss_that_is_not_finite_stops_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="smaller lr"):
        train(
            small(),
            model(),
            Recipe(epochs=20, batch_size=20, lr=1e9, warmup=0.0, backend="plain"),
            tmp_path / "out.safetensors",
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "epochs=None"),
        ({"epochs": 1.0, "minutes": 1.0}, "one of them"),
        ({"epochs": -1.0}, "above 0"),
        ({"epochs": 1.0, "padding": 32}, "at most 31"),
    ],
)
def test_recipes_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Recipe(**options)


def test_what_cannot_be_trained_on_is_refused(tmp_path: Path) -> None:
    images = np.zeros((30, 8, 8, 3), np.uint8)
    recipe, path = Recipe(epochs=1, batch_size=20), tmp_path / "out.safetensors"
    unlabeled = ArrayDataset("unlabeled", images, np.full(30, -1), ())
    with pytest.raises(OptionError, match="without labels"):
        train(unlabeled, model(), recipe, path)
    with pytest.raises(OptionError, match="only 10 images"):
        train(small(10), model(), recipe, path)
    oblong = ArrayDataset("oblong", np.zeros((30, 8, 9, 3), np.uint8), np.zeros(30, np.int64), ("a",))
    with pytest.raises(OptionError, match="8 × 9"):
        train(oblong, model(), recipe, path)
    with pytest.raises(StateError, match="nowhere does not exist"):
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


def test_the_widest_padding_fits_small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of 8 pixels has 7 to reflect."""
    crop = Mock(wraps=flip_and_crop)
    monkeypatch.setattr("cretta.training.batches.flip_and_crop", crop)
    whole = small(40)
    batches = TrainingBatches(
        ArrayDataset("8 px", whole.images[:, :8, :8], whole.labels, whole.classes), Recipe(epochs=1.0, padding=31)
    )
    assert batches.views(0, 8)[0].shape[1:] == (3, 8, 8)
    assert crop.call_args.args[2] == 7


def test_evaluation_is_a_plain_loop() -> None:
    net = load("wrn-40-2-cifar10")
    test = embedded("test")
    few = ArrayDataset("few", test.images[:30], test.labels[:30], test.classes)
    x = torch.from_numpy(few.images).permute(0, 3, 1, 2).float() / 255
    right = float((net(x).argmax(1) == torch.from_numpy(few.labels)).float().mean())
    assert evaluate(net, few, batch_size=7)[0] == pytest.approx(right)
