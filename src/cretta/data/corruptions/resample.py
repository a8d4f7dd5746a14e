"""Linear resampling of (N, H, W, C) batches: borders, convolution, zooms, free coordinates.

Sums run tap by tap over complete arrays and never through a matrix product of the batch: that way an image gets the
same bits in every batch, and the threads of `corrupt` do not fight those of a BLAS.
"""

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cretta.data.corruptions.pixels import Floats

Border = Literal["nearest", "reflect", "reflect-101"]
"""aaa|abc|ccc, cba|abc|cba, and c b|abc|b a."""

Indices = NDArray[np.intp]


def inside(indices: Indices, side: int, border: Border) -> Indices:
    """Fold indices that lie outside 0 … side − 1 back into the image."""
    if border == "nearest" or side == 1:
        return np.clip(indices, 0, side - 1)
    period, last = (2 * side, 2 * side - 1) if border == "reflect" else (2 * side - 2, 2 * side - 2)
    folded: Indices = np.mod(indices, period)
    return np.minimum(folded, last - folded)


def gaussian_weights(sigma: float, radius: int) -> NDArray[np.float64]:
    """Return Gaussian weights at −radius … radius that sum to 1."""
    if radius == 0:
        return np.ones(1)
    weights: NDArray[np.float64] = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    return weights


def pad(x: Floats, radius: int, axis: int, border: Border) -> Floats:
    """Continue one axis by `radius` beyond both ends."""
    side = x.shape[axis]
    return np.take(x, inside(np.arange(-radius, side + radius), side, border), axis=axis)


def convolve_symmetric(padded: Floats, weights: NDArray[np.float64], axis: int) -> Floats:
    """Convolve a padded axis with the weights of offset 0, 1, … that both directions share."""
    radius = len(weights) - 1
    side = padded.shape[axis] - 2 * radius

    def shifted(offset: int) -> Floats:
        return padded[(slice(None),) * axis + (slice(radius + offset, radius + offset + side),)]

    total = shifted(0) * np.float32(weights[0])
    both = np.empty_like(total)
    for offset, weight in enumerate(weights[1:], start=1):
        if weight != 0:
            np.add(shifted(-offset), shifted(offset), out=both)
            both *= np.float32(weight)
            total += both
    return total


@lru_cache(maxsize=8)
def _wide_gaussian(sigma: float, radius: int, side: int, border: Border) -> Floats:
    """Return the (side, side) matrix that smooths with a Gaussian wider than the image."""
    matrix = np.zeros((side, side))
    for offset, weight in enumerate(gaussian_weights(sigma, radius), start=-radius):
        np.add.at(matrix, (np.arange(side), inside(np.arange(side) + offset, side, border)), weight)
    return matrix.astype(np.float32)


def smooth(x: Floats, sigma: float, border: Border = "nearest", truncate: float = 4.0) -> Floats:
    """Smooth height and width with a Gaussian."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return x
    weights = gaussian_weights(sigma, radius)[radius:]
    for axis in (1, 2):
        side = x.shape[axis]
        if radius < side:
            x = convolve_symmetric(pad(x, radius, axis, border), weights, axis)
        else:
            # Image by image: the order of this sum could depend on the number of images.
            matrix = _wide_gaussian(sigma, radius, side, border)
            turned = x.swapaxes(1, axis)
            flat = turned.reshape(len(x), side, -1)
            sums = np.stack([np.einsum("ij,jk->ik", matrix, image) for image in flat])
            x = sums.reshape(turned.shape).swapaxes(1, axis)
    return x


def zoom_extent(side: int, zoom: float) -> tuple[int, int]:
    """Return the side of the center crop and the side that it is enlarged to."""
    crop = math.ceil(side / zoom)
    return crop, max(side, round(crop * zoom))


def _enlarge(x: Floats, axis: int, crop: int, enlarged: int) -> Floats:
    """Linearly enlarge the center of an axis from `crop` to `enlarged`, corners aligned, and crop to its center."""
    if crop == enlarged:
        return x
    side = x.shape[axis]
    cropped = np.arange(side) + (enlarged - side) // 2
    position = cropped * ((crop - 1) / (enlarged - 1))
    lower = np.minimum(position.astype(np.intp), max(crop - 2, 0))
    fraction = (position - lower).astype(np.float32).reshape((side,) + (1,) * (x.ndim - axis - 1))
    lower += (side - crop) // 2
    below: Floats = np.take(x, lower, axis=axis)
    above: Floats = np.take(x, np.minimum(lower + 1, side - 1), axis=axis)
    above -= below
    above *= fraction
    above += below
    return above


def zoom_center(x: Floats, rows: tuple[int, int], columns: tuple[int, int]) -> Floats:
    """Zoom into the center by the `zoom_extent`s of height and width."""
    return _enlarge(_enlarge(x, 1, *rows), 2, *columns)


def _neighbors(position: Floats, side: int, border: Border) -> tuple[Indices, Indices, Floats]:
    """Return the two folded neighbors of each position and the fraction between them."""
    margin = 2 * side
    folded = inside(np.arange(-margin, side + margin + 1), side, border)
    position = np.clip(position, -margin, side + margin - 1)
    floor = np.floor(position)
    index = floor.astype(np.intp)
    index += margin
    return np.take(folded, index), np.take(folded, index + 1), position - floor


def sample(x: Floats, rows: Floats, columns: Floats, border: Border) -> Floats:
    """Read (N, H, W, C) at (N, H', W') positions, bilinearly."""
    count, height, width, channels = x.shape
    top, bottom, down = _neighbors(rows, height, border)
    left, right, across = _neighbors(columns, width, border)
    first = np.arange(count)[:, None, None] * (height * width)
    top = top * width + first
    bottom = bottom * width + first
    corners = top + left, top + right, bottom + left, bottom + right
    result = np.empty((*rows.shape, channels), dtype=np.float32)
    # Channel by channel: numpy is slow where the innermost axis has three entries.
    for channel in range(channels):
        plane = x[..., channel].ravel()
        upper, upper_right, lower, lower_right = (np.take(plane, corner) for corner in corners)
        upper_right -= upper
        upper_right *= across
        upper += upper_right
        lower_right -= lower
        lower_right *= across
        lower += lower_right
        lower -= upper
        lower *= down
        upper += lower
        result[..., channel] = upper
    return result
