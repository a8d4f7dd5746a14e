"""A training that is killed again and again ends with the weights of one that was not."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

KILLS = 10
# Import the library once, then train in a forked process for each line read: how often the library's functions may call
# another function before the process is killed (0: never is it), then the arguments. Answer with the exit code, the
# number of calls and the output.
PROGRAM = """
import json, os, signal, sys, tempfile, traceback
import cretta.training
from cretta.cli import app
import torch._dynamo  # otherwise each of them imports it with its optimizer

calls = 0

def trained(limit, arguments):
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

    cretta.training.train = counted
    app(arguments, standalone_mode=False)

for line in sys.stdin:
    limit, arguments = json.loads(line)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as counts:
        child = os.fork()
        if not child:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            code = 1
            try:
                trained(limit, arguments)
                code = 0
            except BaseException:
                traceback.print_exc()
            counts.write(str(calls))
            for stream in (counts, sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        counts.seek(0)
        print(json.dumps([code, int(counts.read() or 0), output.read()]), flush=True)
"""
TRAINING = ["train", "embedded", "--architecture", "resnet-8-4", "--batch-size", "100", "--epochs", "2"]
OPTIONS = ["--average", "0.3", "--holdout", "100", "--threads", "1", "--backend", "plain", "--save-every", "0"]


@pytest.mark.process
def test_killed_at_ten_random_moments_and_resumed_it_gives_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=tmp_path, stdin=pipe, stdout=pipe, text=True) as trainer:

        def run(output: str, limit: int, *arguments: str) -> tuple[int, int, str]:
            assert trainer.stdin is not None
            assert trainer.stdout is not None
            print(json.dumps([limit, [*arguments, "--output", output]]), file=trainer.stdin, flush=True)
            code, calls, text = json.loads(trainer.stdout.readline())
            return code, calls, text

        code, total, text = run("whole.safetensors", 0, *TRAINING, *OPTIONS)
        assert code == 0, text
        draw = random.Random(0)
        for number in range(KILLS):
            again = (tmp_path / "cut.safetensors.checkpoint").exists()
            how = ["train", "--resume", "--save-every", "0"] if again else [*TRAINING, *OPTIONS]
            code, _, text = run("cut.safetensors", draw.randrange(1, total // (KILLS + 2)), *how)
            assert code == -signal.SIGKILL, f"kill {number}: {text}"
        assert not (tmp_path / "cut.safetensors").exists()
        code, calls, text = run("cut.safetensors", 0, "train", "--resume")
        assert code == 0, text
        assert calls < total  # it did not start over
    expected, weights = load_file(tmp_path / "whole.safetensors"), load_file(tmp_path / "cut.safetensors")
    assert expected.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in expected.items())
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{suffix}" for name in ("whole", "cut") for suffix in ("csv", "png", "safetensors")
    }
