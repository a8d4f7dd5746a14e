"""Spatter: drops of water or mud on the lens."""

import numpy as np
from numpy.typing import NDArray

from cretta.data.corruptions.draws import Draws
from cretta.data.corruptions.parameters import Values
from cretta.data.corruptions.pixels import Floats, Pixels, to_bytes, to_unit
from cretta.data.corruptions.resample import inside, smooth

Layer = NDArray[np.int32]

_PALE_TURQUOISE = np.array([175, 238, 238], dtype=np.float32) / 255
_MUD = np.array([63, 42, 20], dtype=np.float32) / 255
_FAR = 20
_RELIEF = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
_BOX = ((1, 1, 1), (1, 1, 1), (1, 1, 1))


def spatter(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Add smoothed noise above a threshold: translucent drops, or opaque mud."""
    mean, deviation, sigma, threshold, strength, mud = values
    liquid = draws.normal(*images.shape[1:3], 1)
    liquid *= np.float32(deviation)
    liquid += np.float32(mean)
    liquid = smooth(liquid, sigma)
    x = to_unit(images)
    if mud:
        cover = smooth((liquid > np.float32(threshold)).astype(np.float32), strength)
        cover[cover < np.float32(0.8)] = 0
        x *= 1 - cover
        x += cover * _MUD
        return to_bytes(x)
    liquid[liquid < np.float32(threshold)] = 0
    drops = to_bytes(liquid)[..., 0].astype(np.int32)
    shine = drops.astype(np.float32) * _relief(drops)
    shine /= np.maximum(shine.max(axis=(1, 2), keepdims=True), 1)
    shine *= np.float32(strength)
    x += shine[..., None] * _PALE_TURQUOISE
    return to_bytes(x)


def _relief(drops: Layer) -> Floats:
    """Return the light on the drops: an embossed, equalized map of the distance to their outlines."""
    distance = (_filter(_distance(_edges(drops)), _BOX) / 9).astype(np.int32)
    embossed = np.clip(_filter(_equalized(distance), _RELIEF), 0, 255)
    return np.rint(_filter(embossed, _BOX) / 9)


def _filter(layer: Floats, weights: tuple[tuple[int, ...], ...]) -> Floats:
    _, height, width = layer.shape
    rows = inside(np.arange(-1, height + 1), height, "reflect-101")
    columns = inside(np.arange(-1, width + 1), width, "reflect-101")
    padded = layer[:, rows][:, :, columns]
    total = np.zeros_like(layer)
    for down, row in enumerate(weights):
        for across, weight in enumerate(row):
            total += padded[:, down : down + height, across : across + width] * np.float32(weight)
    return total


def _edges(drops: Layer, low: int = 50, high: int = 150) -> NDArray[np.bool_]:
    """Return outlines by Canny's detector: thinned Sobel gradients that are connected to a strong one."""
    from scipy import ndimage  # only where it is used: it takes long to load

    _, height, width = drops.shape
    padded = np.pad(drops, ((0, 0), (1, 1), (1, 1)), mode="edge")
    rows = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    columns = padded[:, :, :-2] + 2 * padded[:, :, 1:-1] + padded[:, :, 2:]
    across, down = rows[:, :, 2:] - rows[:, :, :-2], columns[:, 2:] - columns[:, :-2]
    strength = np.abs(across) + np.abs(down)
    around = np.pad(strength, ((0, 0), (1, 1), (1, 1)))

    def neighbor(y: int, x: int) -> Layer:
        return around[:, 1 + y : 1 + y + height, 1 + x : 1 + x + width]

    tangent = np.tan(np.pi / 8)
    level = np.abs(down) < tangent * np.abs(across)
    steep = np.abs(across) < tangent * np.abs(down)
    falling = across * down >= 0
    peak_level = (strength > neighbor(0, -1)) & (strength >= neighbor(0, 1))
    peak_steep = (strength > neighbor(-1, 0)) & (strength >= neighbor(1, 0))
    peak_falling = (strength > neighbor(-1, -1)) & (strength > neighbor(1, 1))
    peak_rising = (strength > neighbor(-1, 1)) & (strength > neighbor(1, -1))
    peak = np.select([level, steep, falling], [peak_level, peak_steep, peak_falling], peak_rising)

    edges: NDArray[np.bool_] = ndimage.binary_propagation(
        peak & (strength > high), np.ones((1, 3, 3)), mask=peak & (strength > low)
    )
    return edges


def _distance(edges: NDArray[np.bool_]) -> Floats:
    """Return the Euclidean distance to the nearest edge, at most `_FAR`."""
    from scipy import ndimage

    far = np.full(edges.shape[1:], _FAR)  # where an image has no edge
    distances = [ndimage.distance_transform_edt(~image) if image.any() else far for image in edges]
    return np.minimum(distances, _FAR).astype(np.float32)


def _equalized(layer: Layer) -> Floats:
    """Equalize the histogram of small integers, image by image."""
    count = len(layer)
    flat = layer.reshape(count, -1)
    histogram = np.stack([(flat == level).sum(axis=1) for level in range(_FAR + 1)], axis=1)
    lowest = np.take_along_axis(histogram, (histogram > 0).argmax(axis=1)[:, None], axis=1)
    rest = flat.shape[1] - lowest
    cumulated = np.cumsum(histogram, axis=1) - lowest
    table = np.rint(np.maximum(cumulated, 0) * (255 / np.maximum(rest, 1))).astype(np.int32)
    # An image of one level has nothing to spread.
    equal = np.where(rest == 0, flat, np.take_along_axis(table, flat, axis=1))
    return equal.astype(np.float32).reshape(layer.shape)
