"""The published strengths: one set per image size, five severities per corruption."""

import tomllib
from collections.abc import Mapping
from importlib import resources

Values = tuple[float, ...]
"""The values of one corruption at one severity; its function names the entries."""

SEVERITIES = (1, 2, 3, 4, 5)

_ELASTIC_SIDES = {"cifar": 32, "tiny": 64, "imagenet": 244}
"""Elastic strengths are published as multiples of these sides, and used in pixels."""


def _read_sets() -> dict[str, dict[str, tuple[Values, ...]]]:
    text = (resources.files("cretta.data.corruptions") / "parameters.toml").read_text("utf-8")
    sets = {
        name: {corruption: tuple(map(tuple, severities)) for corruption, severities in strengths.items()}
        for name, strengths in tomllib.loads(text).items()
    }
    for name, side in _ELASTIC_SIDES.items():
        multiples = sets[name]["elastic_transform"]
        sets[name]["elastic_transform"] = tuple(tuple(side * value for value in values) for values in multiples)
    return sets


PARAMETER_SETS: Mapping[str, Mapping[str, tuple[Values, ...]]] = _read_sets()
"""By set and corruption: CIFAR-10/100-C (32 px), Tiny-ImageNet-C (64 px), ImageNet-C (224 px)."""


def set_for(height: int, width: int) -> str:
    """Return the set published for the size nearest to an image's shorter side."""
    side = min(height, width)
    if side < 48:
        return "cifar"
    return "tiny" if side < 144 else "imagenet"
