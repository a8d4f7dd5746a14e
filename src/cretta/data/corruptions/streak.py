"""ImageMagick's motion blur, for a batch in which each image has its own direction."""

import numpy as np
from numpy.typing import NDArray

from cretta.data.corruptions.pixels import Floats, Pixels

# Taps lighter than this cannot move any value by a hundredth of a gray level.
_NEGLIGIBLE = 1e-6


def streak(layers: Pixels, degrees: Floats, radius: int, sigma: float) -> Floats:
    """Blur (N, H, W, C) bytes along one direction per image: a one-sided Gaussian of 2·radius + 1 taps.

    Values outside the image are those of its edge. The result keeps the scale 0 … 255.
    """
    count, height, width, channels = layers.shape
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    weights /= weights.sum()
    used = int((weights > _NEGLIGIBLE).sum())
    radians = np.deg2rad(degrees.astype(np.float64))[:, None]
    down: NDArray[np.intp] = np.ceil(steps[:used] * np.sin(radians) - 0.5).astype(np.intp)
    across: NDArray[np.intp] = np.ceil(steps[:used] * np.cos(radians) - 0.5).astype(np.intp)

    margin = used - 1
    padded = np.pad(layers, ((0, 0), (margin, margin), (margin, margin), (0, 0)), mode="edge")
    # All shifts of all images as one view, so that a tap is one block copy per image.
    shifted = np.lib.stride_tricks.sliding_window_view(
        padded.reshape(count, height + 2 * margin, -1), (height, width * channels), axis=(1, 2)
    )
    blurred = np.zeros((count, height, width * channels), dtype=np.float32)
    images = np.arange(count)
    for tap in range(used):
        seen = shifted[images, down[:, tap] + margin, (across[:, tap] + margin) * channels]
        blurred += np.multiply(seen, np.float32(weights[tap]), dtype=np.float32)
    return blurred.reshape(layers.shape)
