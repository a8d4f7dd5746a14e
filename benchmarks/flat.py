"""Whether the time and the memory of a step stay the same over a long stream.

    python benchmarks/flat.py [--batches 2000] [--method tent --method cretta …]

A small network, so that what would grow is not hidden by what does not. Compared are the medians of the batches after
the first tenth with those of the last tenth; growing by more than a tenth in time, or by a megabyte in live tensors or
eight in the process, ends the run with an error. Methods take turns, batch by batch, so that a busy machine slows all;
TEA takes two steps of sampling in the place of twenty.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import sys
import time
import warnings
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

import cretta
import results
from cretta.models import WideResNet

SIZE = 8
MORE_TIME, MORE_TENSORS, MORE_PROCESS = 1.1, 1.0, 8.0


def live_megabytes() -> float:
    """Of all tensors that Python knows of, each storage once."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # things that complain when asked what they are
        tensors = [thing for thing in gc.get_objects() if isinstance(thing, Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values()) / 2**20


def process_megabytes() -> float:
    """The most memory that the process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--method", action="append", choices=cretta.methods.names())
    arguments = parser.parse_args()
    if arguments.batches < 100:
        parser.error(f"--batches {arguments.batches}: give at least 100, so that a tenth says something.")
    torch.set_num_threads(1)  # two threads on small tensors mostly wait for each other
    torch.manual_seed(0)
    net = WideResNet(10, 1).eval()
    buffer = cretta.SourceBuffer(torch.rand(200, 3, 8, 8), augment="none")
    names = arguments.method or [name for name in cretta.methods.names() if name != "tea"] + ["tea"]
    own: dict[str, dict[str, Any]] = {"tea": {"replay": 200, "sampling_steps": 2}}
    models = {name: cretta.adapt(net, name, buffer=buffer, **own.get(name, {})) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    tenth = arguments.batches // 10
    generator = torch.Generator().manual_seed(1)
    for number in track(range(arguments.batches), "batches"):
        if number == tenth:
            tensors, process = live_megabytes(), process_megabytes()
        x = torch.rand(SIZE, 3, 8, 8, generator=generator)
        for name, model in models.items():
            begun = time.perf_counter()
            model(x)
            seconds[name].append(time.perf_counter() - begun)
    more_tensors, more_process = live_megabytes() - tensors, process_megabytes() - process
    with results.printed("flat"):
        print(f"{arguments.batches} batches of {SIZE} images of 8 × 8, WRN-10-1")
        print(f"{'':12}{'first ms':>10}{'early ms':>10}{'late ms':>10}{'ratio':>8}")
        grows = []
        for name, taken in seconds.items():
            early, late = statistics.median(taken[tenth : 2 * tenth]), statistics.median(taken[-tenth:])
            print(f"{name:12}{1e3 * taken[0]:10.2f}{1e3 * early:10.2f}{1e3 * late:10.2f}{late / early:8.2f}")
            grows += [f"{name} takes {late / early:.2f} times as long"] if late > MORE_TIME * early else []
        print(f"live tensors: {more_tensors:+.2f} MB; process: {more_process:+.1f} MB")
        grows += [f"{more_tensors:.1f} MB more tensors"] if more_tensors > MORE_TENSORS else []
        grows += [f"the process has {more_process:.1f} MB more"] if more_process > MORE_PROCESS else []
    if grows:
        sys.exit("not flat: " + "; ".join(grows))


if __name__ == "__main__":
    main()
