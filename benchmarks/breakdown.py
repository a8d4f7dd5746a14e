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
    "convolutions, back": ("cretta_convolve_backward", "convolution_backward"),
    "BatchNorm, ReLU": ("cretta_batch_norm_relu", "native_batch_norm", "clamp_min", "clamp_min_", "relu", "relu_"),
    "BatchNorm, ReLU, back": (
        "cretta_batch_norm_relu_backward",
        "native_batch_norm_backward",
        "threshold_backward",
        "addcmul",  # tells again where a ReLU was open
    ),
    "sums": ("add", "add_"),
}
"""Operations by what they are for, the custom CPU kernels first."""


def fastest() -> float:
    """Thousands of millions of operations a second in a large matrix product."""
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
        model(x)  # until E_φ of all source samples is kept
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
    products = spent["convolutions"] + spent["convolutions, back"]
    print(f"custom CPU kernels: {missing_kernels() or 'in use'}")
    print(f"{'':22}{'ms a step':>10}{'share':>8}")
    for kind, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"{kind:22}{1e3 * seconds:10.0f}{seconds / total:8.1%}")
    print(f"{'all, while profiled':22}{1e3 * total:10.0f}{1:8.1%}")
    print(f"{'a step, not profiled':22}{1e3 * step:10.0f}")
    limit = max(limit, fastest())
    print(f"{operations:.0f} GFLOP in convolutions, counted the direct way: {operations / products:.0f} a second")
    direct = 1e3 * operations / limit
    print(f"a matrix product: {limit:.0f} a second; at that speed, and with nothing else to do, a step would take")
    print(f"{direct:.0f} ms the direct way, and {16 / 36 * direct:.0f} ms if all convolutions were Winograd's")


if __name__ == "__main__":
    main()
