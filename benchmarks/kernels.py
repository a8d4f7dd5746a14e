"""The custom CPU kernels and PyTorch's operations, in turns, in one run.

    python benchmarks/kernels.py [--rounds 15]

Layers of WRN-40-2 with 200 and with one image of 32 × 32, and of ResNet-18 with 16 images of 224 × 224. Times are
medians in milliseconds, of all paths that this processor has; 4x4 are the larger tiles.
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

import results
from cretta.accelerate import kernels, operations, winograd

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


def forward(x: Tensor, layer: nn.Conv2d, names: list[str]) -> dict[str, Callable[[], object]]:
    """Return the convolution by PyTorch and by each kernel."""
    weight = layer.weight
    runs: dict[str, Callable[[], object]] = {"PyTorch": partial(winograd.plain_convolution, x, weight)}
    return runs | {name: partial(winograd.convolve, x, weight, None, name) for name in names}


def backward(x: Tensor, layer: nn.Conv2d, names: list[str]) -> dict[str, Callable[[], object]]:
    """Return the gradient of its input likewise."""
    weight = layer.weight
    runs: dict[str, Callable[[], object]] = {"PyTorch": partial(winograd.plain_convolution, x, weight, backward=True)}
    return runs | {name: partial(winograd.convolve, x, weight, None, name, backward=True) for name in names}


def norm_steps(x: Tensor, norm: nn.BatchNorm2d, names: list[str]) -> dict[str, Callable[[], object]]:
    """Return BatchNorm with ReLU and its backward pass by PyTorch and by each path."""
    learns, upstream = x.detach().requires_grad_(), torch.ones_like(x)

    def run(setting: str) -> None:
        with kernels.use(setting):
            out = operations.batch_norm_relu(norm, learns)
            torch.autograd.grad(out, (learns, norm.weight, norm.bias), upstream)

    runs: dict[str, Callable[[], object]] = {"PyTorch": partial(run, "off")}
    return runs | {name: partial(run, name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    if kernels.missing() is not None:
        sys.exit(f"there are no kernels to compare: {kernels.missing()}")
    with results.printed("kernels"):
        show(rounds)


@torch.no_grad()
def show(rounds: int) -> None:
    """Print a row for each operation on each shape."""
    paths = list(kernels.paths())
    columns = ["PyTorch", *paths, *(path + winograd.LARGE_TILES for path in paths)]
    print(" " * 46 + "".join(f"{column:>12}" for column in columns))
    for images, channels, side in SHAPES:
        x = torch.randn(images, channels, side, side).contiguous(memory_format=torch.channels_last)
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).requires_grad_(False)
        norm = nn.BatchNorm2d(channels, track_running_stats=False).eval()
        rows = {
            "convolution": forward(x, layer, columns[1:]),
            "convolution, backward": backward(x, layer, columns[1:]),
            "BatchNorm, ReLU, both ways": norm_steps(x, norm, paths),
        }
        for name, runs in rows.items():
            with torch.set_grad_enabled("both" in name):
                times = milliseconds(runs, rounds)
            cells = "".join(f"{times[column]:12.2f}" if column in times else " " * 12 for column in columns)
            print(f"{f'{images} × {channels} × {side} × {side}, {name}':46}{cells}".rstrip())


if __name__ == "__main__":
    main()
