"""The frost photographs, from the installed files of another package."""

from functools import lru_cache
from importlib import metadata

import numpy as np
from PIL import Image

from cretta.data.corruptions.pixels import Pixels
from cretta.errors import OptionError

_PACKAGE = "imagecorruptions"
_NAMES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")


@lru_cache(maxsize=1)
def _originals() -> tuple[Pixels, ...]:
    try:
        # By its files: the package cannot be imported with current versions of setuptools.
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    paths = {path.name: path.locate() for path in files if path.parent.name == "frost"}
    missing = [name for name in _NAMES if name not in paths]
    if missing:
        raise OptionError(
            f"the corruption 'frost' needs photographs from the package '{_PACKAGE}', and "
            f'{", ".join(missing)} cannot be found; install it with: pip install "cretta[data]", '
            "or choose another corruption"
        )
    photographs = []
    for name in _NAMES:
        with Image.open(str(paths[name])) as photograph:
            photographs.append(np.asarray(photograph.convert("RGB")))
    return tuple(photographs)


def _scaled_rows(photograph: Pixels, scale: float) -> Pixels:
    """Resize the height linearly, without smoothing: a new row is a mix of two."""
    height = photograph.shape[0]
    position = (np.arange(round(height * scale)) + 0.5) / scale - 0.5
    position = np.clip(position, 0, height - 1)
    lower = np.minimum(position.astype(np.intp), max(height - 2, 0))
    fraction = (position - lower)[:, None, None]
    upper = np.minimum(lower + 1, height - 1)
    mixed = photograph[lower] * (1 - fraction) + photograph[upper] * fraction
    scaled: Pixels = np.rint(mixed).astype(np.uint8)
    return scaled


@lru_cache(maxsize=10)
def _scaled(number: int, scale: float) -> Pixels:
    photograph = _originals()[number]
    if scale == 1:
        return photograph
    return np.ascontiguousarray(_scaled_rows(_scaled_rows(photograph, scale).swapaxes(0, 1), scale).swapaxes(0, 1))


def frost_photographs(scale: float, height: int, width: int) -> tuple[Pixels, ...]:
    """Return the five photographs at a scale, or larger where a crop of height × width would not fit."""
    return tuple(
        _scaled(number, max(scale, height / photograph.shape[0], width / photograph.shape[1]))
        for number, photograph in enumerate(_originals())
    )
