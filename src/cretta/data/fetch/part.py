"""A file on its way."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cretta.errors import StateError


class PartFile:
    """What has come of a file, and notes of what the server said of it, beside the place that it gets in the end."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.file = target.with_name(f"{target.name}.part")
        self._notes = target.with_name(f"{target.name}.part.json")

    @property
    def size(self) -> int:
        """How many bytes have come."""
        return self.file.stat().st_size if self.file.exists() else 0

    @property
    def ours(self) -> bool:
        """Whether it was begun here, so that the file may be removed in the end."""
        return self._notes.exists()

    @property
    def notes(self) -> dict[str, Any]:
        """What the server said; nothing where that is not known."""
        try:
            notes = json.loads(self._notes.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return notes if isinstance(notes, dict) else {}

    def begin(self, notes: dict[str, Any]) -> None:
        """Starts over."""
        with self.writing():
            self.forget()
            self._notes.write_text(json.dumps(notes), "utf-8")

    def forget(self) -> None:
        """Removes what has come."""
        # In this order: what has no notes is never continued.
        self._notes.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Tells a fault of the disk from one of the line."""
        try:
            yield
        except OSError as error:
            raise StateError(f"{self.file} cannot be written ({error}): see to that, then try again.") from error
