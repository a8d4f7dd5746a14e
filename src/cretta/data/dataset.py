"""Labeled sets of images: in memory, mapped from disk, or decoded from files when they are read."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile

from cretta.errors import OptionError, StateError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Indices = Sequence[int] | NDArray[np.integer[Any]]
Size = int | tuple[int, int] | None

CHUNK = 16
"""Maximum of images that a thread decodes at once; fewer of a small set, so that all threads work until the end."""


@runtime_checkable
class ImageDataset(Protocol):
    """The interface of all datasets. Labels are known without decoding an image; all are -1 if there are none."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def labels(self) -> Labels: ...  # noqa: D102
    @property
    def classes(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def domain(self) -> str: ...  # noqa: D102
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[Pixels, int]: ...
    def read(self, indices: Indices, *, workers: int | None = None) -> Pixels:
        """Return many images at once, uint8 (N, H, W, 3)."""


@dataclass(frozen=True, eq=False)
class ArrayDataset:
    """Images (N, H, W, 3) as bytes, labels (N,), the class names, and the domain they come from."""

    name: str
    images: Pixels = field(repr=False)
    labels: Labels = field(repr=False)
    classes: tuple[str, ...]
    domain: str = ""

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[3] != 3:
            raise OptionError(
                f"images of {self.name} are {self.images.dtype} of shape {self.images.shape}: "
                "give uint8 of shape (N, H, W, 3)."
            )
        _check_labels(self.name, self.labels, len(self.images), self.classes)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        image = self.images[index]
        # An image that is mapped from disk is read-only, and torch warns about that.
        return image if image.flags.writeable else np.array(image), int(self.labels[index])

    def read(self, indices: Indices, *, workers: int | None = None) -> Pixels:
        """Return copies of many images, uint8 (N, H, W, 3); nothing is decoded, so ``workers`` is not used."""
        count_workers(workers)
        return np.asarray(self.images[_checked_indices(indices, len(self), self.name)])


@dataclass(frozen=True, eq=False)
class FileDataset:
    """Image files with their labels, decoded to RGB when they are read, many at once on threads.

    ``size=224`` scales the shorter side to 256 (224 / 0.875) and crops the center, as ImageNet models are evaluated;
    ``size=(height, width)`` scales to that size; None does not change images. Scaling is bilinear with antialiasing. As
    in the benchmarks, a rotation in EXIF is not applied. Values v of 16 bits become round(v / 257).
    """

    name: str
    files: tuple[Path, ...]
    labels: Labels
    classes: tuple[str, ...]
    domain: str = ""
    size: Size = None

    def __post_init__(self) -> None:
        _check_labels(self.name, self.labels, len(self.files), self.classes)
        sides = self.size if isinstance(self.size, tuple) and len(self.size) == 2 else (self.size,)
        if self.size is not None and not all(is_integer(side, 1) for side in sides):
            raise OptionError(f"size={self.size!r}: give a side such as 224, (height, width), or None.")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        return np.array(self._decode(index)), int(self.labels[index])

    def read(self, indices: Indices, *, workers: int | None = None) -> Pixels:
        """Decode many images on ``workers`` threads, by default one per core, into one uint8 array (N, H, W, 3)."""
        chosen = _checked_indices(indices, len(self), self.name)
        threads = count_workers(workers)
        if len(chosen) == 0:
            sides = self.size if isinstance(self.size, tuple) else (self.size or 0,) * 2
            return np.empty((0, *sides, 3), np.uint8)
        first = self._decode(chosen[0])
        images = np.empty((len(chosen), *first.shape), np.uint8)
        images[0] = first
        chunk = max(1, min(CHUNK, len(chosen) // (4 * threads)))

        def decode(start: int) -> None:
            for position in range(start, min(start + chunk, len(chosen))):
                image = self._decode(chosen[position])
                if image.shape != first.shape:
                    raise OptionError(
                        f"images of {self.name} differ in size: {self.files[chosen[0]]} is {first.shape[:2]}, "
                        f"{self.files[chosen[position]]} is {image.shape[:2]}. Give a size to scale them to, such as "
                        "224."
                    )
                images[position] = image

        # Threads: Pillow releases the GIL while it decodes and scales; processes were slower, because they start and
        # copy pixels. Below about 100 px, opening a file takes most of the time, with the GIL held: little is gained.
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(decode, range(1, len(chosen), chunk)):
                pass
        return images

    def _decode(self, index: int) -> Pixels:
        """Return one image, scaled and cropped; it may be read-only."""
        return decode_image(self.files[index], str(self.files[index]), self.size)


def decode_image(encoded: Path | BytesIO, name: str, size: Size = None) -> Pixels:
    """Return the RGB pixels of an image in a file or in bytes, scaled and cropped; ``name`` is for messages."""
    try:
        with Image.open(encoded) as opened:
            return np.asarray(_resized(_rgb(opened, encoded, name), size))
    except (StateError, MemoryError):
        raise
    # Damage raises OSError, SyntaxError, ValueError, EOFError, struct.error and more, depending on the format.
    except Exception as error:
        raise StateError(f"{name} cannot be read as an image ({error}): replace or remove it.") from error


def as_batch(pixels: Pixels, device: "str | torch.device | None" = None) -> "Tensor":
    """Return uint8 pixels (N, H, W, 3) as a float tensor (N, 3, H, W) with values in [0, 1], as models take them."""
    import torch  # only where it is used: datasets can be listed and downloaded without it

    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float().div_(255)


def is_integer(value: object, low: int, high: float = np.inf) -> bool:
    """Return whether ``value`` is an integer in the range, of Python or numpy; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(low <= value <= high)


def integer_labels(labels: object, source: str) -> Labels:
    """Return ``labels`` as int64; raise if they are not integers in one dimension."""
    array = np.asarray(labels)
    if array.ndim != 1 or (len(array) and not np.issubdtype(array.dtype, np.integer)):
        raise StateError(
            f"{source} holds labels of type {array.dtype} and shape {array.shape}: expected integers, one per image."
        )
    return array.astype(np.int64)


def _resized(image: Image.Image, size: Size) -> Image.Image:
    if size is None:
        return image
    if isinstance(size, tuple):
        height, width = size
        return _scaled(image, width, height)
    shorter, side = round(size / 0.875), min(image.size)
    image = _scaled(image, int(shorter * image.width / side), int(shorter * image.height / side))
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def _scaled(image: Image.Image, width: int, height: int) -> Image.Image:
    same = image.size == (width, height)
    return image if same else image.resize((width, height), Image.Resampling.BILINEAR)


def _rgb(opened: Image.Image, encoded: Path | BytesIO, name: str) -> Image.Image:
    levels = _sixteen_bits(opened, encoded)
    if levels is not None:
        return Image.fromarray(((levels.astype(np.uint32) + 128) // 257).astype(np.uint8)).convert("RGB")
    if opened.mode == "RGB":
        opened.load()
        return opened
    if opened.mode[0] in "IF":
        # Pillow would clip these to white.
        raise StateError(f"{name} has pixels of type {opened.mode}; expected 8 or 16 bits: convert it.")
    if opened.mode == "P" and "transparency" in opened.info:
        return opened.convert("RGBA").convert("RGB")
    return opened.convert("RGB")


def _sixteen_bits(opened: Image.Image, encoded: Path | BytesIO) -> NDArray[np.integer[Any]] | None:
    """Return the values of an image with 16 bits per channel, without transparency; None for other images."""
    if opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format == "PNG"):
        return np.asarray(opened)
    tile: Any = opened.tile[0] if isinstance(opened, ImageFile) and opened.format == "PNG" and opened.tile else None
    if tile is None or tile[3] not in ("RGB;16B", "RGBA;16B"):
        return None
    # Pillow reads the high bytes of colors and drops the low ones; with the byte order reversed, it reads the low ones.
    high = np.asarray(opened).astype(np.uint16)
    with Image.open(encoded) as again:
        again.tile = [(*tile[:3], tile[3].replace("16B", "16L"))]  # type: ignore[list-item]  # a named tuple since Pillow 11
        low = np.asarray(again).astype(np.uint16)
    return (high * 256 + low)[..., :3]


def _check_labels(name: str, labels: Labels, count: int, classes: tuple[str, ...]) -> None:
    if labels.dtype != np.int64 or labels.shape != (count,):
        raise OptionError(
            f"labels of {name} are {labels.dtype} of shape {labels.shape}: "
            f"give int64 of shape {(count,)}, one per image."
        )
    if count and not (labels.min() >= 0 and labels.max() < len(classes)) and not (labels == -1).all():
        raise OptionError(
            f"labels of {name} run from {labels.min()} to {labels.max()}: "
            f"give 0 to {len(classes) - 1}, one for each of the {len(classes)} classes, or -1 for all if unknown."
        )


def _checked_indices(indices: Indices, count: int, name: str) -> NDArray[np.int64]:
    array = np.asarray(indices)
    if array.ndim != 1 or (len(array) and not np.issubdtype(array.dtype, np.integer)):
        raise OptionError(f"indices are {array.dtype} of shape {array.shape}: give a list of integers.")
    if len(array) and not (array.min() >= 0 and array.max() < count):
        raise OptionError(
            f"indices run from {array.min()} to {array.max()}: {name} has {count} images, so give 0 to {count - 1}."
        )
    return array.astype(np.int64)


def count_workers(workers: int | None) -> int:
    """Return the number of threads: ``workers``, or one per core."""
    if workers is None:
        # The cores that this process may use: in a container, fewer than the machine has.
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not is_integer(workers, 1):
        raise OptionError(f"workers={workers!r}: give an integer of at least 1, or None for one per core.")
    return workers
