"""Bytes to unit floats and back, the way the published data was stored."""

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Rounding errors of float32 must not cost a whole grey level where truncation meets an exact value.
_SLACK = np.float32(1e-3)


def to_unit(images: Pixels) -> Floats:
    """Bytes 0 … 255 to [0, 1]."""
    return np.multiply(images, np.float32(1 / 255), dtype=np.float32)


def to_bytes(x: Floats) -> Pixels:
    """Clip to [0, 1] and truncate to bytes; `x` is used as working memory."""
    x *= np.float32(255)
    x += _SLACK
    np.clip(x, 0, 255, out=x)
    return x.astype(np.uint8)
