"""Labelled sets of images: in memory, mapped from disk, or decoded from files when asked for."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
"""Images that a thread takes at once, at most; of few images fewer, so that all threads have work until the end."""


@runtime_checkable
class ImageDataset(Protocol):
    """What every dataset here offers. Labels are known without decoding an image; -1 throughout if there are none."""

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
        """Many images at once, uint8 (N, H, W, 3)."""


@dataclass(frozen=True, eq=False)
class ArrayDataset:
    """Images (N, H, W, 3) as bytes, labels (N,), the class names, and the domain they come from."""

    name: str
    images: Pixels
    labels: Labels
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
        # An image mapped from disk cannot be written to, and torch warns about such.
        return image if image.flags.writeable else np.array(image), int(self.labels[index])

    def read(self, indices: Indices, *, workers: int | None = None) -> Pixels:
        """Copies of many images, uint8 (N, H, W, 3); there is nothing to decode, so ``workers`` does nothing."""
        count_workers(workers)
        return np.asarray(self.images[_checked(indices, len(self), self.name)])


class DecodedDataset:
    """What datasets of encoded images share: images are decoded to RGB when asked for, many at once on threads."""

    name: str
    labels: Labels
    size: Size
    shorter: int | None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        return np.array(self._decode(index)), int(self.labels[index])

    def read(self, indices: Indices, *, workers: int | None = None) -> Pixels:
        """Decodes many images on ``workers`` threads, by default one a core, into one uint8 array (N, H, W, 3)."""
        chosen = _checked(indices, len(self), self.name)
        threads = count_workers(workers)
        if len(chosen) == 0:
            sides = self.size if isinstance(self.size, tuple) else (self.size or 0,) * 2
            return np.empty((0, *sides, 3), np.uint8)
        # In the order in which they are stored, so that what holds many of them is read once.
        places = np.argsort(chosen, kind="stable")
        least = int(chosen[places[0]])
        first = self._decode(least)
        images = np.empty((len(chosen), *first.shape), np.uint8)
        images[places[0]] = first
        chunk = max(1, min(CHUNK, len(chosen) // (4 * threads)))

        def decode(start: int) -> None:
            for place in places[start : start + chunk]:
                index = int(chosen[place])
                image = self._decode(index)
                if image.shape != first.shape:
                    raise OptionError(
                        f"images of {self.name} differ in size: {self._called(least)} is {first.shape[:2]}, "
                        f"{self._called(index)} is {image.shape[:2]}. Give a size to scale them to, such as 224."
                    )
                images[place] = image

        # Threads: Pillow gives up the lock while it decodes and scales, and processes measured slower, for their start
        # and the copying of pixels. Below 100 px or so, opening a file, under the lock, weighs most and little is won.
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(decode, range(1, len(chosen), chunk)):
                pass
        return images

    def _decode(self, index: int) -> Pixels:
        """One image, fitted; it may be read-only."""
        raise NotImplementedError

    def _called(self, index: int) -> str:
        """How a message names an image."""
        raise NotImplementedError

    def _check(self, classes: tuple[str, ...], count: int) -> None:
        _check_labels(self.name, self.labels, count, classes)
        sides = self.size if isinstance(self.size, tuple) and len(self.size) == 2 else (self.size,)
        if self.size is not None and not all(is_whole(side, 1) for side in sides):
            raise OptionError(f"size={self.size!r}: give a side such as 224, (height, width), or None.")
        if self.shorter is not None and (
            self.size is None or isinstance(self.size, tuple) or not is_whole(self.shorter, self.size)
        ):
            raise OptionError(
                f"shorter={self.shorter!r}: it is the shorter side before a square is cut out, whose side is "
                f"{'not given' if self.size is None else self.size}; give a whole number of at least that side, or "
                "leave it out."
            )

    def _opened(self, encoded: Path | BytesIO, index: int) -> Pixels:
        """The image in a file or in bytes, fitted."""
        try:
            with Image.open(encoded) as opened:
                return np.asarray(self._fitted(_rgb(opened, encoded, self._called(index))))
        except (StateError, MemoryError):
            raise
        # Damage shows as OSError, SyntaxError, ValueError, EOFError, struct.error and more, by format and place.
        except Exception as error:
            raise StateError(
                f"{self._called(index)} cannot be read as an image ({error}): replace or remove it."
            ) from error

    def _fitted(self, image: Image.Image) -> Image.Image:
        if self.size is None:
            return image
        if isinstance(self.size, tuple):
            height, width = self.size
            return _scaled(image, width, height)
        shorter = self.shorter or round(self.size / 0.875)
        least = min(image.size)
        image = _scaled(image, int(shorter * image.width / least), int(shorter * image.height / least))
        left, top = round((image.width - self.size) / 2), round((image.height - self.size) / 2)
        return image.crop((left, top, left + self.size, top + self.size))


@dataclass(frozen=True, eq=False)
class FileDataset(DecodedDataset):
    """Image files with their labels, decoded to RGB when asked for.

    ``size=224`` scales the shorter side to 256 (``shorter``, by default size / 0.875) and cuts out the centre, as
    ImageNet models are evaluated; ``size=(height, width)`` scales to just that; None leaves images as they are.
    Scaling is bilinear with antialiasing. As in the benchmarks, a rotation noted in EXIF is not applied. Values v of 16
    bits become round(v / 257).
    """

    name: str
    files: tuple[Path, ...]
    labels: Labels
    classes: tuple[str, ...]
    domain: str = ""
    size: Size = None
    shorter: int | None = None

    def __post_init__(self) -> None:
        self._check(self.classes, len(self.files))

    def _decode(self, index: int) -> Pixels:
        return self._opened(self.files[index], index)

    def _called(self, index: int) -> str:
        return str(self.files[index])


def as_batch(pixels: Pixels, device: "str | torch.device | None" = None) -> "Tensor":
    """Return uint8 pixels (N, H, W, 3) as a float tensor (N, 3, H, W) with values in [0, 1], as models take them."""
    import torch  # only where it is used: datasets can be listed and downloaded without it

    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float().div_(255)


def is_whole(value: object, least: int, most: float = np.inf) -> bool:
    """Whether ``value`` is a whole number in the range, numpy's included; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(least <= value <= most)


def whole_labels(labels: object, what: str) -> Labels:
    """``labels`` as int64, if they are whole numbers in one row."""
    found = np.asarray(labels)
    if found.ndim != 1 or (len(found) and not np.issubdtype(found.dtype, np.integer)):
        raise StateError(
            f"{what} holds labels of type {found.dtype} and shape {found.shape}: needed are "
            "whole numbers, one an image."
        )
    return found.astype(np.int64)


def _scaled(image: Image.Image, width: int, height: int) -> Image.Image:
    same = image.size == (width, height)
    return image if same else image.resize((width, height), Image.Resampling.BILINEAR)


def _rgb(opened: Image.Image, encoded: Path | BytesIO, called: str) -> Image.Image:
    levels = _sixteen_bits(opened, encoded)
    if levels is not None:
        return Image.fromarray(((levels.astype(np.uint32) + 128) // 257).astype(np.uint8)).convert("RGB")
    if opened.mode == "RGB":
        opened.load()
        return opened
    if opened.mode[0] in "IF":
        # Pillow would clip these to white.
        raise StateError(f"{called} has pixels of type {opened.mode}; expected 8 or 16 bits: convert it.")
    if opened.mode == "P" and "transparency" in opened.info:
        return opened.convert("RGBA").convert("RGB")
    return opened.convert("RGB")


def _sixteen_bits(opened: Image.Image, encoded: Path | BytesIO) -> NDArray[np.integer[Any]] | None:
    """The values of an image of 16 bits per channel, without transparency; None for other images."""
    if opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format == "PNG"):
        return np.asarray(opened)
    tile: Any = opened.tile[0] if isinstance(opened, ImageFile) and opened.format == "PNG" and opened.tile else None
    if tile is None or tile[3] not in ("RGB;16B", "RGBA;16B"):
        return None
    # Pillow reads the high bytes of colors and drops the low ones; told that high bytes come last, it reads the low.
    high = np.asarray(opened).astype(np.uint16)
    with Image.open(encoded) as again:
        again.tile = [(*tile[:3], tile[3].replace("16B", "16L"))]  # type: ignore[list-item]  # a named tuple of late
        low = np.asarray(again).astype(np.uint16)
    return (high * 256 + low)[..., :3]


def _check_labels(name: str, labels: Labels, count: int, classes: tuple[str, ...]) -> None:
    if labels.dtype != np.int64 or labels.shape != (count,):
        raise OptionError(
            f"labels of {name} are {labels.dtype} of shape {labels.shape}: "
            f"give int64 of shape {(count,)}, one an image."
        )
    if count and not (labels.min() >= 0 and labels.max() < len(classes)) and not (labels == -1).all():
        raise OptionError(
            f"labels of {name} run from {labels.min()} to {labels.max()}: "
            f"give 0 to {len(classes) - 1}, one for each of the {len(classes)} classes, or -1 for all if unknown."
        )


def _checked(indices: Indices, count: int, name: str) -> NDArray[np.int64]:
    found = np.asarray(indices)
    if found.ndim != 1 or (len(found) and not np.issubdtype(found.dtype, np.integer)):
        raise OptionError(f"indices are {found.dtype} of shape {found.shape}: give a list of whole numbers.")
    if len(found) and not (found.min() >= 0 and found.max() < count):
        raise OptionError(
            f"indices run from {found.min()} to {found.max()}: {name} has {count} images, so give 0 to {count - 1}."
        )
    return found.astype(np.int64)


def count_workers(workers: int | None) -> int:
    """How many threads ``workers`` asks for: by default one a core."""
    if workers is None:
        # What this process may use, which in a container is less than what the machine has.
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not is_whole(workers, 1):
        raise OptionError(f"workers={workers!r}: give a whole number from 1 up, or None for one a core.")
    return workers
