"""The corruptions once more: one image at a time, in double precision, slowly and plainly.

Each takes an image in [0, 1], the parameters of one severity, and a source of random numbers, and returns the result
before it is clipped and stored. With the library's own `Draws` of one image as the source, results must agree; with
`Independent` numbers they must agree in distribution.
"""

import colorsys
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float64]
Values = tuple[float, ...]


class Source(Protocol):
    def uniform(self, low: float, high: float, *shape: int) -> NDArray[Any]: ...
    def normal(self, *shape: int) -> NDArray[Any]: ...
    def integers(self, low: int, high: int, *shape: int) -> NDArray[Any]: ...
    def poisson(self, rates: Any) -> NDArray[Any]: ...


class Independent:
    """Another generator altogether, with the batch dimension of one that `Draws` has."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def uniform(self, low: float, high: float, *shape: int) -> NDArray[Any]:
        return self.random.uniform(low, high, (1, *shape))

    def normal(self, *shape: int) -> NDArray[Any]:
        return self.random.normal(size=(1, *shape))

    def integers(self, low: int, high: int, *shape: int) -> NDArray[Any]:
        return self.random.integers(low, high, (1, *shape))

    def poisson(self, rates: Any) -> NDArray[Any]:
        return np.asarray(self.random.poisson(rates))


def stored(x: Image) -> NDArray[np.uint8]:
    # A millionth, for a value that is a whole number but for rounding.
    return (np.clip(x, 0, 1) * 255 + 1e-6).astype(np.uint8)


def gaussian_noise(x: Image, values: Values, source: Source) -> Image:
    return np.asarray(x + values[0] * source.normal(*x.shape)[0])


def shot_noise(x: Image, values: Values, source: Source) -> Image:
    return np.asarray(source.poisson((x * values[0])[None])[0] / values[0])


def impulse_noise(x: Image, values: Values, source: Source) -> Image:
    chance = source.uniform(0, 1, *x.shape)[0]
    return np.where(chance < values[0] / 2, 0, np.where(chance < values[0], 1, x))


def speckle_noise(x: Image, values: Values, source: Source) -> Image:
    return np.asarray(x + x * values[0] * source.normal(*x.shape)[0])


def mirrored(index: int, side: int) -> int:
    """Reflect-101: the border pixel itself is not repeated."""
    while not 0 <= index < side:
        index = -index if index < 0 else 2 * (side - 1) - index
    return index


def doubled(index: int, side: int) -> int:
    """Reflect: the border pixel is repeated."""
    while not 0 <= index < side:
        index = -index - 1 if index < 0 else 2 * side - 1 - index
    return index


def clamped(index: int, side: int) -> int:
    return min(max(index, 0), side - 1)


Fold = Callable[[int, int], int]


def convolve_rows(x: Image, weights: list[float], fold: Fold) -> Image:
    radius = len(weights) // 2
    result = np.zeros_like(x)
    for row in range(len(x)):
        for offset, weight in enumerate(weights):
            result[row] += weight * x[fold(row + offset - radius, len(x))]
    return result


def smoothed(x: Image, sigma: float, fold: Fold = clamped, truncate: float = 4.0) -> Image:
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return x
    weights = [math.exp(-(k**2) / (2 * sigma**2)) for k in range(-radius, radius + 1)]
    weights = [weight / sum(weights) for weight in weights]
    rows = convolve_rows(x, weights, fold)
    return convolve_rows(rows.swapaxes(0, 1), weights, fold).swapaxes(0, 1)


def defocus_blur(x: Image, values: Values, source: Source) -> Image:
    radius, alias = values
    reach, rim = (8, 1) if radius <= 8 else (int(radius), 2)
    disk = np.zeros((2 * reach + 1, 2 * reach + 1))
    for row in range(-reach, reach + 1):
        for column in range(-reach, reach + 1):
            disk[row + reach, column + reach] = row**2 + column**2 <= radius**2
    disk /= disk.sum()
    weights = [math.exp(-(k**2) / (2 * alias**2)) for k in range(-rim, rim + 1)]
    weights = [weight / sum(weights) for weight in weights]
    disk = convolve_rows(convolve_rows(disk, weights, mirrored).T, weights, mirrored).T
    height, width, _ = x.shape
    result = np.zeros_like(x)
    for row in range(-reach, reach + 1):
        for column in range(-reach, reach + 1):
            rows = [mirrored(k + row, height) for k in range(height)]
            columns = [mirrored(k + column, width) for k in range(width)]
            result += disk[row + reach, column + reach] * x[rows][:, columns]
    return result


def gaussian_blur(x: Image, values: Values, source: Source) -> Image:
    return smoothed(x, values[0])


def glass_walk(x: NDArray[Any], delta: int, moves: NDArray[Any]) -> NDArray[Any]:
    """One pass as published: from the last pixel to the first, each receives a neighbor."""
    x = x.copy()
    height, width = x.shape[:2]
    across, down = moves
    for row in range(height - delta, delta, -1):
        for column in range(width - delta, delta, -1):
            place = row - delta - 1, column - delta - 1
            x[row, column] = x[row + down[place], column + across[place]]
    return x


def glass_blur(x: Image, values: Values, source: Source) -> Image:
    sigma, delta, iterations = values[0], int(values[1]), int(values[2])
    height, width, _ = x.shape
    pixels = stored(smoothed(x, sigma))
    for _ in range(iterations):
        moves = source.integers(-delta, delta, 2, height - 2 * delta, width - 2 * delta)[0]
        pixels = glass_walk(pixels, delta, moves)
    return smoothed(pixels / 255, sigma)


def streaked(x: Image, degrees: float, radius: int, sigma: float) -> Image:
    height, width = x.shape[:2]
    weights = [math.exp(-(k**2) / (2 * sigma**2)) for k in range(2 * radius + 1)]
    result = np.zeros_like(x)
    for k, weight in enumerate(weights):
        down = math.ceil(k * math.sin(math.radians(degrees)) - 0.5)
        across = math.ceil(k * math.cos(math.radians(degrees)) - 0.5)
        rows = [clamped(row + down, height) for row in range(height)]
        columns = [clamped(column + across, width) for column in range(width)]
        result += weight / sum(weights) * x[rows][:, columns]
    return result


def motion_blur(x: Image, values: Values, source: Source) -> Image:
    # Half a level: ImageMagick rounds.
    return streaked(x, float(source.uniform(-45, 45)[0]), int(values[0]), values[1]) + 0.5 / 255


def zoomed_rows(x: Image, zoom: float) -> Image:
    side = len(x)
    crop = math.ceil(side / zoom)
    top = (side - crop) // 2
    piece = x[top : top + crop]
    enlarged = round(crop * zoom)
    result = []
    for row in range(enlarged):
        position = row * (crop - 1) / (enlarged - 1)
        lower = min(int(position), crop - 2)
        fraction = position - lower
        result.append((1 - fraction) * piece[lower] + fraction * piece[lower + 1])
    trim = (enlarged - side) // 2
    return np.array(result[trim : trim + side])


def zoomed(x: Image, zoom: float) -> Image:
    return zoomed_rows(zoomed_rows(x, zoom).swapaxes(0, 1), zoom).swapaxes(0, 1)


def zoom_blur(x: Image, values: Values, source: Source) -> Image:
    number, step = int(values[0]), values[1]
    zooms = np.arange(1, 1 + (number - 0.5) * step, step)
    assert len(zooms) == number
    return np.asarray((x + sum(zoomed(x, float(zoom)) for zoom in zooms)) / (number + 1))


def snow(x: Image, values: Values, source: Source) -> Image:
    mean, deviation, zoom, threshold, radius, sigma, mix = values
    height, width, _ = x.shape
    flakes = zoomed(mean + deviation * source.normal(height, width, 1)[0], zoom)
    flakes[flakes < threshold] = 0
    driven = streaked(stored(flakes) / 255, float(source.uniform(-135, -45)[0]), int(radius), sigma)
    layer = np.rint(driven * 255) / 255
    gray = (x @ np.array([0.299, 0.587, 0.114]))[..., None]
    whitened = mix * x + (1 - mix) * np.maximum(x, 1.5 * gray + 0.5)
    return np.asarray(whitened + layer + np.rot90(layer, 2))


def clouds(side: int, decay: float, source: Source) -> Image:
    """Diamond-square on a torus, cell by cell."""
    height = np.zeros((side, side))
    step, wibble = side, 100.0
    while step > 1:
        half = step // 2
        cells = range(side // step)
        jitter = source.uniform(-(wibble**2), wibble**2, 3, side // step, side // step)[0]

        def at(row: int, column: int) -> float:
            return float(height[row % side, column % side])

        for i in cells:
            for j in cells:
                r, c = i * step, j * step
                square = at(r, c) + at(r + step, c) + at(r, c + step) + at(r + step, c + step)
                height[r + half, c + half] = square / 4 + jitter[0, i, j]
        for i in cells:
            for j in cells:
                r, c = i * step, j * step
                top = at(r, c) + at(r, c + step) + at(r - half, c + half) + at(r + half, c + half)
                height[r, c + half] = top / 4 + jitter[1, i, j]
                side_on = at(r, c) + at(r + step, c) + at(r + half, c - half) + at(r + half, c + half)
                height[r + half, c] = side_on / 4 + jitter[2, i, j]
        step, wibble = half, wibble / decay
    height -= height.min()
    return np.asarray(height / height.max())


def fog(x: Image, values: Values, source: Source) -> Image:
    strength, decay = values
    height, width, _ = x.shape
    side = 2 ** math.ceil(math.log2(max(height, width)))
    foggy = x + strength * clouds(side, decay, source)[:height, :width, None]
    return np.asarray(foggy * x.max() / (x.max() + strength))


def in_hsv(x: Image, change: Callable[[float, float, float], tuple[float, float, float]]) -> Image:
    changed = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel))) for pixel in x.reshape(-1, 3)]
    return np.array(changed).reshape(x.shape)


def brightness(x: Image, values: Values, source: Source) -> Image:
    return in_hsv(x, lambda h, s, v: (h, s, min(v + values[0], 1)))


def saturate(x: Image, values: Values, source: Source) -> Image:
    return in_hsv(x, lambda h, s, v: (h, min(max(s * values[0] + values[1], 0), 1), v))


def contrast(x: Image, values: Values, source: Source) -> Image:
    result = np.empty_like(x)
    for channel in range(3):
        mean = x[..., channel].mean()
        result[..., channel] = (x[..., channel] - mean) * values[0] + mean
    return result


def bilinear(x: Image, row: float, column: float, fold: Fold) -> Image:
    height, width, _ = x.shape
    top, left = math.floor(row), math.floor(column)
    down, across = row - top, column - left
    value = np.zeros(3)
    for y, weight_y in ((top, 1 - down), (top + 1, down)):
        for z, weight_z in ((left, 1 - across), (left + 1, across)):
            value += weight_y * weight_z * x[fold(y, height), fold(z, width)]
    return value


def elastic_transform(x: Image, values: Values, source: Source) -> Image:
    amplitude, sigma, reach = values
    height, width, _ = x.shape
    spread = min(height, width) // 3
    corners = [(width // 2 + a * spread, height // 2 + b * spread) for a, b in ((1, 1), (1, -1), (-1, -1))]
    moves = source.uniform(-reach, reach, 3, 2)[0]
    moved = [(cx + mx, cy + my) for (cx, cy), (mx, my) in zip(corners, moves, strict=True)]
    # Straight to the inverse: the affine map that takes the moved points back to the corners.
    backward = np.linalg.solve(np.array([[mx, my, 1] for mx, my in moved]), np.array(corners)).T
    warped = np.empty_like(x)
    for row in range(height):
        for column in range(width):
            from_x, from_y = backward @ np.array([column, row, 1])
            warped[row, column] = bilinear(x, from_y, from_x, mirrored)
    if amplitude == 0:
        return warped
    shifts = amplitude * smoothed(source.uniform(-1, 1, height, width, 2)[0].astype(float), sigma, doubled, 3.0)
    result = np.empty_like(x)
    for row in range(height):
        for column in range(width):
            down, across = shifts[row, column]
            result[row, column] = bilinear(warped, row + down, column + across, doubled)
    return result


def boxed_rows(x: Image, side: int) -> Image:
    """Mean of the rows, in gray levels, whose centers lie in the new row's span, rounded as Pillow does."""
    scale = len(x) / side
    span = max(scale, 1) / 2
    result = []
    for row in range(side):
        center = (row + 0.5) * scale
        rows = [k for k in range(len(x)) if -span < k + 0.5 - center <= span]
        result.append(np.mean([x[k] for k in rows], axis=0))
    return np.floor(np.array(result) + 0.5)


def pixelate(x: Image, values: Values, source: Source) -> Image:
    height, width, _ = x.shape
    x = np.rint(x * 255)
    for rows, columns in ((int(height * values[0]), int(width * values[0])), (height, width)):
        x = boxed_rows(boxed_rows(x.swapaxes(0, 1), columns).swapaxes(0, 1), rows)
    return x / 255


# ITU-T T.81, Annex K.1.
_LUMINANCE = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)


def jpeg_steps(gray: NDArray[np.uint8], quality: int) -> Image:
    """Cosine coefficients of (H, W) in 8 × 8 blocks, in units of the quality's quantization steps."""
    factor = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = np.clip((_LUMINANCE * factor + 50) // 100, 1, 255)
    k, n = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    cosines = np.cos((2 * n + 1) * k * np.pi / 16) * np.where(k == 0, math.sqrt(1 / 8), 1 / 2)
    height, width = gray.shape
    blocks = [
        cosines @ (gray[row : row + 8, column : column + 8] - 128.0) @ cosines.T / table
        for row in range(0, height, 8)
        for column in range(0, width, 8)
    ]
    return np.array(blocks)
