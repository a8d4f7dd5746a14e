"""Do no harm: hostile streams × networks × methods, with statistics="auto" and the guard.

    python benchmarks/harm.py --networks FOLDER --root DATASETS [--images 160]

For each stream: accuracy on its usable images beside that of the source model, and accuracy on clean images afterwards
beside that before. The goal: never more than 2 points below the source model, and within 1 point of before. Rows are
saved in benchmarks/results/harm.json; run the same command again to continue.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import cretta
from cretta.data import VALIDATION_CORRUPTIONS, ArrayDataset, corrupt
from monitoring import SHIPPED, Row, accuracy, dataset, follow, labeled_buffer, network, parser, pixels, run_rows

NETWORKS = {"resnet-20-cifar10": "cifar10", "resnet-20-cifar100-smoothed": "cifar100", SHIPPED: "cifar10"}
METHODS = ("cretta", "tent", "shot")
UNUSABLE = ("constant", "noise", "black", "0-255")
STREAMS = (
    "clean", "batch 1", "batch 4", "sorted", "one class", "duplicated", "inverted", "mixed shifts", "changing shifts",
    *UNUSABLE,
)  # fmt: skip
BATCH = 40
EVALUATED = 200

Batch = tuple[Tensor, Tensor, bool]
"""Images, labels, and whether they are usable."""


def stream(kind: str, source: ArrayDataset, count: int) -> list[Batch]:
    images, labels = source.images[:count], torch.from_numpy(source.labels[:count])
    size = {"batch 1": 1, "batch 4": 4}.get(kind, BATCH)
    if kind == "sorted":
        order = np.argsort(source.labels[:count], kind="stable")
        images, labels = images[order], labels[torch.from_numpy(order)]
    elif kind == "one class":
        chosen = np.flatnonzero(source.labels == source.labels[0])[:count]
        images, labels = source.images[chosen], torch.from_numpy(source.labels[chosen])
    elif kind == "mixed shifts":
        shifted = [corrupt(images, name, 5, seed=0) for name in VALIDATION_CORRUPTIONS]
        images = np.stack([shifted[i % len(shifted)][i] for i in range(count)])
    elif kind == "changing shifts":
        names = VALIDATION_CORRUPTIONS
        parts = [corrupt(part, n, 5, seed=0) for n, part in zip(names, np.array_split(images, len(names)), strict=True)]
        images = np.concatenate(parts)
    x = pixels(images)
    if kind == "inverted":
        x = 1 - x
    batches = [(a, b, True) for a, b in zip(x.split(size), labels.split(size), strict=True)]
    if kind == "duplicated":
        return [(a[:1].repeat(size, 1, 1, 1), b[:1].repeat(size), True) for a, b, _ in batches]
    if kind in UNUSABLE:
        return [batch for a, b, _ in batches for batch in ((unusable(kind, a), b, False), (a, b, True))]
    return batches


def unusable(kind: str, x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return {
        "constant": x.mean((1, 2, 3), keepdim=True).expand_as(x).contiguous(),
        "noise": torch.rand(x.shape, generator=generator),
        "black": torch.zeros_like(x),
        "0-255": 255 * x,
    }[kind]


def measure(name: str, method: str, kind: str, folder: Path, root: Path | None, count: int) -> Row:
    data = NETWORKS[name]
    held_out = dataset(data, "test", root)
    net, batches = network(name, folder), stream(kind, held_out, count)
    labels = [y for _, y, usable in batches if usable]
    window = slice(1000, 1000 + EVALUATED)
    clean = pixels(held_out.images[window]).split(BATCH)
    clean_labels = torch.from_numpy(held_out.labels[window]).split(BATCH)

    def of(model: cretta.Adapter) -> tuple[float, list[str]]:
        alarms: list[str] = []
        model.on_step(lambda record: alarms.append(record.guard) if record.guard else None)
        logits = follow(model, [x for x, *_ in batches])
        answers = [z for z, (*_, usable) in zip(logits, batches, strict=True) if usable]
        return accuracy(answers, labels), alarms

    source = cretta.adapt(net, "source")
    preset = data if data in cretta.methods.get(method).presets else None
    model = cretta.adapt(
        net, method, buffer=labeled_buffer(data, root), statistics="auto", guard="rollback", preset=preset
    )
    before = accuracy(follow(model.predict, clean), clean_labels)
    adapted, alarms = of(model)
    return {
        "network": name,
        "method": method,
        "stream": kind,
        "images": sum(map(len, labels)),
        "source": of(source)[0],
        "adapted": adapted,
        "clean before": before,
        "clean after": accuracy(follow(model.predict, clean), clean_labels),
        "clean source": accuracy(follow(source.predict, clean), clean_labels),
        "alarms": len(alarms),
    }


def main() -> None:
    arguments = parser(__doc__, images=160).parse_args()
    torch.set_num_threads(arguments.threads)
    cases = {
        f"{name} · {kind} · {method}": partial(
            measure, name, method, kind, arguments.networks, arguments.root, arguments.images
        )
        for name in NETWORKS
        for kind in STREAMS
        for method in METHODS
    }
    rows = run_rows(arguments.output / "harm.json", cases, arguments.only)
    for row in rows:
        lost, forgotten = row["source"] - row["adapted"], row["clean before"] - row["clean after"]
        flag = " ← harm" * (lost > 0.02) + " ← forgets" * (forgotten > 0.01)
        print(
            f"{row['key']:45s} source {100 * row['source']:5.1f} adapted {100 * row['adapted']:5.1f}  clean "
            f"{100 * row['clean before']:5.1f} → {100 * row['clean after']:5.1f}  alarms {row['alarms']}{flag}"
        )


if __name__ == "__main__":
    main()
