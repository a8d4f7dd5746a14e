"""A training that is killed again and again ends with the weights of one that was not."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import forks

KILLS = 10
# How often the library's functions may call another function before the process is killed (0: never is it), a file for
# the number of calls, then the arguments of cretta.
PROGRAM = """
import os, signal, sys
import cretta.training
from cretta.cli import app

limit, counts, calls = int(sys.argv[1]), sys.argv[2], 0

def count(frame, event, argument):
    global calls
    if event in ("call", "c_call") and os.sep + "cretta" + os.sep in frame.f_code.co_filename:
        calls += 1
        if calls == limit:
            os.kill(os.getpid(), signal.SIGKILL)

def counted(*positional, train=cretta.training.train, **options):
    sys.setprofile(count)
    try:
        return train(*positional, **options)
    finally:
        sys.setprofile(None)
        with open(counts, "w") as file:
            file.write(str(calls))

cretta.training.train = counted
app(sys.argv[3:])
"""
TRAINING = ["train", "embedded", "--architecture", "resnet-8-4", "--batch-size", "100", "--epochs", "2"]
OPTIONS = ["--average", "0.3", "--holdout", "100", "--threads", "1", "--backend", "plain", "--save-every", "0"]


@pytest.mark.process
def test_killed_at_ten_random_moments_and_resumed_it_gives_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    counts, work = tmp_path / "counts", tmp_path / "work"
    work.mkdir()

    def run(output: str, limit: int, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-c", PROGRAM, limit, counts, *arguments, "--output", output]
        done = forks.run(command, cwd=work)
        return done.returncode, done.stdout + done.stderr

    code, text = run("whole.safetensors", 0, *TRAINING, *OPTIONS)
    assert code == 0, text
    total = int(counts.read_text())
    draw = random.Random(0)
    for number in range(KILLS):
        again = (work / "cut.safetensors.checkpoint").exists()
        how = ["train", "--resume", "--save-every", "0"] if again else [*TRAINING, *OPTIONS]
        code, text = run("cut.safetensors", draw.randrange(1, total // (KILLS + 2)), *how)
        assert code == -signal.SIGKILL, f"kill {number}: {text}"
    assert not (work / "cut.safetensors").exists()
    code, text = run("cut.safetensors", 0, "train", "--resume")
    assert code == 0, text
    assert int(counts.read_text()) < total  # it did not start over
    expected, weights = load_file(work / "whole.safetensors"), load_file(work / "cut.safetensors")
    assert expected.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in expected.items())
    assert {path.name for path in work.iterdir()} == {
        f"{name}.{suffix}" for name in ("whole", "cut") for suffix in ("csv", "png", "safetensors")
    }
