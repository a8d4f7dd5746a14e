"""Calibration on the fly: an underconfident network, and the shipped one, over a drifting stream.

    python benchmarks/calibrate.py --networks FOLDER --root DATASETS [--images 100]

The stream goes through the four validation corruptions at severities 1, 3 and 5, ``--images`` each, without a reset.
Rows are saved in benchmarks/results/calibrate.json; run the same command again to continue.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

import cretta
from cretta.data import VALIDATION_CORRUPTIONS, corrupt
from monitoring import SHIPPED, Row, accuracy, dataset, follow, labeled_buffer, network, parser, pixels, run_rows

NETWORKS = {"resnet-20-cifar100-smoothed": ("cifar100", (1, 3, 5)), SHIPPED: ("cifar10", (5,))}
VARIANTS = {
    "source": ("source", None),
    "bn_adapt": ("bn_adapt", None),
    "tent": ("tent", None),
    "cretta": ("cretta", None),
    "cretta, calibrate=auto": ("cretta", "auto"),
    "cretta, calibrate=source": ("cretta", "source"),
    "cretta, calibrate=pseudocal": ("cretta", "pseudocal"),
}
BATCH = 50


def measure(name: str, variant: str, folder: Path, root: Path | None, count: int) -> Row:
    data, severities = NETWORKS[name]
    method, calibrate = VARIANTS[variant]
    source = dataset(data, "test", root)
    images, labels = source.images[:count], torch.from_numpy(source.labels[:count])
    stream = [
        (x, y)
        for shift in VALIDATION_CORRUPTIONS
        for severity in severities
        for x, y in zip(pixels(corrupt(images, shift, severity, seed=0)).split(BATCH), labels.split(BATCH), strict=True)
    ]
    preset = data if data in cretta.methods.get(method).presets else None
    model = cretta.adapt(
        network(name, folder), method, buffer=labeled_buffer(data, root), preset=preset, calibrate=calibrate
    )
    logits = follow(model, [x for x, _ in stream])
    answers, truth = torch.cat(logits), torch.cat([y for _, y in stream])
    return {
        "network": name,
        "variant": variant,
        "images": len(truth),
        "accuracy": accuracy([answers], [truth]),
        "ECE": cretta.metrics.calibration_error(answers.softmax(-1), truth),
        "confidence": float(answers.softmax(-1).amax(-1).mean()),
        "temperature": model.last["temperature"],
    }


def main() -> None:
    arguments = parser(__doc__, images=100).parse_args()
    torch.set_num_threads(arguments.threads)
    cases = {
        f"{name} · {variant}": partial(measure, name, variant, arguments.networks, arguments.root, arguments.images)
        for name in NETWORKS
        for variant in VARIANTS
    }
    for row in run_rows(arguments.output / "calibrate.json", cases, arguments.only):
        print(f"{row['key']:60s} accuracy {100 * row['accuracy']:.1f}  ECE {100 * row['ECE']:.1f}")


if __name__ == "__main__":
    main()
