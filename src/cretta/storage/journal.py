"""The finished parts of a long computation and its state after them: a killed process is continued by the next one.

Rows are stored in numbered parts. The state after part n is written after the part itself, so that rows beyond the
newest readable state are removed and computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cretta.errors import StateError
from cretta.storage.files import TEMPORARY, atomic_write
from cretta.storage.manifest import Manifest

STATES = 2
"""States that are stored, in case the newest is damaged."""
_SETTINGS = "settings.json"
_FILES = ("part-*", "state-*", _SETTINGS, TEMPORARY)


@dataclass(frozen=True)
class Position:
    """How far the computation is: the number of finished batches, and what the caller stored with them."""

    batches: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)


class Journal:
    """A folder with the rows of finished batches and the states after them; for one process at a time."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, remedy: str = "") -> None:
        """``settings`` are everything that the rows depend on; ``remedy`` says how to start over if they differ."""
        self.folder = folder
        self.manifest = Manifest(folder / _SETTINGS, settings, remedy=remedy)
        self.position = Position()
        self._parts: list[Path] = []
        self._states: list[Path] = []

    @property
    def is_empty(self) -> bool:
        """Whether no part is stored."""
        return not any(self.folder.glob("part-*"))

    def check(self) -> None:
        """Raise :class:`~cretta.errors.StateError` if the stored parts were made with other settings."""
        if not self.is_empty:
            self.manifest.check()

    def resume(
        self, restore: Callable[[Path], None], check: Callable[[Position], None] = lambda position: None
    ) -> Position:
        """Restore the newest readable state by ``restore`` and return its position; remove what comes after it.

        ``check`` is called before, and raises if the computation cannot continue from that position.
        """
        states = {int(file.stem.partition("-")[2]): file for file in self.folder.glob("state-*.safetensors")}
        for batches in sorted(states, reverse=True):
            parts = self._parts_until(batches)
            if not parts or not all(map(_is_readable, parts)):
                continue
            position = Position(
                batches, {k.decode(): v.decode() for k, v in pq.read_schema(parts[-1]).metadata.items()}
            )
            check(position)
            try:
                restore(states[batches])
            except StateError:
                continue
            self._parts, self._states, self.position = parts, [states[batches]], position
            break
        self.clear(keep=(self.manifest.path, *self._parts, *self._states))
        return self.position

    def _parts_until(self, end: int) -> list[Path]:
        """The parts from the first batch to batch ``end``, or none if one is missing."""
        by_start = {}
        for part in self.folder.glob("part-*.parquet"):
            first, last = map(int, part.stem.split("-")[1:])
            if last <= end:
                by_start[first] = (part, last)
        parts, batches = [], 0
        while batches < end:
            if batches not in by_start:
                return []
            part, batches = by_start[batches]
            parts.append(part)
        return parts

    def append(self, rows: pa.Table, save: Callable[[Path], None], now: Position) -> None:
        """Store the rows of the batches since the last call, then the state after them, which ``save`` writes."""
        if not self._parts:
            self.folder.mkdir(exist_ok=True)
            self.manifest.write()
        part = self.folder / f"part-{self.position.batches:08d}-{now.batches:08d}.parquet"
        with atomic_write(part) as temporary:
            pq.write_table(rows.replace_schema_metadata(dict(now.facts)), temporary, write_page_checksum=True)
        state = self.folder / f"state-{now.batches:08d}.safetensors"
        save(state)
        self.position = now
        self._parts.append(part)
        self._states.append(state)
        while len(self._states) > STATES:
            self._states.pop(0).unlink()

    def tables(self) -> Iterator[pa.Table]:
        """Return the stored rows, part by part."""
        for part in self._parts:
            yield pq.read_table(part).replace_schema_metadata(None)

    def clear(self, keep: tuple[Path, ...] = ()) -> None:
        """Remove the files of the journal; files of others stay."""
        for pattern in _FILES:
            for file in self.folder.glob(pattern):
                if file not in keep and file.is_file():
                    file.unlink()


def _is_readable(part: Path) -> bool:
    try:
        pq.read_table(part, page_checksum_verification=True)
    except (pa.ArrowException, OSError):
        return False
    return True
