"""Noise: every value of every channel changes independently."""

import numpy as np

from cretta.data.corruptions.draws import Draws
from cretta.data.corruptions.parameters import Values
from cretta.data.corruptions.pixels import Pixels, to_bytes, to_unit


def gaussian_noise(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Add N(0, c), as a sensor does in low light."""
    (deviation,) = values
    noise = draws.normal(*images.shape[1:])
    noise *= np.float32(deviation)
    noise += to_unit(images)
    return to_bytes(noise)


def shot_noise(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Return Poisson(x·c) / c, as for counted photons."""
    (photons,) = values
    counts = draws.poisson(to_unit(images) * np.float32(photons))
    return to_bytes(np.divide(counts, photons, dtype=np.float32))


def impulse_noise(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Turn a fraction c of all values to 0 or 1, with equal probability."""
    (fraction,) = values
    chance = draws.uniform(0, 1, *images.shape[1:])
    noisy = images.copy()
    noisy[chance < np.float32(fraction)] = 255
    noisy[chance < np.float32(fraction / 2)] = 0
    return noisy


def speckle_noise(images: Pixels, draws: Draws, values: Values) -> Pixels:
    """Add x·N(0, c)."""
    (deviation,) = values
    noise = draws.normal(*images.shape[1:])
    noise *= np.float32(deviation)
    noise += 1
    noise *= to_unit(images)
    return to_bytes(noise)
