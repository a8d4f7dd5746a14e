"""Reading images for a run: what they are called, whether one has changed, and which cannot be read."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cretta.data.dataset import ArrayDataset, FileDataset, ImageDataset, Pixels
from cretta.errors import StateError
from cretta.options import unknown
from cretta.streams import Batch

ON_ERROR = ("stop", "skip")


class UnreadableError(StateError):
    """An image that cannot be read, and is not to be skipped."""


@dataclass(frozen=True)
class Reader:
    """Reads batches of a dataset, and finds the images in them that cannot be read."""

    dataset: ImageDataset
    names: ImageNames
    workers: int | None
    on_error: str

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise unknown("on_error", str(self.on_error), ON_ERROR)

    def read(self, batch: Batch) -> tuple[Pixels | None, dict[int, str], bytes]:
        """Pixels of the images that can be read, why the others cannot, and the marks of all."""
        indices = batch.indices
        marks = self.marks(indices)
        try:
            return self.dataset.read(indices, workers=self.workers), {}, marks
        except StateError as wrong:
            if self.on_error == "stop":
                raise UnreadableError(str(wrong)) from wrong
        unreadable = {}
        for place, index in enumerate(indices.tolist()):
            try:
                self.dataset[index]
            except StateError as wrong:
                unreadable[place] = str(wrong)
        rest = np.delete(indices, list(unreadable))
        return (self.dataset.read(rest, workers=self.workers) if len(rest) else None), unreadable, marks

    def marks(self, indices: NDArray[np.int64]) -> bytes:
        """What would be another if one of these images were."""
        return "".join(self.names.mark(index) for index in indices.tolist()).encode()


class ImageNames:
    """What each image of a dataset is called in the output, and by which mark a change of it shows.

    ``source`` is the folder or file that the dataset was opened from.
    """

    def __init__(self, dataset: ImageDataset, source: Path | None) -> None:
        self._dataset = dataset
        self._files = dataset.files if isinstance(dataset, FileDataset) else None
        self._folder = source if source is not None and source.is_dir() else None
        self._prefix = source.name if source is not None else dataset.name
        self._container = "" if source is None or self._folder is not None else _stamp(source)

    def name(self, index: int) -> str:
        """The file, relative to the folder given; ``array.npy#3`` in a file of many."""
        if self._files is None:
            return f"{self._prefix}#{index}"
        file = self._files[index]
        if self._folder is not None and file.is_relative_to(self._folder):
            file = file.relative_to(self._folder)
        # Names of files may be no text at all; the table takes nothing else.
        return file.as_posix().encode("utf-8", "backslashreplace").decode()

    def mark(self, index: int) -> str:
        """Another string when the image is another: by size and time of a file, by the pixels of an array."""
        if self._files is not None:
            stamp = _stamp(self._files[index])
        elif self._container or not isinstance(self._dataset, ArrayDataset):
            stamp = self._container
        else:
            stamp = f"{zlib.crc32(self._dataset[index][0].tobytes()):08x}"
        return f"{self.name(index)} {stamp}\n"


def _stamp(file: Path) -> str:
    try:
        found = file.stat()
    except OSError:
        return "missing"
    return f"{found.st_size} {found.st_mtime_ns}"
