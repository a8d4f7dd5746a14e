"""Blurs: out of focus, Gaussian, frosted glass, motion, zoom."""

from collections import Counter
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cretta.data.corruptions.draws import Draws
from cretta.data.corruptions.parameters import Values
from cretta.data.corruptions.pixels import Pixels, to_bytes, to_unit
from cretta.data.corruptions.resample import convolve_symmetric, gaussian_weights, pad, smooth, zoom_center, zoom_extent
from cretta.data.corruptions.streak import streak


@lru_cache(maxsize=32)
def _disk(radius: float, alias: float) -> NDArray[np.float64]:
    """Return the lower right quarter, center included, of a disk whose rim is smoothed by a small Gaussian."""
    reach, rim = (8, 1) if radius <= 8 else (int(radius), 2)
    grid = np.arange(-reach, reach + 1)
    disk = (grid[:, None] ** 2 + grid**2 <= radius**2).astype(np.float64)
    disk /= disk.sum()
    smoothing = gaussian_weights(alias, rim)
    for _ in range(2):
        padded = np.pad(disk, ((rim, rim), (0, 0)), mode="reflect")
        disk = sum(weight * padded[offset:][: len(grid)] for offset, weight in enumerate(smoothing))
        disk = disk.T
    quarter = disk[reach:, reach:]
    used = int(quarter.any(axis=0).sum())
    return quarter[:used, :used]


def defocus_blur(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Convolve with a disk."""
    radius, alias = values
    disk = _disk(radius, alias)
    reach = len(disk) - 1
    x = to_unit(images)
    width = x.shape[2]
    padded = pad(pad(x, reach, 1, "reflect-101"), reach, 2, "reflect-101")
    blurred = convolve_symmetric(padded[:, :, reach : reach + width], disk[0], axis=1)
    for offset in range(1, reach + 1):
        left, right = padded[:, :, reach - offset :], padded[:, :, reach + offset :]
        blurred += convolve_symmetric(left[:, :, :width] + right[:, :, :width], disk[offset], axis=1)
    return to_bytes(blurred)


def gaussian_blur(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Smooth with a Gaussian."""
    (sigma,) = values
    return to_bytes(smooth(to_unit(images), sigma))


def shuffle_sources(draws: Draws, height: int, width: int, delta: int) -> NDArray[np.intp]:
    """Return which pixel of the batch one pass of the published shuffle copies onto each, (N, H, W).

    The published pass walks from the last pixel to the first and copies a random neighbor onto each. A
    neighbor that comes later in the image has been overwritten already, so its own source is what arrives:
    following such links to their end, twice as far each turn, replaces the walk.
    """
    here = np.arange(draws.count * height * width).reshape(draws.count, height, width)
    walked = np.s_[:, delta + 1 : height - delta + 1, delta + 1 : width - delta + 1]
    source = here.copy()
    across, down = draws.integers(-delta, delta, 2, *source[walked].shape[1:]).swapaxes(0, 1)
    source[walked] += down.astype(np.intp) * width + across
    linked = source > here
    if not linked.any():
        return source
    overwritten = np.zeros(here.shape, dtype=bool)
    overwritten[walked] = True
    linked &= np.take(overwritten, source)
    while linked.any():
        onward = np.where(linked, np.take(source, source), source)
        linked &= np.take(linked, source)
        source = onward
    return source


def glass_blur(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Smooth, shuffle pixels locally, and smooth again."""
    sigma, delta, iterations = values[0], int(values[1]), int(values[2])
    _, height, width, _ = images.shape
    x = to_bytes(smooth(to_unit(images), sigma))
    if min(height, width) > 2 * delta:
        for _ in range(iterations):
            x = np.take(x.reshape(-1, 3), shuffle_sources(draws, height, width, delta), axis=0)
    return to_bytes(smooth(to_unit(x), sigma))


def motion_blur(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Smear along a random direction within 45° of the horizontal."""
    radius, sigma = values
    blurred = streak(images, draws.uniform(-45, 45), int(radius), sigma)
    blurred += np.float32(0.5)
    return blurred.astype(np.uint8)


def zoom_blur(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Return the mean of the image and a series of zooms into its center."""
    number, step = int(values[0]), values[1]
    count, height, width, channels = images.shape
    # With the batch as the innermost axis, rows and columns are both contiguous in memory.
    x = to_unit(np.ascontiguousarray(images.transpose(1, 2, 0, 3))).reshape(1, height, width, count * channels)
    # As published, to the last bit: a crop of 26 px by 1.25 is enlarged to 32 px or 33 px by its rounding.
    zooms = np.arange(1, 1 + step * (number - 0.5), step).tolist()
    # Small images have few different zooms: each is made once and counted.
    extents = Counter((zoom_extent(height, zoom), zoom_extent(width, zoom)) for zoom in [1.0, *zooms])
    total = np.zeros_like(x)
    for (rows, columns), times in extents.items():
        total += zoom_center(x, rows, columns) * np.float32(times / (number + 1))
    return to_bytes(total).reshape(height, width, count, channels).transpose(2, 0, 1, 3)
