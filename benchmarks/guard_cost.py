"""What the guard costs per step, as a ratio of steps with and without it in turns.

    python benchmarks/guard_cost.py [--rounds 3] [--batch-size 100]

The goal for CreTTA: at most 25 % with a check of every batch, at most 3 % with one in ten. The median over rounds of
ten steps each is saved in benchmarks/results/cost.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

import cretta
from monitoring import RESULTS, SHIPPED, dataset, labeled_buffer, network, pixels

METHODS = ("cretta", "tent")
GUARDS = {"every batch": 1, "one batch in ten": 10}
STEPS = 10


def seconds(model: cretta.Adapter, x: torch.Tensor) -> float:
    begun = time.perf_counter()
    for _ in range(STEPS):
        model(x)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=100)
    arguments = parser.parse_args()
    net = network(SHIPPED, RESULTS)
    x = pixels(dataset("cifar10", "test", None).images[: arguments.batch_size])
    rows = []
    for method in METHODS:
        buffer = labeled_buffer("cifar10", None, count=200)
        guards = [None, *(cretta.Guard(every=every, classes=1e-6, drift=1e6, flips=1.0, margin=1.0)
                          for every in GUARDS.values())]  # fmt: skip
        models = [cretta.adapt(net, method, buffer=buffer, lr=1e-6, guard=guard) for guard in guards]
        for model in models:
            model(x)
        rounds = [[seconds(model, x) for model in models] for _ in range(arguments.rounds)]
        for number, name in enumerate(GUARDS, 1):
            more = statistics.median(times[number] / times[0] for times in rounds) - 1
            rows.append(
                {"key": f"{method} · {name}", "network": SHIPPED, "method": method, "guard": name, "more": more}
            )
            print(f"{method}, a check of {name}: {100 * more:+.1f} % per step")
    (RESULTS / "cost.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
