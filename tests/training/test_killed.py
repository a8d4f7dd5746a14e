"""A training that is killed again and again ends with the weights of one that was not."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import forks
from cretta.data import embedded
from cretta.storage import tensorfile
from cretta.training.trainer import KIND

KILLS = 10
# How often the library's functions may call another function before the process is killed (0: never is it), whether
# these are counted from the beginning or from the first step on, when a checkpoint has been read and written; a file
# for the number of calls, then the arguments of cretta.
PROGRAM = """
import os, signal, sys
import cretta.training
from cretta.cli import app
from cretta.training.trainer import _Training

limit, since, counts, calls = int(sys.argv[1]), sys.argv[2], sys.argv[3], 0

def count(frame, event, argument):
    global calls
    if event in ("call", "c_call") and os.sep + "cretta" + os.sep in frame.f_code.co_filename:
        calls += 1
        if calls == limit:
            os.kill(os.getpid(), signal.SIGKILL)

def steps(training, steps=_Training.steps):
    sys.setprofile(count)
    return steps(training)

def counted(*positional, train=cretta.training.train, **options):
    if since == "step":
        _Training.steps = steps
    else:
        sys.setprofile(count)
    try:
        return train(*positional, **options)
    finally:
        sys.setprofile(None)
        with open(counts, "w") as file:
            file.write(str(calls))

cretta.training.train = counted
app(sys.argv[4:])
"""
IMAGES, STEPS = 60, 20
TRAINING = ["train", "images", "--test", "images", "--architecture", "resnet-8-4", "--batch-size", "5", "--epochs", "2"]
OPTIONS = ["--average", "0.3", "--holdout", "10", "--threads", "1", "--backend", "plain", "--save-every", "0"]


@pytest.mark.process
def test_killed_at_ten_random_moments_and_resumed_it_gives_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    counts, work, shown = tmp_path / "counts", tmp_path / "work", embedded("train")
    for number, label in enumerate(shown.labels[:IMAGES]):
        place = work / "images" / shown.classes[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(shown.images[number]).save(place / f"{number}.png")

    def run(output: str, limit: int, *arguments: str, since: str = "beginning") -> tuple[int, str]:
        command = [sys.executable, "-c", PROGRAM, limit, since, counts, *arguments, "--output", output]
        done = forks.run(command, cwd=work)
        return done.returncode, done.stdout + done.stderr

    code, text = run("whole.safetensors", 0, *TRAINING, *OPTIONS)
    assert code == 0, text
    total = int(counts.read_text())
    draw, checkpoint = random.Random(0), work / "cut.safetensors.checkpoint"
    for number in range(KILLS):
        how = ["train", "--resume", "--save-every", "0"] if checkpoint.exists() else [*TRAINING, *OPTIONS]
        since = "step" if number % 2 else "beginning"  # in which there are so many calls that few steps are taken
        code, text = run("cut.safetensors", draw.randrange(1, total // (KILLS + 2)), *how, since=since)
        assert code == -signal.SIGKILL, f"kill {number}: {text}"
    assert 1 < tensorfile.read(checkpoint, KIND)[1]["step"] < STEPS  # kills were amid the steps
    assert not (work / "cut.safetensors").exists()
    code, text = run("cut.safetensors", 0, "train", "--resume")
    assert code == 0, text
    assert int(counts.read_text()) < total  # it did not start over
    expected, weights = load_file(work / "whole.safetensors"), load_file(work / "cut.safetensors")
    assert expected.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in expected.items())
    made = {f"{name}.{suffix}" for name in ("whole", "cut") for suffix in ("csv", "png", "safetensors")}
    assert {path.name for path in work.iterdir()} == {"images", *made}
