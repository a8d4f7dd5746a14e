"""What the bench's bookkeeping costs, in percent of the steps that it books.

    python benchmarks/overhead.py [--images 1000] [--rounds 3]

Two parts. What happens between steps (measuring each batch, resetting the adapter, fetching images, writing a file
for each run) is the time of a run less that of its steps, both of the same run: whether the machine was slow then makes
no difference. The second batch of a run is slower, for its memory is metered: that is work for each operation,
whatever the size of the batch, and is taken from steps on a few images with and without, in turns. Comparing whole runs
with plain loops in place of this cannot tell so little: on shared cores no loop takes the same time twice.

The first run of a method also counts its operations, once; that is shown apart. Images are corrupted and fingerprints
taken before.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext

import torch

from cretta.bench import Buffer, Domain, Run, RunContext, Store, run_all
from cretta.metrics import peak_meter

METHODS = ("source", "tent", "cretta")
LIMIT = 2.0
"""Percent."""
BUFFER = 200
FEW = 4
PAIRS = 30


def through_the_bench(run: Run, context: RunContext) -> tuple[float, float]:
    """Seconds of a run into a new store, and of its steps."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        ((_, result),) = run_all([run], Store(folder), context)
        return time.perf_counter() - begun, sum(row.seconds for row in result.rows)


def of_the_meter(run: Run, context: RunContext) -> float:
    """Seconds that metering adds to a step."""
    domain = context.domain(run, run.domains[0])
    few = domain.batch(torch.arange(FEW), context.device)
    model = context.adapter(run)
    for _ in range(BUFFER // FEW + 2):  # until energies of source samples are kept
        model(few)
    extra = []
    for _ in range(PAIRS):
        seconds = []
        for meter in (nullcontext(), peak_meter(context.device)):
            begun = time.perf_counter()
            with meter:
                model(few)
            seconds.append(time.perf_counter() - begun)
        extra.append(seconds[1] - seconds[0])
    return statistics.median(extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    base = Run(
        data="embedded",
        domains=(Domain("gaussian_noise", 5),),
        model="wrn-40-2-cifar10",
        images=arguments.images,
        preset=None,
        buffer=Buffer(size=BUFFER),
    )
    context = RunContext()
    print(f"{arguments.images} images, batches of {base.batch_size}, median of {arguments.rounds} rounds")
    print(f"{'method':10}{'steps s':>10}{'between s':>12}{'meter s':>10}{'overhead %':>12}{'once, first s':>15}")
    fine = True
    for method in METHODS:
        run = dataclasses.replace(base, method=method)
        context.key(run)
        context.domain(run, run.domains[0]).batch(torch.arange(1), context.device)
        whole, steps = through_the_bench(run, context)
        first = whole - steps
        meter = of_the_meter(run, context)
        rounds = [through_the_bench(run, context) for _ in range(arguments.rounds)]
        between = statistics.median(whole - steps for whole, steps in rounds)
        unmetered = statistics.median(steps for _, steps in rounds) - meter
        overhead = 100 * (between + meter) / unmetered
        fine &= overhead < LIMIT
        print(f"{method:10}{unmetered:10.2f}{between:12.3f}{meter:10.3f}{overhead:12.2f}{first:15.2f}", flush=True)
    if not fine:
        sys.exit(f"bookkeeping costs {LIMIT} % or more")


if __name__ == "__main__":
    main()
