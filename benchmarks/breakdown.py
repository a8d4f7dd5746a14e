"""Where the time of a CreTTA step goes, and how far that is from what the machine can do.

    python benchmarks/breakdown.py [--preset fast] [--steps 5] [--trace step.json]

WRN-40-2, batches of 200, on the CPU. The yardstick is a large matrix product, the best of several before and
after the steps. ``--trace`` writes a file for a flame graph, to be opened in chrome://tracing.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import cretta
from cretta.accelerate import missing_kernels
from cretta.data import corrupt, embedded
from cretta.metrics import count_operations

KINDS = {
    "convolutions": ("cretta_convolve", "mkldnn_convolution", "convolution_overrideable", "thnn_conv2d"),
    "convolutions, backward": ("cretta_convolve_backward", "convolution_backward"),
    "BatchNorm, ReLU": ("cretta_batch_norm_relu", "native_batch_norm", "clamp_min", "clamp_min_", "relu", "relu_"),
    "BatchNorm, ReLU, backward": (
        "cretta_batch_norm_relu_backward",
        "native_batch_norm_backward",
        "threshold_backward",
        "addcmul",  # recomputes the ReLU mask
    ),
    "sums": ("add", "add_"),
}
"""Operations by what they are for, the custom CPU kernels first."""


def fastest() -> float:
    """Return GFLOP per second of a large matrix product."""
    a, b = torch.rand(4096, 4096), torch.rand(4096, 4096)
    best = float("inf")
    for _ in range(4):
        begun = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - begun)
    return float(2 * 4096**3 / best / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=("fast",))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--trace", type=Path)
    arguments = parser.parse_args()
    images = corrupt(embedded("test").images[:200], "gaussian_noise", severity=5, seed=0)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    buffer = cretta.SourceBuffer(embedded("train").images[:400], augment="none")
    model = cretta.adapt(cretta.models.load("wrn-40-2-cifar10"), "cretta", buffer=buffer, preset=arguments.preset)
    for _ in range(math.ceil(len(buffer) / (len(x) * model.options.source_fraction))):
        model(x)  # until E_φ of all source samples is cached
    limit = fastest()
    begun = time.perf_counter()
    for _ in range(arguments.steps):
        model(x)
    step = (time.perf_counter() - begun) / arguments.steps
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(arguments.steps):
            model(x)
    if arguments.trace is not None:
        found.export_chrome_trace(str(arguments.trace))
    spent: dict[str, float] = defaultdict(float)
    total = 0.0
    for event in found.key_averages():
        seconds = event.self_cpu_time_total / 1e6 / arguments.steps
        name = event.key.removeprefix("aten::")
        total += seconds
        spent[next((kind for kind, names in KINDS.items() if name in names), "the rest")] += seconds
    operations: Any = count_operations(model, x[:20], scale_to=200)[0] / 1e9
    products = spent["convolutions"] + spent["convolutions, backward"]
    print(f"custom CPU kernels: {missing_kernels() or 'in use'}")
    print(f"{'':25}{'ms per step':>12}{'share':>8}")
    for kind, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"{kind:25}{1e3 * seconds:12.0f}{seconds / total:8.1%}")
    print(f"{'all, while profiled':25}{1e3 * total:12.0f}{1:8.1%}")
    print(f"{'a step, not profiled':25}{1e3 * step:12.0f}")
    limit = max(limit, fastest())
    speed = operations / products
    print(f"{operations:.0f} GFLOP in convolutions, counted as direct convolutions: {speed:.0f} per second")
    direct = 1e3 * operations / limit
    print(f"a matrix product: {limit:.0f} per second; at that speed, the convolutions of a step alone would take")
    print(f"{direct:.0f} ms as direct convolutions, and {16 / 36 * direct:.0f} ms if all used Winograd's algorithm")


if __name__ == "__main__":
    main()
