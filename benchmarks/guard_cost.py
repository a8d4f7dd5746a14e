"""What the guard costs per step, in processor time, as ratios of steps with and without it in turns.

    python benchmarks/guard_cost.py [--network wrn-40-2-cifar10] [--rounds 6] [--batch-size 200]

The goal for CreTTA: at most 25 % with a check of every batch, at most 3 % with one in ten. One thread: its processor
time hardly depends on what else the machine does. In each round, one step without a guard, one with a check, and one
of a guard that does not check this batch follow each other. Ratios of the least times are saved in
benchmarks/results/cost.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import cretta
from monitoring import RESULTS, SHIPPED, Row, dataset, labeled_buffer, network, pixels

METHODS = ("cretta", "tent")
NEVER = 1_000_000


def seconds(model: cretta.Adapter, x: torch.Tensor) -> float:
    begun = time.process_time()
    model(x)
    return time.process_time() - begun


def measure(name: str, folder: Path, method: str, rounds: int, x: torch.Tensor) -> list[Row]:
    def adapter(every: int | None) -> cretta.Adapter:
        guard = None if every is None else cretta.Guard(every=every, classes=1e-6, drift=1e6, flips=1.0, margin=1.0)
        buffer = labeled_buffer("cifar10", None, count=len(x))
        return cretta.adapt(network(name, folder), method, buffer=buffer, lr=1e-6, guard=guard)

    models = [adapter(None), adapter(1), adapter(NEVER)]
    for model in models:
        model(x)
    times = [[seconds(models[(turn + i) % 3], x) for i in range(3)] for turn in range(rounds)]
    # The order changes from round to round. Other processes can only add time, by the caches they share.
    plain, checked, unchecked = (min(row[(i - turn) % 3] for turn, row in enumerate(times)) for i in range(3))
    checked, unchecked = checked / plain, unchecked / plain
    more = {"every batch": checked - 1, "one batch in ten": (checked + 9 * unchecked) / 10 - 1}
    common = {"network": name, "method": method, "batch": len(x)}
    return [{**common, "guard": guard, "more": value} for guard, value in more.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default=SHIPPED)
    parser.add_argument("--networks", type=Path, default=Path(), help="folder of trained networks")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x = pixels(dataset("cifar10", "test", None).images[: arguments.batch_size])
    rows = [r for m in METHODS for r in measure(arguments.network, arguments.networks, m, arguments.rounds, x)]
    for row in rows:
        print(f"{row['method']}, a check of {row['guard']}: {100 * row['more']:+.1f} % per step")
    (arguments.output / "cost.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
