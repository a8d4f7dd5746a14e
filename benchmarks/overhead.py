"""What the bench's bookkeeping costs: runs through the bench against plain loops over the same adapters and batches.

    python benchmarks/overhead.py [--images 1000] [--rounds 3]

Both are done in turns in one process. The bench measures every batch, counts operations once for each method, meters
the memory of one batch, and writes a file for each run. Images are corrupted before either begins.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time

import torch

from cretta.bench import Buffer, Run, Store, Workshop, run_all

METHODS = ("source", "tent", "cretta")


def plain(run: Run, workshop: Workshop) -> float:
    """Seconds of the loop that a user would write."""
    domain = workshop.domain(run, run.domains[0])
    model = workshop.adapter(run)
    stream = run.schedule([domain.count], domain.labels.numpy())
    begun = time.perf_counter()
    for batch in stream:
        model(domain.batch(torch.from_numpy(batch.indices)))
    return time.perf_counter() - begun


def through_the_bench(run: Run, workshop: Workshop) -> float:
    """Seconds of the same by the bench, into a new store."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        list(run_all([run], Store(folder), workshop))
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    base = Run(
        data="embedded",
        domains=("gaussian_noise/5",),
        model="wrn-40-2-cifar10",
        images=arguments.images,
        preset=None,
        buffer=Buffer(size=200),
    )
    workshop = Workshop()
    print(f"{arguments.images} images, batches of {base.batch_size}, median of {arguments.rounds} rounds")
    print(f"{'method':10}{'plain s':>10}{'bench s':>10}{'overhead %':>12}{'first time s':>14}")
    for method in METHODS:
        run = dataclasses.replace(base, method=method)
        workshop.check(run)
        plain(run, workshop)  # images, energies of source samples, libraries
        first = through_the_bench(run, workshop)
        pairs = [(plain(run, workshop), through_the_bench(run, workshop)) for _ in range(arguments.rounds)]
        overhead = statistics.median(100 * (bench / loop - 1) for loop, bench in pairs)
        loop, bench = (statistics.median(values) for values in zip(*pairs, strict=True))
        print(f"{method:10}{loop:10.2f}{bench:10.2f}{overhead:12.2f}{first:14.2f}")


if __name__ == "__main__":
    main()
