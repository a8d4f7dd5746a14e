"""Read images for predictions: their names, whether one has changed, and which cannot be read."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cretta.data.dataset import ArrayDataset, FileDataset, ImageDataset, Pixels
from cretta.errors import StateError
from cretta.options import known
from cretta.streams import Batch

ON_ERROR = ("stop", "skip")


class UnreadableError(StateError):
    """An image cannot be read and must not be skipped."""


class Reader:
    """Reads batches of a dataset; knows the names of its images, and which of them cannot be read.

    ``source`` is the folder or file that the dataset was opened from.
    """

    def __init__(self, dataset: ImageDataset, source: Path | None, workers: int | None, on_error: str) -> None:
        self.on_error = known("on_error", str(on_error), ON_ERROR)
        self.dataset = dataset
        self.workers = workers
        self._files = dataset.files if isinstance(dataset, FileDataset) else None
        self._folder = source if source is not None and source.is_dir() else None
        self._prefix = source.name if source is not None else dataset.name
        self._container = "" if source is None or self._folder is not None else _stamp(source)

    def read(self, batch: Batch) -> tuple[Pixels | None, dict[int, str], bytes]:
        """Return the pixels of the readable images, by position why the others are not, and the stamps of all."""
        indices = batch.indices
        stamps = self.stamps(indices)
        try:
            return self.dataset.read(indices, workers=self.workers), {}, stamps
        except StateError as error:
            if self.on_error == "stop":
                raise UnreadableError(str(error)) from error
        unreadable = {}
        for position, index in enumerate(indices.tolist()):
            try:
                self.dataset[index]
            except StateError as error:
                unreadable[position] = str(error)
        rest = np.delete(indices, list(unreadable))
        return (self.dataset.read(rest, workers=self.workers) if len(rest) else None), unreadable, stamps

    def stamps(self, indices: NDArray[np.int64]) -> bytes:
        """Return bytes that differ if one of these images does."""
        return "".join(map(self._stamp, indices.tolist())).encode()

    def name(self, index: int) -> str:
        """Return the name in the output: the path relative to the folder; ``array.npy#3`` in a file of many images."""
        if self._files is None:
            return f"{self._prefix}#{index}"
        file = self._files[index]
        if self._folder is not None and file.is_relative_to(self._folder):
            file = file.relative_to(self._folder)
        # Names of files can be bytes that are not text; the table takes text only.
        return file.as_posix().encode("utf-8", "backslashreplace").decode()

    def _stamp(self, index: int) -> str:
        """Return a string that differs when the image does: by size and time of a file, by the pixels of an array."""
        if self._files is not None:
            stamp = _stamp(self._files[index])
        elif self._container or not isinstance(self.dataset, ArrayDataset):
            stamp = self._container
        else:
            stamp = f"{zlib.crc32(self.dataset[index][0].tobytes()):08x}"
        return f"{self.name(index)} {stamp}\n"


def _stamp(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"
