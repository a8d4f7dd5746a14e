"""What of a TENT step of a small network is convolutions: ResNet-20, batches of 1, 8, 32 and 200, one thread.

    python benchmarks/small.py

Processor time of the thread, which other work on the machine changes little; medians. What is outside the convolutions
is divided into

- the kernels for BatchNorm, sum and ReLU,
- what does not depend on the size of the batch: Python, autograd and PyTorch's dispatch, which is what a step on one or
  two images of 8 × 8 pixels takes outside all kernels,
- the rest: passes over memory by PyTorch's operations, and whatever Python takes more between large layers.

At batches of one image BatchNorm blends the batch's statistics with training's, which its own code does, layer by
layer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import cretta
import results
from cretta.accelerate import kernels, operations, winograd
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


def median_step(model: cretta.Adapter, x: Tensor, steps: int, timer: Timer) -> tuple[float, float, float]:
    """Return the median seconds of a step, of its convolutions and of its BatchNorm kernels."""
    for _ in range(3):
        model(x)
    rows = []
    for _ in range(steps):
        timer.seconds = dict.fromkeys(timer.seconds, 0.0)
        begun = time.thread_time()
        model(x)
        rows.append((time.thread_time() - begun, *timer.seconds.values()))
    total, convolutions, norms = (statistics.median(column) for column in zip(*rows, strict=True))
    return total, convolutions, norms


def main() -> None:
    torch.set_num_threads(1)
    timer = Timer()
    by_name = timer.wrap(
        kernels.Library.call, lambda _, name, *rest: "convolutions" if "convolve" in name else "BatchNorm"
    )
    # Replaced in this process, to time them.
    kernels.Library.call = by_name  # type: ignore[method-assign]  # replaced in this process, to time it
    for owner, name in ((nn.Conv2d, "_conv_forward"), (winograd, "plain_convolution")):
        setattr(owner, name, timer.wrap(getattr(owner, name), lambda *args: "convolutions"))
    backward = timer.wrap(operations._Convolution.backward, lambda *args: "convolutions")
    operations._Convolution.backward = staticmethod(backward)  # type: ignore[method-assign]  # likewise
    torch.manual_seed(0)
    net = resnet20().eval()
    with results.printed("breakdown-small"):
        print("            ms of    convo-   outside    BatchNorm, sum,   Python and     the")
        print(" batch  processor   lutions   of them       ReLU kernels     dispatch    rest")
        for size, steps in SIZES.items():
            x, kind = images("test", size), "mixture" if size == 1 else None
            total, *fixed = median_step(cretta.adapt(net, "tent", statistics=kind), x[:2, :, :8, :8], 20, timer)
            dispatch = total - sum(fixed)
            total, convolutions, norms = median_step(cretta.adapt(net, "tent", statistics=kind), x, steps, timer)
            outside = total - convolutions
            parts = [convolutions, outside, norms, dispatch, outside - norms - dispatch]
            columns = zip(parts, (10, 10, 19, 13, 8), strict=True)
            shares = "".join(f"{part / total:{width}.1%}" for part, width in columns)
            print(f"{size:6}{1e3 * total:11.1f}{shares}", flush=True)


if __name__ == "__main__":
    main()
