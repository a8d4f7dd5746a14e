"""The demo: a shipped model meets corrupted images, with and without adaptation. Needs no network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch

from cretta.buffer import SourceBuffer
from cretta.data import corrupt, embedded
from cretta.errors import OptionError
from cretta.measure import Trace
from cretta.methods import adapt
from cretta.models import load

METHODS = ("source", "bn_adapt", "tent", "cretta")
SHIFTS = ("gaussian_noise", "contrast", "fog")


def run(
    *,
    shifts: Sequence[str] = SHIFTS,
    methods: Sequence[str] = METHODS,
    severity: int = 5,
    images: int = 600,
    batch_size: int = 50,
    seed: int = 0,
    progress: Callable[[str, str, int], None] = lambda shift, method, images: None,
) -> Iterator[tuple[str, str, Trace]]:
    """Yields (shift, method, trace) for every pair of them; ``progress`` hears of every batch."""
    test, train = embedded("test"), embedded("train")
    if not 2 <= images <= len(test):
        raise OptionError(f"images={images}: the embedded slice has {len(test)}; ask for 2 to {len(test)}.")
    if not 2 <= batch_size <= images:
        raise OptionError(f"batch_size={batch_size}: must be from 2 to the number of images, {images}.")
    net = load("wrn-40-2-cifar10")
    buffer = SourceBuffer.sample(train, size=len(train), seed=seed)
    models = {method: adapt(net, method, buffer=buffer, seed=seed) for method in methods}
    labels = torch.from_numpy(test.labels[:images])
    for shift in shifts:
        shifted = torch.from_numpy(corrupt(test.images[:images], shift, severity=severity, seed=seed))
        stream = shifted.permute(0, 3, 1, 2).float().div_(255)
        for method, model in models.items():
            model.reset()
            trace = Trace()
            for x, y in zip(stream.split(batch_size), labels.split(batch_size), strict=True):
                begun = time.perf_counter()
                logits = model(x)
                trace.update(logits, y, time.perf_counter() - begun)
                progress(shift, method, len(x))
            yield shift, method, trace
