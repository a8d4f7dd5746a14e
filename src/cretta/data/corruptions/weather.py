"""Weather: snow, frost, fog, brightness."""

import numpy as np

from cretta.data.corruptions.draws import Draws
from cretta.data.corruptions.parameters import Values
from cretta.data.corruptions.photographs import frost_photographs
from cretta.data.corruptions.pixels import Floats, Pixels, to_bytes, to_unit
from cretta.data.corruptions.resample import zoom_center, zoom_extent
from cretta.data.corruptions.streak import streak

_LUMINANCE = (np.float32(0.299), np.float32(0.587), np.float32(0.114))


def _gray(x: Floats) -> Floats:
    red, green, blue = _LUMINANCE
    gray: Floats = x[..., :1] * red + x[..., 1:2] * green + x[..., 2:] * blue
    return gray


def snow(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Add flakes, thresholded noise with motion blur, to a whitened image."""
    mean, deviation, zoom, threshold, radius, sigma, mix = values
    _, height, width, _ = images.shape
    flakes = draws.normal(height, width, 1)
    flakes *= np.float32(deviation)
    flakes += np.float32(mean)
    flakes = zoom_center(flakes, zoom_extent(height, zoom), zoom_extent(width, zoom))
    flakes = np.where(flakes < np.float32(threshold), np.float32(0), flakes)
    driven = streak(to_bytes(flakes), draws.uniform(-135, -45), int(radius), sigma)
    layer = np.rint(driven) / np.float32(255)
    x = to_unit(images)
    whitened = np.maximum(x, np.float32(1.5) * _gray(x) + np.float32(0.5))
    x *= np.float32(mix)
    whitened *= np.float32(1 - mix)
    x += whitened
    x += layer
    x += layer[:, ::-1, ::-1]
    return to_bytes(x)


def frost(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Mix with a random piece of a photograph of frost."""
    image_weight, frost_weight, scale = values
    _, height, width, _ = images.shape
    photographs = frost_photographs(scale, height, width)
    pieces = np.empty_like(images)
    positions = draws.uniform(0, 1, 3)
    for piece, (which, down, across) in zip(pieces, positions, strict=True):
        photograph = photographs[int(which * len(photographs))]
        top = int(down * max(photograph.shape[0] - height, 1))
        left = int(across * max(photograph.shape[1] - width, 1))
        piece[:] = photograph[top : top + height, left : left + width]
    x = np.multiply(images, np.float32(image_weight / 255), dtype=np.float32)
    x += np.multiply(pieces, np.float32(frost_weight / 255), dtype=np.float32)
    return to_bytes(x)


def _plasma(draws: Draws, side: int, decay: float) -> Floats:
    """Return (N, side, side) clouds in [0, 1] by midpoint displacement on a torus; `side` is a power of two."""
    clouds = np.zeros((draws.count, side, side), dtype=np.float32)
    step, wibble = side, 100.0
    while step >= 2:
        half, cells = step // 2, side // step
        # The published generator scales a draw from ±wibble by wibble once more.
        jitter = draws.uniform(-(wibble**2), wibble**2, 3, cells, cells)
        corners = clouds[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=1)
        centers = (pairs + np.roll(pairs, -1, axis=2)) / 4 + jitter[:, 0]
        clouds[:, half::step, half::step] = centers
        beside = corners + np.roll(corners, -1, axis=2) + centers + np.roll(centers, 1, axis=1)
        clouds[:, ::step, half::step] = beside / 4 + jitter[:, 1]
        beneath = corners + np.roll(corners, -1, axis=1) + centers + np.roll(centers, 1, axis=2)
        clouds[:, half::step, ::step] = beneath / 4 + jitter[:, 2]
        step, wibble = half, wibble / decay
    clouds -= clouds.min(axis=(1, 2), keepdims=True)
    clouds /= clouds.max(axis=(1, 2), keepdims=True)
    return clouds


def fog(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Add a plasma fractal, and scale to about the image's own range."""
    strength, decay = values
    _, height, width, _ = images.shape
    side = max(2, 1 << (max(height, width) - 1).bit_length())
    clouds = _plasma(draws, side, decay)[:, :height, :width, None]
    brightest = to_unit(images.max(axis=(1, 2, 3), keepdims=True))
    x = to_unit(images)
    x += clouds * np.float32(strength)
    x *= brightest / (brightest + np.float32(strength))
    return to_bytes(x)


def brightness(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Add c to V in HSV: at fixed hue and saturation all three channels scale with V, and black turns gray."""
    (shift,) = values
    x = to_unit(images)
    value = np.maximum(np.maximum(x[..., :1], x[..., 1:2]), x[..., 2:])
    raised = np.minimum(value + np.float32(shift), np.float32(1))
    black = value == 0
    value[black] = 1
    x *= raised / value
    x += np.where(black, raised, np.float32(0))
    return to_bytes(x)
