"""Tables 6, 7, 8, 20 and 21: how large the source buffer is, and what is in it."""

from __future__ import annotations

import dataclasses

from cretta.bench import Buffer
from cretta.paper.comparison import CRETTA, Comparison, Measure, Variant
from cretta.paper.main import BENCHMARKS
from cretta.paper.scale import Scale

# Accuracy at severity 5 on the three benchmarks.
SIZE = {"1%": (88.00, 64.21, 40.18), "2%": (88.17, 64.42, 40.24), "10%": (88.30, 64.52, 40.30)}
CONFIDENCE = {
    "Default (Random)": (88.30, 64.52, 40.30),
    "High Confidence": (86.92, 64.10, 40.18),
    "Low Confidence": (88.02, 64.65, 40.92),
}
# Accuracy on CIFAR10-C at severity 5, and over all severities.
CONTENT = {
    "Default(Random)": (88.30, 91.01),
    "CIFAR100-trainset": (88.20, 91.02),
    "CIFAR100-valset": (88.21, 91.03),
}
# Accuracy on CIFAR100-C at severity 5, and over all severities.
FOREIGN = {
    "CreTTA (Ours)": (64.52, 69.05),
    "CIFAR-10 (train)": (64.97, 69.37),
    "CIFAR-10 (val)": (64.95, 69.37),
    "PACS (sketch)": (63.74, 68.25),
}
# Accuracy and ECE at severity 5 on the three benchmarks.
SINGLE = {
    "CreTTA": (88.30, 4.15, 64.52, 7.99, 40.30, 13.52),
    "CreTTA with single source sample": (87.62, 5.39, 62.67, 8.93, 40.30, 14.13),
}

WORST = Measure("accuracy", "worst")
AVERAGE = Measure("accuracy", "average")


@dataclasses.dataclass(frozen=True)
class ImagesOf:
    """A buffer of another family's images; which benchmark that is depends on the scale."""

    family: str
    split: str = "train"

    def __call__(self, scale: Scale) -> Buffer:
        """The buffer at this scale."""
        return Buffer(data=scale.family(self.family).data, split=self.split)


def _renamed(label: str) -> Variant:
    """CreTTA as it is, under the name that a table gives it."""
    return dataclasses.replace(CRETTA, label=label)


_VALIDATION = "What the paper calls a validation set is taken to be the test set: the datasets have no other."

ITEMS = (
    Comparison(
        name="buffer-size",
        title="Accuracy by size of the source buffer, at severity 5",
        where="Table 6",
        labels=("tab:buffersize",),
        order=10,
        families=BENCHMARKS,
        variants=(
            Variant("1%", buffer=Buffer(size=0.01)),
            Variant("2%", buffer=Buffer(size=0.02)),
            Variant("10%", buffer=Buffer(size=0.1)),
        ),
        measures=(WORST,),
        first="Buffer ratio",
        printed={"tab:buffersize": SIZE},
        remarks=("The table in the paper does not say that it is of severity 5; its last row is that of Table 9.",),
    ),
    Comparison(
        name="buffer-content",
        title="Accuracy with a source buffer of another dataset, CIFAR10-C",
        where="Table 7",
        labels=("tab:bufferunknown",),
        order=11,
        families=("cifar10",),
        variants=(
            _renamed("Default(Random)"),
            Variant("CIFAR100-trainset", buffer=ImagesOf("cifar100")),
            Variant("CIFAR100-valset", buffer=ImagesOf("cifar100", "test")),
        ),
        measures=(WORST, AVERAGE),
        first="Buffer type",
        printed={"tab:bufferunknown": CONTENT},
        remarks=(_VALIDATION,),
    ),
    Comparison(
        name="buffer-confidence",
        title="Accuracy by the source model's confidence in the buffer's images, at severity 5",
        where="Table 8",
        labels=("tab:bufferconfidence",),
        order=12,
        families=BENCHMARKS,
        variants=(
            _renamed("Default (Random)"),
            Variant("High Confidence", buffer=Buffer(select="confident")),
            Variant("Low Confidence", buffer=Buffer(select="uncertain")),
        ),
        measures=(WORST,),
        first="Buffer type",
        printed={"tab:bufferconfidence": CONFIDENCE},
        remarks=("The most and the least confident 10 % are taken class by class, so that buffers stay balanced.",),
    ),
    Comparison(
        name="single-sample",
        title="Accuracy and calibration error with a single source sample, at severity 5",
        where="Table 20",
        labels=("tab:buff_abla_single",),
        order=27,
        families=BENCHMARKS,
        variants=(CRETTA, Variant("CreTTA with single source sample", buffer=Buffer(size=1))),
        measures=(WORST, Measure("calibration error", "worst")),
        printed={"tab:buff_abla_single": SINGLE},
    ),
    Comparison(
        name="foreign-buffer",
        title="Accuracy by content of the source buffer, CIFAR100-C",
        where="Table 21",
        labels=("tab:buff_ablation_cifar100",),
        order=28,
        families=("cifar100",),
        variants=(
            _renamed("CreTTA (Ours)"),
            Variant("CIFAR-10 (train)", buffer=ImagesOf("cifar10")),
            Variant("CIFAR-10 (val)", buffer=ImagesOf("cifar10", "test")),
            Variant("PACS (sketch)", buffer=Buffer(data="pacs:sketch")),
        ),
        measures=(WORST, AVERAGE),
        first="Buffer type",
        printed={"tab:buff_ablation_cifar100": FOREIGN},
        remarks=(
            _VALIDATION,
            "The paper prints its own row in bold although buffers of CIFAR-10 are better there.",
        ),
    ),
)
