"""Where the time of a step goes, and how far that is from what the machine can do.

    python benchmarks/breakdown.py [--network wrn] [--method cretta] [--preset fast] [--steps 5] [--trace step.json]

On the CPU, with the networks of benchmarks/networks.py. The time of each kind of operation is measured by PyTorch's
profiler; what the same number of steps takes longer, without the profiler, is the Python code around them. The
yardstick is a large matrix product, the best of several before and after the steps. ``--trace`` writes a file for a
flame graph, to be opened in chrome://tracing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import cretta
import results
from cretta.metrics import count_operations
from networks import CASES

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
    parser.add_argument("--network", choices=tuple(CASES), default="wrn")
    parser.add_argument("--method", choices=cretta.methods.names(), default="cretta")
    parser.add_argument("--preset", choices=("fast",))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--trace", type=Path)
    arguments = parser.parse_args()
    case = CASES[arguments.network]
    buffer = cretta.SourceBuffer(case.source(), augment="none")
    model = cretta.adapt(case.network(), arguments.method, buffer=buffer, preset=arguments.preset)
    with results.printed(f"breakdown-{arguments.network}-{arguments.method}-{arguments.preset or 'default'}"):
        show(case.title, model, case.batches()[0], arguments.steps, arguments.trace)


def show(title: str, model: cretta.Adapter[Any], x: torch.Tensor, steps: int, trace: Path | None) -> None:
    """Profile steps and print the table."""
    for _ in range(max(3, -(-len(model.buffer or ()) // len(x)))):
        model(x)  # until E_φ of all source samples is cached, and everything is chosen
    limit = fastest()
    seconds = []
    for _ in range(3 * steps):
        begun = time.perf_counter()
        model(x)
        seconds.append(time.perf_counter() - begun)
    step = statistics.median(seconds)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(steps):
            model(x)
    if trace is not None:
        profiled.export_chrome_trace(str(trace))
    spent: dict[str, float] = defaultdict(float)
    for event in profiled.key_averages():
        name = event.key.removeprefix("aten::")
        kind = next((kind for kind, names in KINDS.items() if name in names), "other operations")
        spent[kind] += event.self_cpu_time_total / 1e6 / steps
    spent["Python around the operations"] = max(0.0, step - sum(spent.values()))
    products = spent["convolutions"] + spent["convolutions, backward"]
    print(f"{title}, {model.name}; {model.backend}")
    print(f"{'':32}{'ms per step':>12}{'share':>8}")
    for kind, taken in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"{kind:32}{1e3 * taken:12.2f}{taken / sum(spent.values()):8.1%}")
    print(f"{'a step, not profiled':32}{1e3 * step:12.2f}")
    print(f"{'outside the convolutions':32}{1e3 * (step - products):12.2f}{1 - products / step:8.1%}")
    few = x[: min(20, len(x))]
    operations = count_operations(model, few, scale_to=len(x))[0] / 1e9
    limit = max(limit, fastest())
    speed = operations / products
    print(f"{operations:.1f} GFLOP in convolutions, counted as direct convolutions: {speed:.0f} per second")
    direct = 1e3 * operations / limit
    print(f"a matrix product: {limit:.0f} per second; at that speed, the convolutions of a step alone would take")
    print(f"{direct:.1f} ms as direct convolutions, and {16 / 36 * direct:.1f} ms if all used F(2 × 2, 3 × 3)")


if __name__ == "__main__":
    main()
