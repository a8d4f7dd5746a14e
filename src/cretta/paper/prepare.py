"""Small networks for benchmarks that come without one, trained in a minute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from cretta.bench import Run
from cretta.bench.benchmarks import benchmark
from cretta.data import FileDataset, ImageDataset
from cretta.data.registry import subset
from cretta.errors import StateError
from cretta.models import build
from cretta.paper.scale import Preparation, Scale
from cretta.training import Progress, Recipe, train


def prepare(
    scale: Scale,
    runs: Iterable[Run],
    root: Path | None = None,
    progress: Callable[[str, Progress], None] = lambda name, news: None,
    at_most: int | None = None,
) -> list[Path]:
    """Trains the networks that the runs name, that the scale can train and that are not there yet.

    ``scale`` must have its places (:meth:`Scale.placed`). Where the data are not there nothing is made:
    :func:`cretta.paper.missing` then tells what is needed. ``at_most`` bounds the images seen, for tests.
    """
    wanted = {run.model for run in runs}
    made = []
    for preparation in scale.preparations:
        family = scale.family(preparation.family)
        if preparation.source:
            family = family.source(preparation.source)
        output = Path(family.model)
        if family.model not in wanted or output.exists():
            continue
        try:
            training = benchmark(family.data, root, family.size).training()
        except StateError:
            continue
        seen = dataclasses.replace(preparation, images=min(preparation.images, at_most or preparation.images))
        _train(seen, training, output, progress)
        made.append(output)
    return made


def _train(
    preparation: Preparation, training: ImageDataset, output: Path, progress: Callable[[str, Progress], None]
) -> None:
    dataset = _thinned(training, min(preparation.at_most, preparation.images))
    recipe = Recipe(
        epochs=preparation.images / len(dataset),
        batch_size=min(64, len(dataset)),
        lr=0.1,
        augmix=0.0,
        backend="plain",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = build(preparation.architecture, classes=len(dataset.classes))
    output.parent.mkdir(parents=True, exist_ok=True)
    facts = {"architecture": preparation.architecture, "classes": list(dataset.classes), "dataset": dataset.name}
    train(dataset, model, recipe, output, facts=facts, progress=lambda news: progress(output.stem, news))


def _thinned(dataset: ImageDataset, count: int) -> ImageDataset:
    """No more than about so many images: files take time to decode."""
    if not isinstance(dataset, FileDataset) or len(dataset) <= count:
        return dataset
    step = -(-len(dataset) // count)
    return subset(dataset, lambda index: index % step == 0)
