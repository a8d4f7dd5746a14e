"""What of a TENT step of a small network is convolutions: ResNet-20, batches of 1, 8, 32 and 200, one thread.

    python benchmarks/small.py

Processor time of the thread, which other work on the machine changes little; medians. At batches of one image BatchNorm
blends the batch's statistics with training's, which its own code does, layer by layer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import cretta
import results
from cretta.accelerate import kernels, operations
from networks import images, resnet20

SIZES = {1: 20, 8: 12, 32: 8, 200: 3}
"""Steps that are timed, by batch size."""


class Timer:
    """Adds up the processor time of functions, by kind; a function inside another one is not counted again."""

    def __init__(self) -> None:
        self.seconds = {"convolutions": 0.0, "BatchNorm": 0.0}
        self._busy = False

    def wrap(self, function: Callable[..., Any], kind: Callable[..., str]) -> Callable[..., Any]:
        """Return ``function`` with its time added to ``kind`` of its arguments."""

        def timed(*args: Any, **named: Any) -> Any:
            if self._busy:
                return function(*args, **named)
            self._busy, begun = True, time.thread_time()
            try:
                return function(*args, **named)
            finally:
                self.seconds[kind(*args)] += time.thread_time() - begun
                self._busy = False

        return timed


def main() -> None:
    torch.set_num_threads(1)
    timer = Timer()
    by_name = timer.wrap(
        kernels.Library.call, lambda _, name, *rest: "convolutions" if "convolve" in name else "BatchNorm"
    )
    forward = timer.wrap(nn.Conv2d._conv_forward, lambda *args: "convolutions")
    backward = timer.wrap(operations._Convolution.backward, lambda *args: "convolutions")
    kernels.Library.call = by_name  # type: ignore[method-assign]  # replaced in this process, to time it
    nn.Conv2d._conv_forward = forward  # type: ignore[method-assign]  # likewise
    operations._Convolution.backward = staticmethod(backward)  # type: ignore[method-assign]  # likewise
    torch.manual_seed(0)
    net = resnet20().eval()
    with results.printed("breakdown-small"):
        print(f"{'batch':>6}{'ms of processor':>17}{'convolutions':>14}{'BatchNorm kernels':>19}{'the rest':>10}")
        for size, steps in SIZES.items():
            x = images("test", size)
            model = cretta.adapt(net, "tent", statistics="mixture" if size == 1 else None)
            for _ in range(3):
                model(x)
            rows = []
            for _ in range(steps):
                timer.seconds = dict.fromkeys(timer.seconds, 0.0)
                begun = time.thread_time()
                model(x)
                rows.append((time.thread_time() - begun, *timer.seconds.values()))
            total, convolutions, norms = (statistics.median(column) for column in zip(*rows, strict=True))
            rest = total - convolutions - norms
            print(
                f"{size:6}{1e3 * total:17.1f}{convolutions / total:14.1%}{norms / total:19.1%}{rest / total:10.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
