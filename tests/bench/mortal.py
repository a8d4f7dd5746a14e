"""A network whose process is killed in the middle of a run, once for each file that asks for it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import tiny
import torch
from torch import Tensor, nn

CALLS = 7
"""The forward pass at which a process is killed: it has finished some batches then."""


class Mortal(tiny.Network):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls % CALLS == 0 and "CRETTA_KILL" in os.environ:
            request = Path(os.environ["CRETTA_KILL"])
            if (request / "wait").exists():  # until the test has killed what it wants to kill
                (request / f"waits-{os.getpid()}").touch()
                while (request / "wait").exists():
                    time.sleep(0.05)
            try:
                (request / "kill").unlink()
            except FileNotFoundError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Mortal().eval()
