"""The kernels of our own beside PyTorch's operations, in turns, in one run.

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

from cretta import frugal, native

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
    """PyTorch's time and ours, forward and back."""
    kernels = native.KERNELS
    slope = torch.randn_like(function(x))

    def timed(ours: bool, back: bool) -> Callable[[], object]:
        def choose() -> None:
            native.KERNELS = kernels if ours else None

        choose()
        out = function(x)

        def run() -> None:
            choose()
            if back:
                torch.autograd.grad(out, learns, slope, retain_graph=True)
            else:
                with torch.no_grad():
                    function(x)

        return run

    cases = {f"{ours} {back}": timed(ours, back) for back in (False, True) for ours in (False, True)}
    try:
        return list(milliseconds(cases, rounds).values())
    finally:
        native.KERNELS = kernels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    if native.KERNELS is None:
        sys.exit(f"there are no kernels to compare: {native.MISSING}")
    print(f"{'':38}{'forward':^27}{'back':^27}")
    print(" " * 38 + 2 * f"{'PyTorch':>9}{'ours':>9}{'ratio':>9}")
    for images, channels, side in SHAPES:
        x = torch.randn(images, channels, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).requires_grad_(False)
        norm = nn.BatchNorm2d(channels, track_running_stats=False).eval()
        learns = (x, norm.weight, norm.bias)
        rows = {
            "convolution": compared(partial(frugal.convolve, layer), x, (x,), rounds),
            "BatchNorm, ReLU": compared(partial(frugal.normalise_and_rectify, norm), x, learns, rounds),
        }
        for name, (forward, our_forward, back, our_back) in rows.items():
            what = f"{images} × {channels} × {side} × {side}, {name}"
            numbers = (forward, our_forward, forward / our_forward, back, our_back, back / our_back)
            print(f"{what:38}" + "".join(f"{number:9.2f}" for number in numbers))


if __name__ == "__main__":
    main()
