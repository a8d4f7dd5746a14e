"""The settings that a folder or file was made with, compared with those of the next call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cretta.errors import StateError
from cretta.storage.files import atomic_write


class Manifest:
    """A JSON file with the settings that decide the content of a folder.

    ``facts`` are stored as well, but not compared. ``remedy`` ends the messages: how to start over, or to avoid it.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, remedy: str, **facts: Any) -> None:
        self.path = path
        self.settings: dict[str, Any] = json.loads(json.dumps(settings, default=str))  # as the file returns them
        self._remedy = remedy
        self._facts = facts

    def write(self, *, within: Path | None = None) -> None:
        """Write the file; a temporary one is in the folder ``within`` until then."""
        with atomic_write(self.path, within=within) as temporary:
            temporary.write_text(json.dumps({**self._facts, "settings": self.settings}, indent=2) + "\n", "utf-8")

    def check(self) -> None:
        """Raise :class:`~cretta.errors.StateError` unless the file has the same settings."""
        try:
            saved = json.loads(self.path.read_text("utf-8"))["settings"]
            if not isinstance(saved, dict):
                raise TypeError("its settings are not an object")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"{self.path} cannot be read ({error}). {self._remedy}") from error
        require_same(self.path.parent, saved, self.settings, self._remedy)


def require_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any], remedy: str) -> None:
    """Raise :class:`~cretta.errors.StateError` unless the work at ``path`` had the settings that it has ``now``."""
    differences = _differences(before, now)
    if differences:
        raise StateError(
            f"{path} was started with other settings: {'; '.join(differences)}. Use the same settings to continue. "
            f"{remedy}"
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    lines = []
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += _differences(old, new)
        elif old != new:
            lines.append(f"{key} was {_short(old)} and is {_short(new)}")
    return lines


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 50 else f"{text[:24]}…"
