"""The guard on healthy and failing runs: those that its defaults come from, and others it was not tuned on.

    python benchmarks/guard.py --networks FOLDER [--images 250]

A run fails if adaptation costs more than 10 points of accuracy against the better of the source model and the source
model with batch statistics, over its second half; it is healthy if it costs at most 3. What is planned as failing or
healthy and turns out otherwise is shown, and not counted. The tuning runs take the four validation corruptions only.
Rows are saved in benchmarks/results/guard.json; run the same command again to continue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import cretta
from cretta.data import VALIDATION_CORRUPTIONS, corrupt
from cretta.monitor.guard import GuardState
from monitoring import Row, accuracy, dataset, follow, labeled_buffer, network, parser, pixels, run_rows

NETWORK = "resnet-20-cifar10"
BATCH = 25
HEALTHY = {"tent": 1e-3, "cretta": 1e-3, "shot": 1e-3, "eta": 1e-3}
FAILING = {"tent": 0.1, "cretta": 0.1, "shot": 0.1, "eta": 0.3}
"""Learning rates."""
TEST_SHIFTS = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
SIGNALS = ("margin", "flips", "classes", "drift")


def batches_of(shift: str, severity: int, order: str, count: int, size: int) -> tuple[list[Tensor], list[Tensor]]:
    source = dataset("cifar10", "test", None)
    index = np.arange(count)
    if order == "sorted":
        index = np.argsort(source.labels[:count], kind="stable")
    images, labels = source.images[index], torch.from_numpy(source.labels[index])
    if shift != "clean":
        images = corrupt(images, shift, severity, seed=0)
    return list(pixels(images).split(size)), list(labels.split(size))


def signals(guard: GuardState) -> list[float]:
    """The four numbers that the guard compares with its limits, over the window."""
    assert guard.averages is not None
    classes = (len(guard.averages) - 6) // 2
    mix, reference, rest = guard.averages.split([classes, classes, 6])
    own, mean, square, agreement, confidence, lost = rest.tolist()
    entropies = [float(torch.special.entr(p).sum()) for p in (mix, reference)]
    drift = (own - mean) / max(square - mean**2, 1.0) ** 0.5
    return [2 * confidence - 1 - agreement, lost, float(np.exp(entropies[0] - entropies[1])), abs(drift)]


def measure(
    method: str, lr: float, shift: str, severity: int, order: str, size: int, planned: str, folder: Path, count: int
) -> Row:
    net = network(NETWORK, folder)
    batches, labels = batches_of(shift, severity, order, count, size)
    model = cretta.adapt(
        net, method, buffer=labeled_buffer("cifar10", None), lr=lr, statistics="batch", guard=cretta.Guard()
    )
    alarms: list[str] = []
    trace: list[list[float]] = []

    def note(record: cretta.Record) -> None:
        alarms.append(record.guard)
        assert model._guard is not None
        trace.append(signals(model._guard))

    model.on_step(note)
    logits = follow(model, batches)
    half = len(batches) // 2
    own = accuracy(logits[half:], labels[half:])
    unadapted = [
        accuracy(follow(cretta.adapt(net, other), batches)[half:], labels[half:]) for other in ("source", "bn_adapt")
    ]
    lost = max(unadapted) - own
    first = next((number for number, text in enumerate(alarms, 1) if text), None)
    return {
        "planned": planned,
        "kind": "failing" if lost > 0.1 else "healthy" if lost <= 0.03 else "between",
        "accuracy": own,
        "source": unadapted[0],
        "bn_adapt": unadapted[1],
        "first alarm": first,
        "alarm": alarms[first - 1] if first else "",
        "batches": len(batches),
        "signals": np.round(trace, 4).tolist(),
    }


def main() -> None:
    arguments = parser(__doc__, images=250).parse_args()
    torch.set_num_threads(arguments.threads)
    cases: dict[str, Callable[[], Row]] = {}

    def add(group: str, planned: str, method: str, lr: float, shift: str, severity: int, order: str, size: int) -> None:
        key = f"{group} · {planned} · {method} lr {lr:g} · {shift}/{severity} · {order} {size}"
        count = arguments.images * size // BATCH if size < BATCH else arguments.images
        cases[key] = partial(
            measure, method, lr, shift, severity, order, size, planned, arguments.networks, max(count, 12 * size)
        )

    for group, shifts in (("tuning", VALIDATION_CORRUPTIONS), ("test", TEST_SHIFTS)):
        for number, shift in enumerate(shifts):
            for method in HEALTHY:
                add(group, "healthy", method, HEALTHY[method], shift, (5, 3)[number % 2], "iid", BATCH)
                add(group, "failing", method, FAILING[method], shift, (5, 3)[number % 2], "iid", BATCH)
        for method in ("tent", "cretta"):
            add(group, "failing", method, 1e-3, "clean", 0, "sorted", BATCH if group == "test" else 20)
            add(group, "healthy", method, 1e-3, "clean", 0, "iid", BATCH if group == "test" else 20)
    rows = run_rows(arguments.output / "guard.json", cases, arguments.only)
    for group in ("tuning", "test"):
        for kind in ("healthy", "failing"):
            chosen = [r for r in rows if r["key"].startswith(group) and r["kind"] == kind]
            early = [r for r in chosen if (r.get("first alarm") or 11) <= 10]
            print(f"{group}: {len(early)} of {len(chosen)} {kind} runs have an alarm within 10 batches")
            for index, name in enumerate(SIGNALS):
                values = [batch[index] for row in chosen for batch in row["signals"][1:]]
                print(f"    {name}: {min(values, default=math.nan):.3f} to {max(values, default=math.nan):.3f}")
    for row in rows:
        if row["planned"] != row["kind"] or (row["kind"] == "failing") != bool(row.get("first alarm")):
            print(f"{row['key']}: {row['kind']}, accuracy {row['accuracy']:.2f}, alarm {row.get('first alarm')}")


if __name__ == "__main__":
    main()
