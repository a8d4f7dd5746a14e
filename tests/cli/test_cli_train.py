from __future__ import annotations

import dataclasses
import math
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

import forks
import processes
from cretta.cli import app
from cretta.cli.train import training_curve
from cretta.data import embedded
from cretta.storage import tensorfile
from cretta.training import Row
from cretta.training.trainer import KIND
from processes import ENVIRONMENT, command

SMALL = ["--architecture", "resnet-8-4", "--batch-size", "10", "--threads", "1", "--backend", "plain"]
STEP = "cretta.optimizers:SGD.step"
IMAGES = 40


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A few training images, one folder per class."""
    folder, shown = tmp_path_factory.mktemp("train") / "mine", embedded("train")
    for number in range(IMAGES):
        place = folder / shown.classes[shown.labels[number]]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(shown.images[number]).save(place / f"{number}.png")
    return str(folder)


def arguments(mine: str, output: Path, *options: str) -> list[str]:
    """Return a training of 12 steps."""
    return ["train", mine, "--test", mine, "--output", str(output), *SMALL, "--epochs", "3", *options]


def stopped(
    mine: str, output: Path, step: int, how: signal.Signals, run: Any = forks.run
) -> subprocess.CompletedProcess[str]:
    """Train in a new process, which is stopped in a step; every step before it is saved."""
    stopped: subprocess.CompletedProcess[str] = run(
        command(*arguments(mine, output, "--save-every", "0"), stop=(STEP, step, how)), env=ENVIRONMENT
    )
    assert not output.exists(), stopped.stderr
    return stopped


def steps_in(checkpoint: Path) -> int:
    _, facts = tensorfile.read(checkpoint, KIND)
    return int(facts["step"])


def finish(mine: str, output: Path) -> dict[str, torch.Tensor]:
    result = CliRunner().invoke(app, arguments(mine, output))
    assert result.exit_code == 0, result.output + result.stderr
    assert "3.0 epochs" in result.output
    assert f"mine, {IMAGES} images: accuracy" in result.output
    return load_file(output)


@pytest.fixture(scope="module")
def undisturbed(mine: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return finish(mine, tmp_path_factory.mktemp("train") / "whole.safetensors")


@pytest.mark.process
def test_killed_and_run_again_it_gives_the_weights_of_an_undisturbed_run(
    tmp_path: Path, mine: str, undisturbed: dict[str, torch.Tensor]
) -> None:
    output, checkpoint = tmp_path / "cut.safetensors", tmp_path / "cut.safetensors.checkpoint"
    killed = stopped(mine, output, 5, signal.SIGKILL, processes.run)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert steps_in(checkpoint) == 4
    weights = finish(mine, output)
    assert not checkpoint.exists()
    assert weights.keys() == undisturbed.keys()
    assert all(torch.equal(weights[name], undisturbed[name]) for name in undisturbed)


@pytest.mark.process
def test_interrupted_by_ctrl_c_it_says_so_and_goes_on_to_the_same_weights(
    tmp_path: Path, mine: str, undisturbed: dict[str, torch.Tensor]
) -> None:
    output = tmp_path / "cut.safetensors"
    for steps in (2, 4):
        interrupted = stopped(mine, output, 3, signal.SIGINT)
        assert interrupted.returncode == 130, interrupted.stderr
        assert "run the same command again" in interrupted.stderr
        # The step in which the signal came is taken again.
        assert steps_in(tmp_path / "cut.safetensors.checkpoint") == steps
    weights = finish(mine, output)
    assert all(torch.equal(weights[name], undisturbed[name]) for name in undisturbed)
    again = CliRunner().invoke(app, arguments(mine, output))
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr


def test_the_embedded_images(tmp_path: Path) -> None:
    output = tmp_path / "embedded.safetensors"
    result = CliRunner().invoke(app, ["train", "embedded", "--output", str(output), *SMALL, "--epochs", "0.1"])
    assert result.exit_code == 0, result.output + result.stderr
    assert "0.1 epochs" in result.output
    assert "2000 images: accuracy" in result.output
    assert load_file(output)["fc.weight"].shape[0] == 10


def test_a_folder_of_ones_own(tmp_path: Path, mine: str) -> None:
    options = [*SMALL[:2], "--batch-size", "20", "--epochs", "1", "--size", "16", "--average", "0.5"]
    output = tmp_path / "mine.safetensors"
    result = CliRunner().invoke(app, ["train", mine, "--test", mine, "--output", str(output), *options])
    assert result.exit_code == 0, result.output + result.stderr
    assert "mine, 40 images: accuracy" in result.output
    assert load_file(output)["fc.weight"].shape[0] == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["embedded"], "no --epochs, no --minutes: give one of them, as in --epochs 10 or --minutes 100."),
        (["embedded", "--epochs", "1", "--minutes", "1"], "--epochs 1.0, --minutes 1.0: give one of them"),
        (["cifar1", "--epochs", "1"], "Did you mean 'cifar10'"),
        (["nope", "--epochs", "1"], "embedded, pacs, tiny-imagenet. Or give a folder of class folders that exists."),
        (["--epochs", "1"], "cifar100, tiny-imagenet, pacs, a folder, or --resume."),
        (["embedded", "--epochs", "1", "--architecture", "vgg"], "wrn-depth-width"),
        (["embedded", "--epochs", "1", "--lr", "-1"], "--lr -1.0: expected a finite number above 0"),
        (["embedded", "--epochs", "-1"], "the same seed then gives the same weights)."),
        (["embedded", "--epochs", "1", "--threads", "0"], "cretta: --threads 0: expected an integer, at least 1."),
        (["embedded", "--epochs", "1", "--save-every", "-1"], "--save-every -1: expected a number, at least 0."),
        (["embedded", "--epochs", "1", "--device", "tpu"], "--device tpu: expected auto, cpu"),
        (["cifar10", "--epochs", "1", "--root", "nowhere"], "cretta data get cifar10"),
        (
            ["embedded", "--epochs", "1", "--test", "folder"],
            "--test folder: embedded has test images of its own; leave",
        ),
        (["embedded", "--epochs", "1", "--size", "64"], "--size: the images of embedded are of 32x32; leave it out."),
        (
            ["embedded", "--epochs", "1", "--batch-size", "2000"],
            "--batch-size 2000: cifar10 has only 1000 images; give a smaller number.",
        ),
        (
            ["embedded", "--epochs", "1", "--batch-size", "951", "--holdout", "50"],
            "--batch-size 951: cifar10 has only 950 images besides --holdout 50; give a smaller number.",
        ),
    ],
)
def test_bad_requests_get_a_message_and_leave_nothing(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", *arguments, "--output", str(tmp_path / "out.safetensors")])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert "None" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_curve_shows_loss_and_accuracy() -> None:
    rows = [Row(n, n, n, 0.1, 32, 2 / n, 0.1 * n, 0.1) for n in range(1, 6)]
    loss, accuracy = (panel.series[0] for panel in training_curve(rows, "a title").panels)
    assert list(loss.x) == list(accuracy.x) == [1, 2, 3, 4, 5]
    assert list(loss.y) == [2 / n for n in range(1, 6)]
    assert list(accuracy.y) == pytest.approx([10, 20, 30, 40, 50])
    unmeasured = [dataclasses.replace(row, accuracy=math.nan) for row in rows]
    assert [panel.y for panel in training_curve(unmeasured, "a title").panels] == ["loss"]
