"""The work so far, kept beside the output, so that a process that dies can be followed by another.

Batches are kept in numbered parts. The adapter's state after batch n is written when the part that ends there is safe;
what a part holds beyond the newest whole state is thrown away and done again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from cretta.adapter import Adapter
from cretta.errors import BusyError, StateError
from cretta.storage import atomic_write, lock

OURS = ("settings.json", "lock", "part-*", "state-*", ".settings*", ".part-*", ".state-*", ".*.csv.*", ".*.parquet.*")
STATES = 2
"""How many states are kept, lest the disk has hurt the newest."""


@dataclass(frozen=True)
class Kept:
    """How far the work has come."""

    batches: int = 0
    images: int = 0
    mark: str = ""
    """Fingerprint of the images done."""


class WorkFolder:
    """The folder ``<output>.work`` and what is in it, for one process at a time.

    ``settings`` are everything, but the images, that the result depends on.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any], *, restart: bool = False) -> None:
        self.folder = output.with_name(f"{output.name}.work")
        self.settings: dict[str, Any] = json.loads(json.dumps(settings, default=str))  # as a file gives them back
        self.parts: list[Path] = []
        self._states: list[Path] = []
        self._restart = restart
        self._leaving = ExitStack()

    def __enter__(self) -> Self:
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            alone = self._leaving.enter_context(lock(self.folder / "lock"))
        if not alone:
            self._leaving.close()
            raise BusyError(f"another process is at work in {self.folder}; wait for it, or choose another output.")
        try:
            if self._restart:
                self._clear(keep=("lock",))
            self._compare()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        if self.folder.is_dir() and not any(self.folder.glob("part-*")):
            self.remove()
        self._leaving.close()

    def _compare(self) -> None:
        file = self.folder / "settings.json"
        if not any(self.folder.glob("part-*")):
            self._clear(keep=("lock",))
            with atomic_write(file) as temporary:
                temporary.write_text(json.dumps(self.settings, indent=1))
            return
        try:
            kept = json.loads(file.read_text())
        except (OSError, ValueError) as wrong:
            raise StateError(f"{file} cannot be read ({wrong}); restart=True starts over.") from wrong
        keys = [key for key in {**kept, **self.settings} if kept.get(key) != self.settings.get(key)]
        if keys:
            differences = "; ".join(_difference(key, kept.get(key), self.settings.get(key)) for key in keys)
            raise StateError(
                f"{self.folder} holds the beginning of another run: {differences}. Give what was given then, to go on "
                "with it; restart=True throws it away and starts over."
            )

    def resume(self, model: Adapter[Any], marked: Callable[[int], str]) -> Kept:
        """Takes ``model`` to the newest state that is whole; ``marked`` gives the fingerprint of so many images."""
        found = {int(file.stem.partition("-")[2]): file for file in self.folder.glob("state-*.safetensors")}
        for number in sorted(found, reverse=True):
            parts = self._chain(number)
            if not parts:
                continue
            facts = pq.read_schema(parts[-1]).metadata
            kept = Kept(number, int(facts[b"images"]), facts[b"mark"].decode())
            if marked(kept.images) != kept.mark:
                raise StateError(
                    f"of the {kept.images} images that are done, some were added, removed or changed since. Put them "
                    "back to go on; restart=True throws the work away and starts over."
                )
            try:
                model.restore(found[number])
            except StateError:
                continue
            self._clear(keep=("lock", "settings.json", found[number].name, *(part.name for part in parts)))
            self.parts, self._states = parts, [found[number]]
            return kept
        self._clear(keep=("lock", "settings.json"))
        return Kept()

    def _chain(self, end: int) -> list[Path]:
        """The parts from the first batch to batch ``end``, or none if one is missing."""
        by_start = {}
        for part in self.folder.glob("part-*.parquet"):
            first, last = map(int, part.stem.split("-")[1:])
            if last <= end:
                by_start[first] = (part, last)
        chain, at = [], 0
        while at < end:
            if at not in by_start:
                return []
            part, at = by_start[at]
            chain.append(part)
        return chain

    def keep(self, table: pa.Table, model: Adapter[Any], before: Kept, now: Kept) -> None:
        """Puts away the rows of the batches from ``before`` to ``now``, then the state after them."""
        part = self.folder / f"part-{before.batches:08d}-{now.batches:08d}.parquet"
        facts = {"images": str(now.images), "mark": now.mark}
        with atomic_write(part) as temporary:
            pq.write_table(table.replace_schema_metadata(facts), temporary)
        state = self.folder / f"state-{now.batches:08d}.safetensors"
        model.save(state)
        self.parts.append(part)
        self._states.append(state)
        while len(self._states) > STATES:
            self._states.pop(0).unlink()

    def columns(self) -> list[str]:
        """Names of the columns of what is kept."""
        return list(pq.read_schema(self.parts[0]).names)

    def tables(self) -> Iterator[pa.Table]:
        """What is kept, part by part."""
        for part in self.parts:
            yield pq.read_table(part).replace_schema_metadata(None)

    def remove(self) -> None:
        """Takes away everything of ours, and the folder, unless somebody put something else there."""
        self._clear()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _clear(self, keep: tuple[str, ...] = ()) -> None:
        for pattern in OURS:
            for file in self.folder.glob(pattern):
                if file.name not in keep and file.is_file():
                    file.unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the disk complains of into an error that says so."""
    try:
        yield
    except OSError as wrong:
        raise StateError(
            f"cannot write {path}: {wrong}. What was done before is kept; mend that, and the same command goes on."
        ) from wrong


def _difference(key: str, kept: object, given: object) -> str:
    if isinstance(kept, dict) and isinstance(given, dict):
        inner = [each for each in {**kept, **given} if kept.get(each) != given.get(each)]
        return "; ".join(_difference(each, kept.get(each), given.get(each)) for each in inner)
    return f"{key} was {_short(kept)} and is {_short(given)}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 50 else f"{text[:24]}…"
