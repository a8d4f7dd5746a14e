"""A training that is killed again and again ends with the weights of one that was not."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

KILLS = 10
# Count the calls of and by the library's functions in the training; kill the process at call `limit` (0: never).
PROGRAM = """
import os, signal, sys
import cretta.cli.train as command

limit, calls = int(sys.argv.pop(1)), 0

def count(frame, event, argument):
    global calls
    if event in ("call", "c_call") and os.sep + "cretta" + os.sep in frame.f_code.co_filename:
        calls += 1
        if calls == limit:
            os.kill(os.getpid(), signal.SIGKILL)

def counted(*arguments, train=command.train, **options):
    sys.setprofile(count)
    try:
        return train(*arguments, **options)
    finally:
        sys.setprofile(None)
        print("calls:", calls)

command.train = counted
command.app()
"""
TRAINING = ["train", "embedded", "--architecture", "resnet-8-4", "--batch-size", "100", "--epochs", "3"]
OPTIONS = ["--average", "0.3", "--holdout", "100", "--threads", "1", "--backend", "plain", "--save-every", "0"]


def run(folder: Path, output: str, limit: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(limit), *options, "--output", output]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def counted(process: subprocess.CompletedProcess[str]) -> int:
    return int(process.stdout.split("calls:")[1].split()[0])


@pytest.mark.process
def test_killed_at_ten_random_moments_and_resumed_it_gives_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    whole = run(tmp_path, "whole.safetensors", 0, *TRAINING, *OPTIONS)
    assert whole.returncode == 0, whole.stderr
    total = counted(whole)
    draw = random.Random(0)
    for number in range(KILLS):
        again = (tmp_path / "cut.safetensors.checkpoint").exists()
        how = ["train", "--resume", "--save-every", "0"] if again else [*TRAINING, *OPTIONS]
        killed = run(tmp_path, "cut.safetensors", draw.randrange(1, total // (KILLS + 2)), *how)
        assert killed.returncode == -signal.SIGKILL, f"kill {number}: {killed.stdout}{killed.stderr}"
    assert not (tmp_path / "cut.safetensors").exists()
    finished = run(tmp_path, "cut.safetensors", 0, "train", "--resume")
    assert finished.returncode == 0, finished.stderr
    assert counted(finished) < total  # it did not start over
    expected, weights = load_file(tmp_path / "whole.safetensors"), load_file(tmp_path / "cut.safetensors")
    assert expected.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in expected.items())
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{suffix}" for name in ("whole", "cut") for suffix in ("csv", "png", "safetensors")
    }
