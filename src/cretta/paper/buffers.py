"""Tables 6, 7, 8, 20 and 21: how large the source buffer is, and which images it holds."""

from __future__ import annotations

from collections.abc import Callable

from cretta.bench import Buffer
from cretta.paper.item import Item
from cretta.paper.readings import Variant
from cretta.paper.scale import Scale
from cretta.paper.shapes import ACCURACY, BENCHMARKS, CALIBRATION_ERROR, CRETTA, Quantity, Where, comparison

BOTH: tuple[tuple[Quantity, Where], ...] = ((ACCURACY, "worst"), (ACCURACY, "average"))
_VALIDATION = "What the paper calls a validation set is taken to be the test set: the datasets have no other."


def images_of(family: str, split: str = "train") -> Callable[[Scale], Buffer]:
    """Return a buffer of another family's images; which benchmark that is depends on the scale."""
    return lambda scale: Buffer(data=scale.family(family).data, split=split)


ITEMS = (
    Item(
        name="buffer-size",
        title="Accuracy by size of the source buffer, at severity 5",
        labels=("tab:buffersize",),
        draw=comparison(
            (
                Variant("1%", buffer=Buffer(size=0.01)),
                Variant("2%", buffer=Buffer(size=0.02)),
                Variant("10%", buffer=Buffer(size=0.1)),
            ),
            BENCHMARKS,
            ((ACCURACY, "worst"),),
            first="Buffer ratio",
        ),
        remarks=("The table in the paper does not say that it is of severity 5; its last row is that of Table 9.",),
    ),
    Item(
        name="buffer-content",
        title="Accuracy with a source buffer of another dataset, CIFAR10-C",
        labels=("tab:bufferunknown",),
        draw=comparison(
            (
                Variant("Default(Random)"),
                Variant("CIFAR100-trainset", buffer=images_of("cifar100")),
                Variant("CIFAR100-valset", buffer=images_of("cifar100", "test")),
            ),
            ("cifar10",),
            BOTH,
            first="Buffer type",
        ),
        remarks=(_VALIDATION,),
    ),
    Item(
        name="buffer-confidence",
        title="Accuracy by the source model's confidence in the buffer's images, at severity 5",
        labels=("tab:bufferconfidence",),
        draw=comparison(
            (
                Variant("Default (Random)"),
                Variant("High Confidence", buffer=Buffer(select="confident")),
                Variant("Low Confidence", buffer=Buffer(select="uncertain")),
            ),
            BENCHMARKS,
            ((ACCURACY, "worst"),),
            first="Buffer type",
        ),
        remarks=("The most and the least confident 10 % are taken class by class, so that buffers stay balanced.",),
    ),
    Item(
        name="single-sample",
        title="Accuracy and calibration error with a single source sample, at severity 5",
        labels=("tab:buff_abla_single",),
        draw=comparison(
            (CRETTA, Variant("CreTTA with single source sample", buffer=Buffer(size=1))),
            BENCHMARKS,
            ((ACCURACY, "worst"), (CALIBRATION_ERROR, "worst")),
        ),
    ),
    Item(
        name="foreign-buffer",
        title="Accuracy by content of the source buffer, CIFAR100-C",
        labels=("tab:buff_ablation_cifar100",),
        draw=comparison(
            (
                Variant("CreTTA (Ours)"),
                Variant("CIFAR-10 (train)", buffer=images_of("cifar10")),
                Variant("CIFAR-10 (val)", buffer=images_of("cifar10", "test")),
                Variant("PACS (sketch)", buffer=Buffer(data="pacs:sketch")),
            ),
            ("cifar100",),
            BOTH,
            first="Buffer type",
        ),
        remarks=(
            _VALIDATION,
            "The paper prints its own row in bold although buffers of CIFAR-10 are better there.",
        ),
    ),
)
