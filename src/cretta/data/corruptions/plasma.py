"""Plasma fractals: clouds by midpoint displacement on a torus."""

import numpy as np

from cretta.data.corruptions.draws import Draws
from cretta.data.corruptions.pixels import Floats


def plasma(draws: Draws, side: int, decay: float) -> Floats:
    """Return (N, side, side) clouds in [0, 1] by diamond-square; `side` is a power of two."""
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
