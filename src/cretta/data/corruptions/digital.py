"""Digital corruptions: contrast, elastic distortion, pixelation, JPEG, saturation."""

from io import BytesIO

import numpy as np
from PIL import Image

from cretta.data.corruptions.draws import Draws
from cretta.data.corruptions.parameters import Values
from cretta.data.corruptions.pixels import Floats, Pixels, to_bytes, to_unit
from cretta.data.corruptions.resample import sample, smooth


def contrast(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Return (x − m)·c + m, with m the mean of a channel."""
    (factor,) = values
    # A sum of integers is exact, so it does not depend on the order of summation.
    sums = images.sum(axis=(1, 2), keepdims=True, dtype=np.int64)
    means = sums / (255.0 * images.shape[1] * images.shape[2])
    x = np.multiply(images, np.float32(factor / 255), dtype=np.float32)
    x += (means * (1 - factor)).astype(np.float32)
    return to_bytes(x)


def _affine_positions(draws: Draws, height: int, width: int, reach: float) -> tuple[Floats, Floats]:
    """Return where each pixel comes from when three points around the center move by up to `reach`."""
    middle, spread = np.array([width // 2, height // 2]), max(min(height, width) // 3, 1)
    corners = middle + spread * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + draws.uniform(-reach, reach, 3, 2).astype(np.float64)
    forward = np.swapaxes(moved, 1, 2) @ np.linalg.inv(np.column_stack([corners, np.ones(3)]).T)
    (a, b, u), (c, d, v) = forward.transpose(1, 2, 0)[..., None, None]
    determinant = a * d - b * c
    determinant = np.where(np.abs(determinant) < 1e-6, 1e-6, determinant)
    x, y = np.arange(width) - u, np.arange(height)[:, None] - v
    columns = (d * x - b * y) / determinant
    rows = (a * y - c * x) / determinant
    return rows.astype(np.float32), columns.astype(np.float32)


def elastic_transform(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Warp by a random affine map, then by a smooth random displacement of every pixel."""
    amplitude, sigma, reach = values
    _, height, width, _ = images.shape
    x = sample(to_unit(images), *_affine_positions(draws, height, width, reach), border="reflect-101")
    if amplitude > 0:
        shifts = smooth(draws.uniform(-1, 1, height, width, 2), sigma, "reflect", truncate=3.0)
        shifts *= np.float32(amplitude)
        rows, columns = shifts[..., 0], shifts[..., 1]
        rows += np.arange(height, dtype=np.float32)[:, None]
        columns += np.arange(width, dtype=np.float32)
        x = sample(x, rows, columns, border="reflect")
    return to_bytes(x)


def pixelate(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Box-resize to a fraction of the side and back."""
    (fraction,) = values
    _, height, width, _ = images.shape
    small = max(int(width * fraction), 1), max(int(height * fraction), 1)
    coarse = np.empty_like(images)
    for image, target in zip(images, coarse, strict=True):
        reduced = Image.fromarray(image).resize(small, Image.Resampling.BOX)
        target[:] = np.asarray(reduced.resize((width, height), Image.Resampling.BOX))
    return coarse


def jpeg_compression(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Encode as JPEG and decode."""
    (quality,) = values
    decoded = np.empty_like(images)
    for image, target in zip(images, decoded, strict=True):
        stream = BytesIO()
        Image.fromarray(image).save(stream, "JPEG", quality=int(quality))
        target[:] = np.asarray(Image.open(stream))
    return decoded


def saturate(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Set S to S·scale + shift in HSV: channels move to or from V; a gray pixel has hue 0, so a shift turns it red."""
    scale, shift = values
    x = to_unit(images)
    value = np.maximum(np.maximum(x[..., :1], x[..., 1:2]), x[..., 2:])
    below = value - x
    depth = np.maximum(np.maximum(below[..., :1], below[..., 1:2]), below[..., 2:])
    # depth = V·S, so below / depth is the hue alone.
    gray = depth == 0
    saturation = depth / np.where(value == 0, np.float32(1), value)
    raised: Floats = np.clip(saturation * np.float32(scale) + np.float32(shift), 0, 1)
    below /= np.where(gray, np.float32(1), depth)
    hue: Floats = np.where(gray, np.array([0, 1, 1], dtype=np.float32), below)
    hue *= value * raised
    return to_bytes(value - hue)
