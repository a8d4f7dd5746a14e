"""Conversion between bytes and floats in [0, 1], as the published data were stored."""

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Rounding errors of float32 must not change a gray level where an exact value is truncated.
_SLACK = np.float32(1e-3)


def to_unit(images: Pixels) -> Floats:
    """Convert bytes 0 … 255 to [0, 1]."""
    return np.multiply(images, np.float32(1 / 255), dtype=np.float32)


def to_bytes(x: Floats) -> Pixels:
    """Clip to [0, 1] and truncate to bytes; `x` is used as working memory."""
    x *= np.float32(255)
    x += _SLACK
    np.clip(x, 0, 255, out=x)
    return x.astype(np.uint8)
