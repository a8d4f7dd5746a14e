"""The binary values of a column of Parquet files, row by row, in bounded memory."""

import os
import tempfile
import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cretta.errors import StateError

MEMORY = 256 * 2**20
"""Bytes of encoded images that are held in memory; with more, all are moved to a temporary file."""

_BATCH = 16 * 2**20
"""Approximate bytes that are read from a file at once."""


@dataclass(frozen=True)
class Part:
    """A Parquet file, its metadata, and the column with the values: ``image``, or ``image.bytes`` in a struct."""

    path: Path
    footer: Any
    column: str


class ParquetRows:
    """Values by row number, counted through all parts.

    A Parquet file gives a single row only by reading its row group from the beginning, so each row group is read once,
    at the first access to one of its rows. Values are copied one after the other to memory or to a temporary file, from
    which rows are read in any order.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self._groups = [(part, number) for part in self.parts for number in range(part.footer.num_row_groups)]
        counts = [part.footer.row_group(number).num_rows for part, number in self._groups]
        self._starts: list[int] = [0, *accumulate(counts)]
        self._process, self._lock = os.getpid(), threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._spans: dict[int, list[tuple[int, int] | None]] = {}
        """Start and length of each value in the file, by row group; None for NULL."""
        self._file = tempfile.SpooledTemporaryFile(MEMORY)  # noqa: SIM115  (open as long as its owner lives)
        weakref.finalize(self, self._file.close)

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetRows, (self.parts,)

    def __len__(self) -> int:
        return self._starts[-1]

    def describe(self, row: int) -> str:
        """Return the file and the row in it, counted from 0, for messages."""
        part, _ = self._groups[self._group_of(row)]
        first = self._starts[self._groups.index((part, 0))]
        return f"{part.path}, row {row - first},"

    def __getitem__(self, row: int) -> bytes | None:
        """Return the value of a row, None where it is NULL; from any thread."""
        if self._process != os.getpid():
            # After a fork, the position in the open file is shared with the parent process.
            self._process, self._lock = os.getpid(), threading.Lock()
            self._clear()
        group = self._group_of(row)
        with self._lock:
            if group not in self._spans:
                self._spans[group] = [self._store(value) for value in _read(*self._groups[group])]
            span = self._spans[group][row - self._starts[group]]
            if span is None:
                return None
            self._file.seek(span[0])
            return self._file.read(span[1])

    def _group_of(self, row: int) -> int:
        return bisect_right(self._starts, row) - 1

    def _store(self, value: bytes | None) -> tuple[int, int] | None:
        if value is None:
            return None
        try:
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(value)
        except OSError as error:
            self._clear()  # what was in memory can be lost
            raise StateError(
                f"{tempfile.gettempdir()} cannot take the images that do not fit into memory ({error}): free some "
                "space there, or name another folder in the environment variable TMPDIR."
            ) from error
        return start, len(value)


def _read(part: Part, number: int) -> Iterator[bytes | None]:
    """Read the values of a row group in batches."""
    group = part.footer.row_group(number)
    columns = [group.column(index) for index in range(group.num_columns)]
    size = sum(column.total_uncompressed_size for column in columns if column.path_in_schema == part.column)
    rows = max(1, min(1024, group.num_rows * _BATCH // max(size, 1)))
    try:
        # With a buffer: without one, a complete row group is read before its first row.
        with pq.ParquetFile(part.path, metadata=part.footer, buffer_size=2**20, pre_buffer=False) as file:
            for batch in file.iter_batches(rows, row_groups=[number], columns=[part.column], use_threads=False):
                values = batch.column(0)
                if pa.types.is_struct(values.type):
                    values = pc.struct_field(values, "bytes")
                yield from values.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise StateError(f"{part.path} cannot be read as a Parquet file ({error}): restore the file.") from error
