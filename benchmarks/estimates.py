"""Estimates of accuracy beside the truth: methods × validation corruptions × severities, and an induced collapse.

    python benchmarks/estimates.py --networks FOLDER --root DATASETS [--images 150]

Each estimate is computed twice: with the source model's reference on the labeled buffer, and with that of the adapted
model (``θ``), as ``Monitor(adapter, refresh=…)`` does. Rows are saved in benchmarks/results/estimates.json; run the
same command again to continue. A scatter plot is written to docs/estimates.png by scripts/write_monitoring.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import cretta
from cretta.data import VALIDATION_CORRUPTIONS, corrupt
from cretta.monitor import SourceReference
from monitoring import Row, accuracy, dataset, follow, labeled_buffer, network, parser, pixels, run_rows

NETWORKS = {"cifar10": "resnet-20-cifar10", "cifar100": "resnet-20-cifar100-smoothed"}
SEVERITIES = (1, 3, 5)
BATCH = 50
SAMPLES = 200
COLLAPSE = {"tent": 0.1, "shot_im": 0.3, "pl": 0.01}
"""Learning rates that make a model collapse."""


def measure(data: str, method: str, lr: float | None, shift: str, severity: int, folder: Path, root: Path | None,
            count: int) -> Row:  # fmt: skip
    net = network(NETWORKS[data], folder)
    source = dataset(data, "test", root)
    images, labels = corrupt(source.images[:count], shift, severity, seed=0), torch.from_numpy(source.labels[:count])
    options: dict[str, float] = {} if lr is None else {"lr": lr}
    preset = data if data in cretta.methods.get(method).presets and lr is None else None
    model = cretta.adapt(net, method, buffer=labeled_buffer(data, root), preset=preset, **options)
    logits = follow(model, pixels(images).split(BATCH))
    references = {"": model.source_samples(SAMPLES, adapted=False), " θ": model.source_samples(SAMPLES)}
    row: Row = {
        "dataset": data,
        "method": method,
        "shift": shift,
        "severity": severity,
        "collapse": lr is not None,
        "accuracy": accuracy(logits, labels.split(BATCH)),
    }
    for suffix, labeled in references.items():
        assert labeled is not None
        reference = SourceReference.of(*labeled)
        row[f"buffer accuracy{suffix}"] = reference.accuracy
        row |= {f"{name}{suffix}": value for name, value in reference.estimates(torch.cat(logits)).items()}
    return row


def main() -> None:
    arguments = parser(__doc__, images=150).parse_args()
    torch.set_num_threads(arguments.threads)
    fixed = {"folder": arguments.networks, "root": arguments.root, "count": arguments.images}
    cases: dict[str, Callable[[], Row]] = {}
    for data in NETWORKS:
        for shift in VALIDATION_CORRUPTIONS:
            for method, lr in COLLAPSE.items():
                key = f"{data} · collapse · {method} lr {lr:g} · {shift}/5"
                cases[key] = partial(measure, data, method, lr, shift, 5, **fixed)
            for severity in SEVERITIES:
                for method in cretta.methods.names():
                    key = f"{data} · {method} · {shift}/{severity}"
                    cases[key] = partial(measure, data, method, None, shift, severity, **fixed)
    rows = run_rows(arguments.output / "estimates.json", cases, arguments.only)
    for collapse in (False, True):
        chosen = [row for row in rows if row["collapse"] == collapse]
        for name in (f"{n}{s}" for s in ("", " θ") for n in cretta.monitor.ESTIMATES):
            errors = [abs(row[name] - row["accuracy"]) for row in chosen]
            if errors:
                print(f"{'collapse' if collapse else 'all'} {name:15s} mean absolute error "
                      f"{100 * sum(errors) / len(errors):.1f} points, {len(errors)} runs")  # fmt: skip


if __name__ == "__main__":
    main()
