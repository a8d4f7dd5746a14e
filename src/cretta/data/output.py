"""A folder that is filled file by file, by one process at a time, and taken up again after an interruption."""

import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from cretta.errors import OptionError, StateError

if sys.platform != "win32":
    import fcntl

MANIFEST = "cretta-make.json"
_UNFINISHED = ".cretta-make"


class Output:
    """The folder while it is being filled. A file has its name only when it is whole.

    ``settings``, all that decides the content, are kept in a manifest: other ones are refused, so that the files of a
    folder are always of one kind. What an interrupted process left unfinished is removed.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.settings = json.loads(json.dumps(settings))

    def __enter__(self) -> "Output":
        with self._writable(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        try:
            self._agree()
            shutil.rmtree(self._unfinished, ignore_errors=True)
            if not (self.folder / MANIFEST).exists():
                told = {"made by": f"cretta {version('cretta')}", "settings": self.settings}
                with self.writing(MANIFEST, sync=True) as file:
                    file.write(json.dumps(told, indent=2).encode() + b"\n")
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self._leave()

    def lacks(self, name: str) -> bool:
        """Whether a file is still to be written."""
        try:
            # A file that a crash of the machine left empty is not whole.
            return os.stat(f"{self.folder}/{name}").st_size == 0
        except FileNotFoundError:
            return True

    @contextmanager
    def writing(self, name: str, *, sync: bool = False) -> Iterator[IO[bytes]]:
        """A file to write to, which appears under ``name`` when all is written; with ``sync`` it outlives a crash."""
        target = self.folder / name
        unfinished = self._unfinished / uuid.uuid4().hex
        with self._writable(target):
            self._unfinished.mkdir(exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                yield file
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(unfinished, target)

    @property
    def _unfinished(self) -> Path:
        # In the same file system, so that a file is moved and not copied.
        return self.folder / _UNFINISHED

    @contextmanager
    def _writable(self, target: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(
                f"cannot write {target}: {error.strerror or error}. What is written stays; once that is mended, the "
                "same call goes on from there."
            ) from error

    def _agree(self) -> None:
        manifest = self.folder / MANIFEST
        if not manifest.exists():
            found = [each.name for each in self.folder.iterdir() if each.name[0] != "."]
            if found:
                raise OptionError(
                    f"{self.folder} holds files ({', '.join(sorted(found)[:3])}) but no {MANIFEST}, so they were not "
                    "made by this command: give another output, or an empty folder."
                )
            return
        try:
            kept = json.loads(manifest.read_text("utf-8"))["settings"]
            differing = [key for key in sorted({*kept, *self.settings}) if kept.get(key) != self.settings.get(key)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"{manifest} cannot be read ({error}): remove {self.folder} and make it anew.") from error
        if differing:
            made = ", ".join(f"{key}={kept.get(key)!r}" for key in differing)
            asked = ", ".join(f"{key}={self.settings.get(key)!r}" for key in differing)
            raise OptionError(
                f"{self.folder} was made with {made}; asked for is {asked}. Ask for the same, or give another output."
            )

    def _locked(self) -> int | None:
        """Holds off a second process for as long as this one lives, where the file system can."""
        if sys.platform == "win32":
            return None
        opened = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            raise StateError(
                f"another process is filling {self.folder}: wait until it is done, or give another output."
            ) from None
        except OSError:  # some network file systems have no locks
            os.close(opened)
            return None
        return opened

    def _leave(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
