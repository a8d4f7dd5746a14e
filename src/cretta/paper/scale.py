"""How much of the paper is run: a smoke test of minutes, a look of hours, or all of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cretta.data.registry import dataset
from cretta.data.releases import data_root
from cretta.options import unknown
from cretta.paper.family import Family


@dataclasses.dataclass(frozen=True)
class Preparation:
    """A small network to be trained on the spot, where no better one is asked for."""

    family: str
    architecture: str
    images: int
    """Images seen in training: so many, however large the dataset is."""
    source: str = ""
    """The domain of PACS to train on."""
    at_most: int = 50_000
    """Different images among them."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """What each family is run with, and how often."""

    name: str
    about: str
    families: Mapping[str, Family]
    seeds: tuple[int, ...]
    betas: tuple[float, ...]
    """The β of the sweep; the paper shows it as curves without saying which."""
    preparations: tuple[Preparation, ...] = ()
    comparable: bool = True
    """Whether differences to the paper's numbers mean anything."""

    def family(self, name: str) -> Family:
        """The family of that name."""
        if name not in self.families:
            raise unknown("family", name, self.families)
        return self.families[name]

    def seeds_of(self, method: str) -> tuple[int, ...]:
        """Source predicts the same whatever the order: once is enough."""
        return self.seeds[:1] if method == "source" else self.seeds

    def placed(self, folder: str | Path, root: str | Path | None = None) -> Scale:
        """With its places: the store's ``folder``, where small networks are kept, and ``root``, where datasets lie.

        Families whose data are not there take their other benchmark, if they have one.
        """
        home = data_root(root)
        found = {}
        for name, family in self.families.items():
            placed = family.placed(folder=str(folder), root=str(home))
            clean = dataset(placed.data).clean if placed.otherwise else None
            if clean is not None and clean.find(home) is None:
                placed = dataclasses.replace(placed, data=placed.otherwise)
            found[name] = placed
        return dataclasses.replace(self, families=found)

    def with_models(self, models: Mapping[str, str]) -> Scale:
        """With networks of one's own, by family; for pacs, ``{source}`` in it stands for the source domain."""
        changed = {
            name: dataclasses.replace(self.family(name), model=spec, weights=f"{spec}, as given", make="")
            for name, spec in models.items()
        }
        return dataclasses.replace(self, families={**self.families, **changed})


_NO_RATES = (
    "The paper prints no learning rates of the baselines for {title}; used are the last in the history of TEA's public "
    "code, and each method's own where that has none."
)


def _registered(name: str) -> dict[str, Any]:
    """Return the fields of a family that the dataset's record has."""
    record = dataset(name)
    return {
        "title": record.title,
        "data": name.partition(":")[0],
        "preset": record.preset,
        "batch_size": record.batch_size,
        "of": record.test_images,
    }


def _families(*families: Family) -> dict[str, Family]:
    return {family.name: family for family in families}


def _trained(dataset: str, architecture: str, epochs: int, name: str) -> str:
    return (
        f"cretta train {dataset} --architecture {architecture} --epochs {epochs} --root {{root}} "
        f"--output {{root}}/models/{name}.safetensors"
    )


_CIFAR10 = Family(
    name="cifar10",
    **_registered("cifar10"),
    model="wrn-40-2-cifar10",
    weights="the WRN-40-2 that comes with cretta, 89.8 % on clean images; the paper's is RobustBench's, 95.1 %",
)
_CIFAR100 = Family(
    name="cifar100",
    **_registered("cifar100"),
    model="{root}/models/wrn-40-2-cifar100.safetensors",
    weights="a WRN-40-2 trained by cretta; the paper's is RobustBench's",
    make=_trained("cifar100", "wrn-40-2", 200, "wrn-40-2-cifar100"),
    baseline_remarks=(_NO_RATES.format(title="CIFAR100-C"),),
)
_CIFAR100_WIDE = dataclasses.replace(
    _CIFAR100,
    name="cifar100-wide",
    model="{root}/models/wrn-28-10-cifar100.safetensors",
    weights="a WRN-28-10 trained by cretta; the paper's is not available",
    make=_trained("cifar100", "wrn-28-10", 200, "wrn-28-10-cifar100"),
)
_TINY = Family(
    name="tiny-imagenet",
    **_registered("tiny-imagenet"),
    model="{root}/models/wrn-28-10-tiny-imagenet.safetensors",
    weights="a WRN-28-10 trained by cretta; the paper's is not available",
    make=_trained("tiny-imagenet", "wrn-28-10", 100, "wrn-28-10-tiny-imagenet"),
    baseline_remarks=(_NO_RATES.format(title="TinyImageNet-C"),),
)
_IMAGENET = Family(
    name="imagenet",
    **_registered("imagenet"),
    model="cretta.models.imagenet:efficientnet_lite0",
    weights="EfficientNet-Lite0; the paper does not name its network",
    # Printed for CreTTA, by "TENT default settings"; TEA has no preset here.
    options=(("tea", (("lr", 2.5e-4),)),),
    remarks=(
        "For ImageNet-C the paper prints a learning rate and a batch size, no more: β is 1, TEA samples as on "
        "CIFAR10-C and learns at CreTTA's rate.",
    ),
)
_PACS = Family(
    name="pacs",
    **_registered("pacs:photo"),
    model="{root}/models/pacs-{source}.safetensors",
    weights="a ResNet-26 trained by cretta; the paper does not name its network",
    make=(
        "cretta train {root}/pacs/{source} --size 224 --architecture resnet-26 --epochs 100 "
        "--output {root}/models/pacs-{source}.safetensors"
    ),
    size=224,
    remarks=(
        "The paper prints neither β nor the baselines' settings for PACS: β is 1, TENT learns as on CIFAR10-C, TEA "
        "takes 100 steps of 0.05 as in its own paper.",
    ),
)

FULL = Scale(
    name="full",
    about="The paper's: all images, corruptions, severities and methods, three seeds. Days on a GPU.",
    families=_families(_CIFAR10, _CIFAR100, _CIFAR100_WIDE, _TINY, _IMAGENET, _PACS),
    seeds=(0, 1, 2),
    betas=(0.1, 0.5, 1.0, 2.0, 5.0, 10.0),
)

_THREE = ("gaussian_noise", "fog", "jpeg_compression")
"""Of noise, of weather, digital."""
_QUICK_CIFAR100 = dataclasses.replace(
    _CIFAR100,
    images=1000,
    corruptions=_THREE,
    some=_THREE,
    severities=(1, 3, 5),
    gradual=_THREE[:1],
    gradual_images=1000,
)

QUICK = Scale(
    name="quick",
    about="At most two thousand images of each domain, one seed, severities 1, 3 and 5. Hours on two cores.",
    families=_families(
        dataclasses.replace(
            _CIFAR10,
            otherwise="embedded",
            images=2000,
            some=_THREE,
            severities=(1, 3, 5),
            gradual=_THREE[:1],
            gradual_images=1000,
        ),
        _QUICK_CIFAR100,
        dataclasses.replace(
            _QUICK_CIFAR100,
            name="cifar100-wide",
            some=_THREE[:1],
            weights="a WRN-40-2 trained by cretta; the paper's is a WRN-28-10",
        ),
        dataclasses.replace(
            _TINY,
            model="{root}/models/resnet-26-tiny-imagenet.safetensors",
            weights="a ResNet-26 trained by cretta; the paper's is a WRN-28-10",
            make=_trained("tiny-imagenet", "resnet-26", 30, "resnet-26-tiny-imagenet"),
            images=1000,
            batch_size=200,
            corruptions=_THREE,
            some=_THREE,
            severities=(1, 3, 5),
        ),
        dataclasses.replace(
            _IMAGENET,
            images=256,
            size=128,
            corruptions=_THREE,
            some=_THREE,
            severities=(1, 3, 5),
            options=(("tea", (("lr", 2.5e-4), ("replay", 1000))),),
            remarks=(
                *_IMAGENET.remarks,
                "TEA starts from 1 000 samples, not 10 000, which would take gigabytes at this size.",
            ),
        ),
        dataclasses.replace(
            _PACS,
            model="{root}/models/pacs-{source}-64.safetensors",
            make=(
                "cretta train {root}/pacs/{source} --size 64 --architecture resnet-26 --epochs 60 "
                "--output {root}/models/pacs-{source}-64.safetensors"
            ),
            images=200,
            size=64,
        ),
    ),
    seeds=(0,),
    betas=(0.5, 1.0, 2.0, 5.0),
)

_TWO = ("gaussian_noise", "fog")
_SMALL = "a ResNet-8 trained on the spot for half a minute"


def _smoke(family: Family, *, paper: str, **changes: object) -> Family:
    given: dict[str, object] = {
        "model": f"{{folder}}/models/{family.name}.safetensors",
        "make": "",
        "weights": f"{_SMALL}; the paper's is {paper}",
        "images": 32,
        "batch_size": 16,
        "corruptions": _TWO,
        "some": _TWO,
        "severities": (1, 5),
        "gradual": _TWO[:1],
        "gradual_images": 10,
        **changes,
    }
    return dataclasses.replace(family, **given)  # type: ignore[arg-type]


_SMOKE_CIFAR100 = _smoke(_CIFAR100, paper="RobustBench's WRN-40-2")

SMOKE = Scale(
    name="smoke",
    about="That everything runs: 32 images of each domain, two corruptions, small networks. No numbers to believe.",
    families=_families(
        _smoke(
            _CIFAR10,
            paper="",
            data="embedded",
            model="wrn-40-2-cifar10",
            weights=_CIFAR10.weights,
            of=2000,
        ),
        _SMOKE_CIFAR100,
        dataclasses.replace(
            _SMOKE_CIFAR100, name="cifar100-wide", some=_TWO[:1], weights=f"{_SMALL}; the paper's is a WRN-28-10"
        ),
        _smoke(_TINY, paper="a WRN-28-10", size=32),
        _smoke(
            _IMAGENET,
            paper="",
            model=_IMAGENET.model,
            weights=_IMAGENET.weights,
            images=16,
            batch_size=8,
            size=64,
            options=(("tea", (("lr", 2.5e-4), ("replay", 100))),),
            remarks=(*_IMAGENET.remarks, "TEA starts from 100 samples, not 10 000."),
        ),
        _smoke(_PACS, paper="not named", model="{folder}/models/pacs-{source}.safetensors", images=20, size=32),
    ),
    seeds=(0,),
    betas=(0.5, 1.0, 2.0),
    preparations=(
        Preparation("cifar100", "resnet-8", 25_000),
        Preparation("tiny-imagenet", "resnet-8", 20_000, at_most=10_000),
        Preparation("pacs", "resnet-8", 6000, source="photo", at_most=2000),
        Preparation("pacs", "resnet-8", 6000, source="art_painting", at_most=2000),
        Preparation("pacs", "resnet-8", 6000, source="cartoon", at_most=2000),
        Preparation("pacs", "resnet-8", 6000, source="sketch", at_most=2000),
    ),
    comparable=False,
)

SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (SMOKE, QUICK, FULL)}


def scale(name: str) -> Scale:
    """The scale of that name.

    >>> scale("smoke").family("cifar10").data
    'embedded'
    """
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    return SCALES[name]
