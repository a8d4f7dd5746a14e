"""The binary values of a column of Parquet files, row by row, in bounded memory."""

import os
import tempfile
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cretta.errors import StateError

MEMORY = 256 * 2**20
"""Bytes of encoded images kept in memory, unless told otherwise."""

_BATCH = 16 * 2**20
"""Bytes taken from a row group at once, about."""


@dataclass(frozen=True)
class Part:
    """A Parquet file, what its footer says, and the column wanted: ``image``, or ``image.bytes`` in a struct."""

    path: Path
    footer: Any
    column: str


class RowGroups:
    """Values by row number, counted through all parts.

    The last row groups used are kept in memory. What a second look shows to be read in no order, or what is too large
    to keep, is unpacked once into a temporary file: a Parquet file gives up a single row only by reading its group
    from the beginning, which in a random order would cost the square of the rows.
    """

    def __init__(self, parts: Sequence[Part], memory: int = MEMORY) -> None:
        self.parts, self.memory = tuple(parts), memory
        self._groups = [(part, group) for part in self.parts for group in range(part.footer.num_row_groups)]
        rows = [part.footer.row_group(group).num_rows for part, group in self._groups]
        self._starts: list[int] = [0, *accumulate(rows)]
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _InMemory] = OrderedDict()
        self._seen: set[int] = set()
        self._unpacked: dict[int, _InFile] = {}
        self._file: IO[bytes] | None = None

    def __getstate__(self) -> tuple[tuple[Part, ...], int]:
        return self.parts, self.memory

    def __setstate__(self, state: tuple[tuple[Part, ...], int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __len__(self) -> int:
        return self._starts[-1]

    def called(self, row: int) -> str:
        """File and row, for messages; rows count from 0 in each file."""
        group = self._group(row)
        part = self._groups[group][0]
        first = next(place for place, (each, _) in enumerate(self._groups) if each is part)
        return f"{part.path}, row {row - self._starts[first]},"

    def __getitem__(self, row: int) -> bytes | None:
        """The value of a row, None where it is NULL; from any thread."""
        if self._owner != os.getpid():
            # Forked: the place in an open file would be shared with the parent.
            self._begin()
        group = self._group(row)
        place = row - self._starts[group]
        with self._lock:
            held = self._unpacked.get(group) or self._kept.get(group) or self._load(group)
            if group in self._kept:
                self._kept.move_to_end(group)
            return held[place]

    def _group(self, row: int) -> int:
        return bisect_right(self._starts, row) - 1

    def _load(self, group: int) -> "_InMemory | _InFile":
        arrays = self._arrays(group)
        begun: list[Any] = []
        if group not in self._seen:
            self._seen.add(group)
            for array in arrays:
                begun.append(array)
                # Several must fit, for threads work on both sides of a border.
                if sum(each.nbytes for each in begun) > self.memory // 4:
                    break
            else:
                self._kept[group] = _InMemory(begun)
                while sum(each.bytes for each in self._kept.values()) > self.memory:
                    self._kept.popitem(last=False)
                return self._kept[group]
        self._unpacked[group] = self._unpack(chain(begun, arrays))
        return self._unpacked[group]

    def _arrays(self, group: int) -> Iterator[Any]:
        """The group's values, piece by piece."""
        part, number = self._groups[group]
        facts = part.footer.row_group(number)
        columns = [facts.column(place) for place in range(facts.num_columns)]
        size = sum(each.total_uncompressed_size for each in columns if each.path_in_schema == part.column)
        rows = max(1, min(1024, facts.num_rows * _BATCH // max(size, 1)))
        try:
            # A buffer, for without one the whole group is read before its first row.
            with pq.ParquetFile(part.path, metadata=part.footer, buffer_size=2**20, pre_buffer=False) as file:
                batches = file.iter_batches(rows, row_groups=[number], columns=[part.column], use_threads=False)
                for batch in batches:
                    values = batch.column(0)
                    if pa.types.is_struct(values.type):
                        values = pc.struct_field(values, "bytes")
                    yield values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        except (pa.ArrowException, OSError) as error:
            raise StateError(f"{part.path} cannot be read as a Parquet file ({error}): restore the file.") from error

    def _unpack(self, arrays: Iterable[Any]) -> "_InFile":
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as its owner lives)
            weakref.finalize(self, self._file.close)
        begin = self._file.seek(0, os.SEEK_END)
        lengths: list[int] = []
        try:
            for array in arrays:
                lengths += [-1 if value is None else self._file.write(value) for value in array.to_pylist()]
            self._file.flush()
        except OSError as error:
            raise StateError(
                f"{tempfile.gettempdir()} cannot take the row groups that do not fit into memory ({error}): make room "
                "there, or name another folder in the environment variable TMPDIR."
            ) from error
        return _InFile(self._file, begin, np.asarray(lengths, np.int64))


class _InMemory:
    """Arrays of a group."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = arrays
        self.starts = [0, *accumulate(map(len, arrays))]
        self.bytes: int = sum(each.nbytes for each in arrays)

    def __getitem__(self, place: int) -> bytes | None:
        array = bisect_right(self.starts, place) - 1
        value: bytes | None = self.arrays[array][place - self.starts[array]].as_py()
        return value


class _InFile:
    """Where the values of a group lie in the temporary file; a length of -1 is a NULL."""

    def __init__(self, file: IO[bytes], begin: int, lengths: NDArray[np.int64]) -> None:
        self.file, self.lengths = file, lengths
        self.offsets = begin + np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0)

    def __getitem__(self, place: int) -> bytes | None:
        if self.lengths[place] < 0:
            return None
        self.file.seek(self.offsets[place])
        return self.file.read(self.lengths[place])
