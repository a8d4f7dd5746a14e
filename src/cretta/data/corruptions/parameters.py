"""The published strengths: one set per image size, five severities per corruption."""

from collections.abc import Mapping

Values = tuple[float, ...]
"""What one corruption takes at one severity; its function names the entries."""

Severities = tuple[Values, Values, Values, Values, Values]

SEVERITIES = (1, 2, 3, 4, 5)


def _single(first: float, second: float, third: float, fourth: float, fifth: float) -> Severities:
    return (first,), (second,), (third,), (fourth,), (fifth,)


def _pixels(side: int, *severities: tuple[float, float, float]) -> Severities:
    """Elastic strengths are published as multiples of the side, and used in pixels."""
    first, second, third, fourth, fifth = (tuple(side * value for value in values) for values in severities)
    return first, second, third, fourth, fifth


_ZOOMS_SMALL: Severities = ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01))

_CIFAR: dict[str, Severities] = {
    "gaussian_noise": _single(0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": _single(500, 250, 100, 75, 50),
    "impulse_noise": _single(0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": _ZOOMS_SMALL,
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": _single(0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": _single(0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": _pixels(
        32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
    ),
    "pixelate": _single(0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": _single(80, 65, 58, 50, 40),
    "speckle_noise": _single(0.06, 0.1, 0.12, 0.16, 0.2),
    "gaussian_blur": _single(0.4, 0.6, 0.7, 0.8, 1),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}

_TINY: dict[str, Severities] = {
    "gaussian_noise": _single(0.04, 0.08, 0.12, 0.15, 0.18),
    "shot_noise": _single(250, 100, 50, 30, 15),
    "impulse_noise": _single(0.01, 0.02, 0.05, 0.08, 0.14),
    "defocus_blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    "glass_blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    "motion_blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    "zoom_blur": _ZOOMS_SMALL,
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
    "frost": ((1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)),
    "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    "brightness": _single(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _single(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": _pixels(
        64, (0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)
    ),
    "pixelate": _single(0.9, 0.8, 0.7, 0.6, 0.5),
    "jpeg_compression": _single(65, 58, 50, 40, 25),
    "speckle_noise": _single(0.15, 0.2, 0.25, 0.3, 0.35),
    "gaussian_blur": _single(0.5, 0.75, 1, 1.25, 1.5),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
}

_IMAGENET: dict[str, Severities] = {
    "gaussian_noise": _single(0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": _single(60, 25, 12, 5, 3),
    "impulse_noise": _single(0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": _single(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _single(0.4, 0.3, 0.2, 0.1, 0.05),
    # 244, not 224: the published images were made with it.
    "elastic_transform": _pixels(
        244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
    ),
    "pixelate": _single(0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": _single(25, 18, 15, 10, 7),
    "speckle_noise": _single(0.15, 0.2, 0.35, 0.45, 0.6),
    "gaussian_blur": _single(1, 2, 3, 4, 6),
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}

PARAMETER_SETS: Mapping[str, Mapping[str, Severities]] = {
    "cifar": _CIFAR,
    "tiny": _TINY,
    "imagenet": _IMAGENET,
}
"""By set and corruption: CIFAR-10/100-C (32 px), Tiny-ImageNet-C (64 px), ImageNet-C (224 px)."""


def set_for(height: int, width: int) -> str:
    """Return the set published for the size nearest to an image's shorter side."""
    side = min(height, width)
    if side < 48:
        return "cifar"
    return "tiny" if side < 144 else "imagenet"
