"""Tables 6, 7, 8, 20 and 21: how large the source buffer is, and which images it holds."""

from __future__ import annotations

from collections.abc import Callable

from cretta.bench import Buffer
from cretta.paper.item import Draw
from cretta.paper.readings import Variant
from cretta.paper.scale import Scale
from cretta.paper.shapes import ACCURACY, BENCHMARKS, CALIBRATION_ERROR, CRETTA, columns, comparison


def images_of(family: str, split: str = "train") -> Callable[[Scale], Buffer]:
    """Return a buffer of another family's images; which dataset that is depends on the scale."""
    return lambda scale: Buffer(data=scale.family(family).data, split=split)


DRAW: dict[str, Draw] = {
    "buffer-size": comparison(
        [Variant(f"{percent}%", buffer=Buffer(size=percent / 100)) for percent in (1, 2, 10)],
        BENCHMARKS,
        columns("worst", ACCURACY),
        first="Buffer ratio",
    ),
    "buffer-content": comparison(
        (
            Variant("Default(Random)"),
            Variant("CIFAR100-trainset", buffer=images_of("cifar100")),
            Variant("CIFAR100-valset", buffer=images_of("cifar100", "test")),
        ),
        ("cifar10",),
        (*columns("worst", ACCURACY), *columns("average", ACCURACY)),
        first="Buffer type",
    ),
    "buffer-confidence": comparison(
        (
            Variant("Default (Random)"),
            Variant("High Confidence", buffer=Buffer(select="confident")),
            Variant("Low Confidence", buffer=Buffer(select="uncertain")),
        ),
        BENCHMARKS,
        columns("worst", ACCURACY),
        first="Buffer type",
    ),
    "single-sample": comparison(
        (CRETTA, Variant("CreTTA with single source sample", buffer=Buffer(size=1))),
        BENCHMARKS,
        columns("worst", ACCURACY, CALIBRATION_ERROR),
    ),
    "foreign-buffer": comparison(
        (
            Variant("CreTTA (Ours)"),
            Variant("CIFAR-10 (train)", buffer=images_of("cifar10")),
            Variant("CIFAR-10 (val)", buffer=images_of("cifar10", "test")),
            Variant("PACS (sketch)", buffer=Buffer(data="pacs:sketch")),
        ),
        ("cifar100",),
        (*columns("worst", ACCURACY), *columns("average", ACCURACY)),
        first="Buffer type",
    ),
}
