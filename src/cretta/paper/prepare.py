"""Small networks for datasets that come without one, trained in a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import torch

from cretta.bench import Run
from cretta.bench.benchmarks import benchmark
from cretta.data import FileDataset, ImageDataset
from cretta.data.registry import subset
from cretta.errors import StateError
from cretta.models import build
from cretta.paper.scale import Scale
from cretta.training import Progress, Recipe, train

ARCHITECTURE = "resnet-8"


def prepare(
    scale: Scale,
    runs: Iterable[Run],
    root: Path | None = None,
    progress: Callable[[str, Progress], None] = lambda name, news: None,
) -> list[Path]:
    """Train the networks that the runs name, that the scale can train and that do not exist yet.

    ``scale`` must have its folders (:meth:`Scale.resolve`). Networks whose data are not installed are left out:
    :func:`cretta.paper.missing` then says what is needed.
    """
    requested = {run.model for run in runs}
    outputs = []
    for family in chain.from_iterable(family.members() for family in scale.families.values()):
        output = Path(family.model)
        if not family.prepare or family.model not in requested or output.exists():
            continue
        try:
            training = benchmark(family.data, root, family.size).training()
        except StateError:
            continue
        _train(training, family.prepare, output, progress)
        outputs.append(output)
    return outputs


def _train(training: ImageDataset, images: int, output: Path, progress: Callable[[str, Progress], None]) -> None:
    dataset = training
    if isinstance(training, FileDataset) and len(training) > images:  # files take time to decode
        step = -(-len(training) // images)
        dataset = subset(training, lambda index: index % step == 0)
    batch_size = min(64, len(dataset))
    recipe = Recipe(epochs=images / len(dataset), batch_size=batch_size, lr=0.1, augmix=0.0, backend="plain")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = build(ARCHITECTURE, classes=len(dataset.classes))
    output.parent.mkdir(parents=True, exist_ok=True)
    facts = {"architecture": ARCHITECTURE, "classes": list(dataset.classes), "dataset": dataset.name}
    train(dataset, model, recipe, output, facts=facts, progress=lambda news: progress(output.stem, news))
