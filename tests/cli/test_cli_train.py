from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from cretta.cli import app
from cretta.data import embedded

SMALL = ["--architecture", "resnet-8-4", "--batch-size", "100", "--threads", "1"]


def command(output: str, *options: str) -> list[str]:
    run = [sys.executable, "-c", "from cretta.cli import app; app()", "train", "embedded", "--output", output]
    return [*run, *SMALL, "--epochs", "3", *options]


def test_killed_and_run_again_it_gives_the_weights_of_an_undisturbed_run(tmp_path: Path) -> None:
    done = subprocess.run(command("whole.safetensors"), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "3.0 epochs" in done.stdout
    assert "2000 images: accuracy" in done.stdout
    with subprocess.Popen(command("cut.safetensors", "--save-every", "0"), cwd=tmp_path) as running:
        limit = time.monotonic() + 120
        while not (tmp_path / "cut.safetensors.checkpoint").exists():
            assert running.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.01)
        running.kill()
    assert not (tmp_path / "cut.safetensors").exists()
    subprocess.run(command("cut.safetensors"), cwd=tmp_path, capture_output=True, check=True)
    assert not (tmp_path / "cut.safetensors.checkpoint").exists()
    whole, cut = load_file(tmp_path / "whole.safetensors"), load_file(tmp_path / "cut.safetensors")
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_interrupted_by_ctrl_c_it_says_so_and_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    subprocess.run(command("whole.safetensors"), cwd=tmp_path, capture_output=True, check=True)
    for _ in range(2):
        with subprocess.Popen(
            command("cut.safetensors", "--save-every", "0"), cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as running:
            before = _written(tmp_path / "cut.safetensors.checkpoint")
            limit = time.monotonic() + 120
            while _written(tmp_path / "cut.safetensors.checkpoint") == before:
                assert running.poll() is None
                assert time.monotonic() < limit
                time.sleep(0.01)
            running.send_signal(signal.SIGINT)
            _, said = running.communicate()
        assert running.returncode == 130
        assert "the same command goes on" in said
    subprocess.run(command("cut.safetensors"), cwd=tmp_path, capture_output=True, check=True)
    whole, cut = load_file(tmp_path / "whole.safetensors"), load_file(tmp_path / "cut.safetensors")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    again = subprocess.run(command("cut.safetensors"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    shown = embedded("train")
    for number in range(40):
        folder = tmp_path / "mine" / shown.classes[shown.labels[number]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(shown.images[number]).save(folder / f"{number}.png")
    options = [*SMALL[:2], "--batch-size", "20", "--epochs", "1", "--size", "16", "--ema", "0.9"]
    output = tmp_path / "mine.safetensors"
    mine = str(tmp_path / "mine")
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
        (["embedded", "--epochs", "1", "--architecture", "vgg"], "wrn-depth-width"),
        (["embedded", "--epochs", "1", "--lr", "-1"], "--lr -1.0: must be"),
        (["embedded", "--epochs", "1", "--threads", "0"], "'--threads'"),
        (["embedded", "--epochs", "1", "--device", "tpu"], "--device tpu: give auto, cpu"),
        (["cifar10", "--epochs", "1", "--root", "nowhere"], "cretta data get cifar10"),
    ],
)
def test_bad_requests_get_a_message_and_leave_nothing(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", *arguments, "--output", str(tmp_path / "out.safetensors")])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())
