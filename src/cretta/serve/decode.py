"""Images from the bytes of a request: JPEG, PNG, .npy, multipart; checked before anything large is allocated."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import PIL.Image
from numpy.lib import format as npy
from numpy.typing import NDArray

from cretta.data.dataset import as_batch, decode_image
from cretta.errors import StateError
from cretta.serve.refusal import Refusal
from cretta.serve.requests import Image

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NPY = b"\x93NUMPY"
FORMATS = ("JPEG", "PNG")
TYPES = ("image/jpeg", "image/png", "application/x-npy", "application/octet-stream")
"""Content types of a body that is one file; its first bytes say what it is."""
MULTIPART = "multipart/form-data"
IMAGES_AT_MAX = 4
"""All images of a request may have as many pixels as so many of the largest size: decoding takes time."""
SCAN, MAX_SCANS = b"\xff\xda", 64
"""What begins a scan of a JPEG, and how many it may have: each is decoded in full size."""


@dataclasses.dataclass(frozen=True)
class ImageFormat:
    """The images that the model takes, and how large those of a request may be."""

    side: int | tuple[int, int]
    """Scaled to: the side of a center crop, or (height, width)."""
    max_pixels: int = 20_000_000
    max_images: int = 256

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.side if isinstance(self.side, tuple) else (self.side, self.side)

    def decode(self, files: Sequence[bytes]) -> list[Image]:
        """Return the images of all files, or raise :class:`Refusal`."""
        images: list[Image] = []
        left = IMAGES_AT_MAX * self.max_pixels
        for content in files:
            if content.startswith(NPY):
                images += self.array(_read_npy(content, self.max_pixels * 3 * self.max_images), "NHWC")
            else:
                image, pixels = self._encoded(content, left)
                images.append(image)
                left -= pixels
            self.check_count(len(images))
        self.check_count(len(images))
        return images

    def check_count(self, count: int) -> None:
        """Raise unless a request may have so many images."""
        if count == 0:
            raise Refusal(422, "expected at least one image, got none.")
        if count > self.max_images:
            raise Refusal(413, f"expected at most {self.max_images} images per request, got more; send several.")

    def _encoded(self, content: bytes, left: int) -> tuple[NDArray[np.uint8], int]:
        """Return an image, and how many pixels it had, of which ``left`` are allowed."""
        try:
            with PIL.Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                width, height = opened.size
        except PIL.UnidentifiedImageError:
            raise Refusal(415, "expected a JPEG, PNG or .npy file, got something else.") from None
        except PIL.Image.DecompressionBombError:
            raise Refusal(413, f"expected an image of at most {self.max_pixels} pixels; make it smaller.") from None
        except Exception as error:  # damage raises nearly anything
            raise Refusal(422, f"the image cannot be read ({error}); send it again.") from None
        # A narrow image is enlarged until its shorter side fits.
        enlarged = 1 if isinstance(self.side, tuple) else self.side / 0.875 / min(width, height)
        if width * height * max(1, enlarged) ** 2 > self.max_pixels:
            raise Refusal(
                413, f"expected at most {self.max_pixels} pixels, got {width} x {height}; make the image smaller."
            )
        if width * height > left:
            most = IMAGES_AT_MAX * self.max_pixels
            raise Refusal(413, f"expected at most {most} pixels in all images of a request, got more; send several.")
        if content.startswith(b"\xff\xd8") and content.count(SCAN) > MAX_SCANS:
            raise Refusal(422, f"expected a JPEG of at most {MAX_SCANS} scans, got more; save it again.")
        try:
            return decode_image(io.BytesIO(content), "the image", self.side), width * height
        except (StateError, MemoryError) as error:
            raise Refusal(422, str(error).replace("replace or remove it", "send it again")) from None

    def array(self, array: NDArray[np.generic], layout: str) -> list[Image]:
        """Return the images of an array of bytes, or of floats in [0, 1]; ``layout`` is NHWC or NCHW."""
        if array.ndim == 3:
            array = array[None]
        if array.ndim == 4:
            self.check_count(len(array))
        height, width = self.size
        shape = (height, width, 3) if layout == "NHWC" else (3, height, width)
        if array.shape[1:] != shape:
            raise Refusal(422, f"expected images of shape {shape}, got an array of shape {array.shape}.")
        if array.dtype.kind == "f":
            with np.errstate(invalid="ignore", over="ignore"):
                floats = array.astype(np.float32)
            # NaN fails both comparisons.
            if not bool((floats >= 0).all() and (floats <= 1).all()):
                raise Refusal(422, "expected floats from 0 to 1, got values outside or not finite; divide by 255.")
            array = floats
        elif array.dtype != np.uint8:
            raise Refusal(422, f"expected an array of uint8, or of floats from 0 to 1, got {array.dtype}.")
        images: NDArray[np.uint8] = array if layout == "NHWC" else array.transpose(0, 2, 3, 1)  # type: ignore[assignment]  # or float32
        return list(images)


def _read_npy(content: bytes, most: int) -> NDArray[np.generic]:
    """Read a .npy file without pickle, and without allocating more than the file has."""
    stream = io.BytesIO(content)
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"version {version[0]}.{version[1]}")
        shape, fortran, dtype = read(stream)
    # The header is a Python literal, and damage raises nearly anything.
    except Exception as error:
        raise Refusal(422, f"the .npy file cannot be read ({error}); save it by numpy.save.") from None
    if dtype.kind not in "fu" or dtype.hasobject:
        raise Refusal(422, f"expected a .npy file of uint8, or of floats from 0 to 1, got {dtype}.")
    count = math.prod(shape)
    if not 0 < count <= most or len(shape) > 4 or any(side < 0 for side in shape):
        raise Refusal(422, f"expected a .npy file of shape (N, height, width, 3), got {shape}.")
    if len(content) - stream.tell() != count * dtype.itemsize:
        raise Refusal(422, "the .npy file has more or fewer values than its header says; save it by numpy.save.")
    array = np.frombuffer(content, dtype, count, stream.tell())
    return array.reshape(shape, order="F" if fortran else "C")


def to_batch(images: Sequence[Image], device: torch.device) -> Tensor:
    """Return images as the model takes them: floats in [0, 1], (N, 3, H, W)."""
    import torch

    if all(image.dtype == np.uint8 for image in images):
        return as_batch(np.stack(images), device)
    return torch.cat(list(_tensors(images, device)))


def _tensors(images: Sequence[Image], device: torch.device) -> Iterator[Tensor]:
    import torch

    for image in images:
        if image.dtype == np.uint8:
            yield as_batch(image[None], device)  # type: ignore[arg-type]  # bytes
        else:
            yield torch.from_numpy(np.array(image)).to(device).permute(2, 0, 1)[None]
