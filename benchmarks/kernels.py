"""The custom CPU kernels and PyTorch's operations, in turns, in one run.

    python benchmarks/kernels.py [--rounds 15]

Layers of WRN-40-2 with 200 and with one image of 32 × 32, and of ResNet-18 with 16 images of 224 × 224. Times are
medians in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from cretta.accelerate import kernels, operations

SHAPES = [
    (200, 32, 32),
    (200, 64, 16),
    (200, 128, 8),
    (1, 32, 32),
    (1, 128, 8),
    (16, 64, 56),
    (16, 128, 28),
    (16, 256, 14),
    (16, 512, 7),
]
"""Images, channels, height and width."""


def milliseconds(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median of each, which take turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + 2):
        for name, function in functions.items():
            begun = time.perf_counter()
            function()
            if turn > 1:
                times[name].append(time.perf_counter() - begun)
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def compared(function: Callable[[Tensor], Tensor], x: Tensor, learns: tuple[Tensor, ...], rounds: int) -> list[float]:
    """PyTorch's time and the kernels', forward and backward."""
    gradient = torch.randn_like(function(x))

    def timed(layer: Callable[[Tensor], Tensor], backward: bool) -> Callable[[], object]:
        out = layer(x)

        def run() -> None:
            if backward:
                torch.autograd.grad(out, learns, gradient, retain_graph=True)
            else:
                with torch.no_grad():
                    layer(x)

        return run

    layers = {"PyTorch": kernels.without(function), "kernels": function}
    cases = {
        f"{name} {backward}": timed(layer, backward) for backward in (False, True) for name, layer in layers.items()
    }
    return list(milliseconds(cases, rounds).values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    if kernels.missing() is not None:
        sys.exit(f"there are no kernels to compare: {kernels.missing()}")
    print(f"{'':38}{'forward':^27}{'backward':^27}")
    print(" " * 38 + 2 * f"{'PyTorch':>9}{'kernels':>9}{'ratio':>9}")
    for images, channels, side in SHAPES:
        x = torch.randn(images, channels, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).requires_grad_(False)
        norm = nn.BatchNorm2d(channels, track_running_stats=False).eval()
        learns = (x, norm.weight, norm.bias)
        rows = {
            "convolution": compared(partial(operations.convolve, layer), x, (x,), rounds),
            "BatchNorm, ReLU": compared(partial(operations.batch_norm_relu, norm), x, learns, rounds),
        }
        for name, (forward, fast_forward, backward, fast_backward) in rows.items():
            what = f"{images} × {channels} × {side} × {side}, {name}"
            numbers = (forward, fast_forward, forward / fast_forward, backward, fast_backward, backward / fast_backward)
            print(f"{what:38}" + "".join(f"{number:9.2f}" for number in numbers))


if __name__ == "__main__":
    main()
