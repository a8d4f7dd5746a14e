"""`corrupt`: checks its input, splits it into pieces, and corrupts the pieces on all cores."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cretta.data.corruptions import blur, digital, noise, weather
from cretta.data.corruptions.draws import Draws
from cretta.data.corruptions.parameters import PARAMETER_SETS, SEVERITIES, Values, set_for
from cretta.data.corruptions.photographs import frost_photographs
from cretta.data.corruptions.pixels import Pixels
from cretta.data.corruptions.spatter import spatter
from cretta.data.dataset import is_integer
from cretta.errors import BatchError, OptionError
from cretta.options import unknown

Corruption = Callable[[Pixels, Draws, Values], Pixels]

_BENCHMARK: dict[str, Corruption] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
_VALIDATION: dict[str, Corruption] = {
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter,
    "saturate": digital.saturate,
}

CORRUPTIONS: tuple[str, ...] = tuple(_BENCHMARK)
"""The fifteen of the benchmark, in its order."""

VALIDATION_CORRUPTIONS: tuple[str, ...] = tuple(_VALIDATION)
"""Four more to tune on, so that nothing is tuned on the fifteen."""

# Pixels worked on at once by a thread: small enough for the caches and for flat memory.
_PIECE = 1 << 15


def corrupt(
    images: Pixels,
    name: str,
    severity: int = 5,
    seed: int = 0,
    *,
    parameters: str | None = None,
    indices: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    workers: int | None = None,
) -> Pixels:
    """Corrupt uint8 images (N, H, W, 3); the result has the same shape and type.

    `parameters` is "cifar", "tiny" or "imagenet"; without it the set follows the shorter side (below 48 px,
    below 144 px, larger). `indices` are the images' own numbers, by default 0, 1, …: an image depends on the
    seed and on its number only, never on the batch, its order or the threads (`workers`, by default torch's):

    >>> images = np.zeros((8, 32, 32, 3), dtype=np.uint8)
    >>> corrupted = corrupt(images, "fog", severity=3)
    >>> bool((corrupted[[6, 2]] == corrupt(images[[6, 2]], "fog", severity=3, indices=[6, 2])).all())
    True
    """
    check_corruption(name, severity, seed, parameters)
    _check_images(images)
    count, height, width, _ = images.shape
    numbers = _numbers(count, indices)
    if workers is not None:
        _check_integer("workers", workers, 1, 2**16)
    function = _function(name)
    values = PARAMETER_SETS[parameters or set_for(height, width)][name][severity - 1]
    result = np.empty_like(images, order="C")
    size = max(1, _PIECE // (height * width))

    def work(first: int) -> None:
        piece = slice(first, min(first + size, count))
        draws = Draws(seed, name, severity, numbers[piece])
        result[piece] = function(np.ascontiguousarray(images[piece]), draws, values)

    # The limit that the user has set for torch applies here too.
    with ThreadPoolExecutor(max_workers=workers or torch.get_num_threads()) as pool:
        for _ in pool.map(work, range(0, count, size)):
            pass
    return result


def check_corruption(name: str, severity: int, seed: int, parameters: str | None) -> None:
    """Raise what `corrupt` would raise, frost without its photographs included, before there are images."""
    check_name_and_severity(name, severity)
    _check_integer("seed", seed, 0, 2**64 - 1)
    if parameters is not None and parameters not in PARAMETER_SETS:
        raise OptionError(
            f"parameters={parameters!r}: expected one of {', '.join(PARAMETER_SETS)}; leave it out to follow the size "
            "of the images."
        )
    if name == "frost":
        frost_photographs(1, 1, 1)


def check_name_and_severity(name: str, severity: int) -> None:
    """Raise if there is no such corruption or severity."""
    _function(name)
    _check_integer("severity", severity, SEVERITIES[0], SEVERITIES[-1])


def _function(name: str) -> Corruption:
    function = _BENCHMARK.get(name) or _VALIDATION.get(name)
    if function is None:
        raise unknown("corruption", name, (*CORRUPTIONS, *VALIDATION_CORRUPTIONS))
    return function


def _check_images(images: object) -> None:
    if not isinstance(images, np.ndarray):
        raise BatchError(
            f"images must be a numpy array, got {type(images).__name__}; convert it first, a tensor with .numpy()"
        )
    if images.dtype != np.uint8:
        raise BatchError(
            f"images must be uint8 in 0 … 255, got {images.dtype}; floats in [0, 1] need (images * 255).astype('uint8')"
        )
    if images.ndim != 4 or images.shape[3] != 3:
        raise BatchError(
            f"images must have the shape (N, H, W, 3), got {images.shape}; "
            "add the batch dimension with images[None], or put the channels last"
        )
    if 0 in images.shape:
        raise BatchError(f"images must not be empty, got shape {images.shape}; give at least one image")


def _check_integer(option: str, value: object, low: int, high: int) -> None:
    if not is_integer(value, low, high):
        raise OptionError(f"{option}={value!r}: expected an integer from {low} to {high}.")


def _numbers(count: int, indices: Sequence[int] | NDArray[np.integer[Any]] | None) -> NDArray[np.uint64]:
    array = np.arange(count) if indices is None else np.asarray(indices)
    if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
        raise OptionError(f"indices are {array.dtype} of shape {array.shape}: give {count} integers, one per image")
    if array.min() < 0 or array.max() >= 2**32:
        raise OptionError(f"indices run from {array.min()} to {array.max()}: give numbers from 0 to {2**32 - 1}")
    return array.astype(np.uint64)
