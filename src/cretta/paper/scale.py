"""How much of the paper is run: a smoke test of minutes, a look of hours, or all of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cretta.data.releases import data_root
from cretta.options import unknown
from cretta.paper.family import Family


@dataclasses.dataclass(frozen=True)
class Scale:
    """What each family is run with, and how often."""

    name: str
    about: str
    families: Mapping[str, Family]
    seeds: tuple[int, ...]
    betas: tuple[float, ...]
    """The β of the sweep; the paper shows it as curves without saying which."""
    comparable: bool = True
    """Whether differences to the paper's numbers mean anything."""

    def family(self, name: str) -> Family:
        """Return the family of that name."""
        if name not in self.families:
            raise unknown("family", name, self.families)
        return self.families[name]

    def seeds_of(self, method: str) -> tuple[int, ...]:
        """Return the seeds to run a method with: Source predicts the same in any order, so that one is enough."""
        return self.seeds[:1] if method == "source" else self.seeds

    def resolve(self, store: str | Path, root: str | Path | None = None, models: str | Path | None = None) -> Scale:
        """Return the scale with the folders of its networks and datasets.

        Small networks are in the ``store``, others in ``models`` (by default the folder models of the data ``root``).
        Families whose dataset is not installed use their fallback, if they have one.
        """
        home = data_root(root)
        folders = {"store": str(store), "root": str(home), "models": str(models or home / "models")}
        families = {}
        for name, family in self.families.items():
            resolved = family.resolve(**folders)
            clean = resolved.record.clean
            if resolved.fallback and clean is not None and clean.find(home) is None:
                resolved = dataclasses.replace(resolved, data=resolved.fallback)
            families[name] = resolved
        return dataclasses.replace(self, families=families)

    def with_models(self, models: Mapping[str, str]) -> Scale:
        """Return the scale with the user's own networks, by family; for pacs, {source} stands for the source domain."""
        changed = {
            name: dataclasses.replace(
                self.family(name), model=spec, network=f"{spec}, chosen by the user", train="", prepare=0
            )
            for name, spec in models.items()
        }
        return dataclasses.replace(self, families={**self.families, **changed})


def _scale(name: str, about: str, *families: Family, **fields: Any) -> Scale:
    return Scale(name, about, {family.name: family for family in families}, **fields)


def _train(data: str, architecture: str) -> str:
    return (
        f"cretta train {data} --architecture {architecture} --epochs 200 --root {{root}} "
        f"--output {{models}}/{architecture}-{data}.safetensors"
    )


_NO_RATES = (
    "The paper prints no learning rates of the baselines for {title}; used are the last in the history of TEA's public "
    "code, and each method's own where that has none."
)

_CIFAR10 = Family(
    name="cifar10",
    data="cifar10",
    model="wrn-40-2-cifar10",
    network="the WRN-40-2 that comes with cretta, 89.8 % on clean images; the paper's is RobustBench's, 95.1 %",
)
_CIFAR100 = Family(
    name="cifar100",
    data="cifar100",
    model="{models}/wrn-40-2-cifar100.safetensors",
    network="a WRN-40-2 trained by cretta; the paper's is RobustBench's",
    train=_train("cifar100", "wrn-40-2"),
    baseline_remarks=(_NO_RATES.format(title="CIFAR100-C"),),
)
_CIFAR100_WIDE = dataclasses.replace(
    _CIFAR100,
    name="cifar100-wide",
    model="{models}/wrn-28-10-cifar100.safetensors",
    network="a WRN-28-10 trained by cretta; the paper's is not available",
    train=_train("cifar100", "wrn-28-10"),
)
_TINY = Family(
    name="tiny-imagenet",
    data="tiny-imagenet",
    model="cretta.models.imagenet:tiny_imagenet",
    network="EfficientNet-Lite0 of ImageNet, restricted to the 200 classes; the paper's, a WRN-28-10, is not available",
    baseline_remarks=(_NO_RATES.format(title="TinyImageNet-C"),),
)
_IMAGENET = Family(
    name="imagenet",
    data="imagenet",
    model="cretta.models.imagenet:efficientnet_lite0",
    network="EfficientNet-Lite0; the paper does not name its network",
    # Printed for CreTTA, by "TENT default settings"; TEA has no preset here.
    options=(("tea", (("lr", 2.5e-4),)),),
    remarks=(
        "For ImageNet-C the paper prints a learning rate and a batch size, no more: β is 1, TEA samples as on "
        "CIFAR10-C and learns at CreTTA's rate.",
    ),
)
_PACS = Family(
    name="pacs",
    data="pacs:{source}",
    model="{models}/pacs-{source}.safetensors",
    network="EfficientNet-Lite0 of ImageNet, fine-tuned on the source domain; the paper does not name its network",
    train=(
        "cretta train pacs --root {root} --size 224 --architecture efficientnet-lite0 "
        "--init cretta.models.imagenet:efficientnet_lite0 --learn 'norm and head' --holdout 84 --best --epochs 10 "
        "--batch-size 32 --lr 0.03 --augmix 0 --progressive 0 --output '{models}/pacs-{source}.safetensors'"
    ),
    size=224,
    remarks=(
        "The paper prints neither β nor the baselines' settings for PACS: β is 1, TENT learns as on CIFAR10-C, TEA "
        "takes 100 steps of 0.05 as in its own paper.",
    ),
)

FULL = _scale(
    "full",
    "The paper's: all images, corruptions, severities and methods, three seeds. Days on a GPU.",
    *(_CIFAR10, _CIFAR100, _CIFAR100_WIDE, _TINY, _IMAGENET, _PACS),
    seeds=(0, 1, 2),
    betas=(0.1, 0.5, 1.0, 2.0, 5.0, 10.0),
)


def _reduced(family: Family, sizes: Mapping[str, Any], **changes: Any) -> Family:
    return dataclasses.replace(family, **{**sizes, **changes})


_THREE = ("gaussian_noise", "fog", "jpeg_compression")
"""Of noise, of weather, digital."""
_QUICK: dict[str, Any] = {
    "images": 1000,
    "corruptions": _THREE,
    "some": _THREE,
    "severities": (1, 3, 5),
    "gradual": _THREE[:1],
    "gradual_images": 1000,
}

QUICK = _scale(
    "quick",
    "At most two thousand images of each domain, one seed, severities 1, 3 and 5. Hours on two cores.",
    _reduced(_CIFAR10, _QUICK, fallback="embedded", images=2000, corruptions=_CIFAR10.corruptions),
    _reduced(_CIFAR100, _QUICK),
    _reduced(
        _CIFAR100,
        _QUICK,
        name="cifar100-wide",
        some=_THREE[:1],
        network="a WRN-40-2 trained by cretta; the paper's is a WRN-28-10",
    ),
    # The network scales these images up: batches of 1 000 would take tens of gigabytes.
    _reduced(_TINY, _QUICK, images=500, batch_size=100),
    _reduced(
        _IMAGENET,
        _QUICK,
        images=256,
        size=128,
        options=(("tea", (("lr", 2.5e-4), ("replay", 1000))),),
        remarks=(
            *_IMAGENET.remarks,
            "TEA starts from 1 000 samples, not 10 000, which would take gigabytes at this size.",
        ),
    ),
    _reduced(
        _PACS,
        _QUICK,
        images=200,
        options=(("tea", (("sampling_steps", 20), ("replay", 500))),),
        remarks=(*_PACS.remarks, "At this scale TEA takes 20 steps, from 500 samples."),
    ),
    seeds=(0,),
    betas=(0.5, 1.0, 2.0, 5.0),
)

_TWO = ("gaussian_noise", "fog")
_SMOKE: dict[str, Any] = {
    "images": 32,
    "batch_size": 16,
    "corruptions": _TWO,
    "some": _TWO,
    "severities": (1, 5),
    "gradual": _TWO[:1],
    "gradual_images": 10,
}


def _trained_first(model: str, paper: str, images: int) -> dict[str, Any]:
    return {
        "model": f"{{store}}/models/{model}.safetensors",
        "network": f"a ResNet-8 trained for half a minute before the runs; the paper's is {paper}",
        "train": "",
        "prepare": images,
    }


SMOKE = _scale(
    "smoke",
    "That everything runs: 32 images of each domain, two corruptions, small networks. Its numbers mean nothing.",
    _reduced(_CIFAR10, _SMOKE, data="embedded"),
    _reduced(_CIFAR100, _SMOKE, **_trained_first("cifar100", "RobustBench's WRN-40-2", 25_000)),
    _reduced(_CIFAR100_WIDE, _SMOKE, some=_TWO[:1], **_trained_first("cifar100", "a WRN-28-10", 25_000)),
    _reduced(_TINY, _SMOKE, size=32, **_trained_first("tiny-imagenet", "a WRN-28-10", 20_000)),
    _reduced(
        _IMAGENET,
        _SMOKE,
        images=16,
        batch_size=8,
        size=64,
        options=(("tea", (("lr", 2.5e-4), ("replay", 100))),),
        remarks=(*_IMAGENET.remarks, "TEA starts from 100 samples, not 10 000."),
    ),
    _reduced(_PACS, _SMOKE, images=20, size=32, **_trained_first("pacs-{source}", "not named", 6000)),
    seeds=(0,),
    betas=(0.5, 1.0, 2.0),
    comparable=False,
)

SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (SMOKE, QUICK, FULL)}


def scale(name: str) -> Scale:
    """Return the scale of that name.

    >>> scale("smoke").family("cifar10").data
    'embedded'
    """
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    return SCALES[name]
