"""Snapshots of the adapted model on disk: atomic, with checksums, the last few stored."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cretta.errors import StateError
from cretta.state import MUST_MATCH, OPTIONS_MUST_MATCH
from cretta.storage import Manifest, require_lock
from cretta.storage.files import make_folder, remove_temporary

if TYPE_CHECKING:
    from cretta.adapter import Adapter

logger = logging.getLogger(__name__)
_NAME = re.compile(r"snapshot-(\d+)-batch-(\d+)-step-(\d+)\.safetensors")


@dataclasses.dataclass(frozen=True, order=True)
class Snapshot:
    """A file with the state of the adapter after a batch."""

    number: int
    batch: int
    step: int

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"snapshot-{self.number:08d}-batch-{self.batch}-step-{self.step}.safetensors"


class Snapshots:
    """The snapshots in a folder; for one process at a time."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder = folder
        self.most = most

    @contextmanager
    def opened(self, adapter: Adapter[Any]) -> Iterator[None]:
        """Lock the folder; raise if it has snapshots of another model or method."""
        make_folder(self.folder)
        with require_lock(self.folder / "lock"):
            remove_temporary(self.folder)
            manifest = Manifest(
                self.folder / "settings.json", _described(adapter), remedy="To start over, choose another folder."
            )
            if self.all():
                manifest.check()
            else:
                manifest.write()
            yield

    def all(self) -> list[Snapshot]:
        """Return all snapshots, the newest first."""
        matches = map(_NAME.fullmatch, (path.name for path in self.folder.glob("snapshot-*.safetensors")))
        return sorted((Snapshot(*map(int, match.groups())) for match in matches if match), reverse=True)

    def save(self, adapter: Adapter[Any], batch: int, step: int) -> Snapshot:
        """Write a snapshot, and remove the oldest beyond the number that is stored."""
        number = max((snapshot.number for snapshot in self.all()), default=0) + 1
        snapshot = Snapshot(number, batch, step)
        adapter.save(self.folder / snapshot.name)
        for old in self.all()[self.most :]:
            try:
                (self.folder / old.name).unlink(missing_ok=True)
            except OSError as error:  # the new one is written all the same
                logger.error("snapshot not removed", extra={"facts": {"snapshot": old.name, "error": str(error)}})
        return snapshot

    def restore(self, adapter: Adapter[Any], snapshot: Snapshot) -> None:
        """Restore a snapshot; raise :class:`~cretta.errors.StateError` if it is damaged: nothing has changed then."""
        adapter.restore(self.folder / snapshot.name)

    def restore_newest(self, adapter: Adapter[Any]) -> Snapshot | None:
        """Restore the newest snapshot that is not damaged; None if there is none."""
        for snapshot in self.all():
            try:
                self.restore(adapter, snapshot)
            except StateError as error:
                logger.error("snapshot refused", extra={"facts": {"snapshot": snapshot.name, "error": str(error)}})
                continue
            return snapshot
        return None


def _described(adapter: Adapter[Any]) -> dict[str, Any]:
    """Return what must be the same where a snapshot is restored."""
    description = adapter.description()
    options = {name: description["options"][name] for name in OPTIONS_MUST_MATCH}
    return {name: description[name] for name in MUST_MATCH} | options
