"""A folder that is filled file by file, by one process at a time, and continued after an interruption."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Self

from cretta.errors import OptionError
from cretta.storage import Manifest, atomic_write, require_lock
from cretta.storage.files import write_errors

MANIFEST = "cretta-make.json"
_UNFINISHED = ".cretta-make"


class Output:
    """The folder while it is being filled. A file has its name only when it is complete.

    ``settings``, all that decides the content, are stored in a manifest: other ones are refused, so that the files of a
    folder are always of one kind. What an interrupted process left unfinished is removed.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self._manifest = Manifest(
            self.folder / MANIFEST,
            settings,
            remedy=f"To start over, remove {folder} or give another output=….",
            **{"made by": f"cretta {version('cretta')}"},
        )
        # In the same file system, so that a file is moved and not copied.
        self._unfinished = self.folder / _UNFINISHED
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(require_lock(self.folder / f"{_UNFINISHED}.lock"))
            self._check()
            stack.callback(shutil.rmtree, self._unfinished, ignore_errors=True)
            shutil.rmtree(self._unfinished, ignore_errors=True)
            if not self._manifest.path.exists():
                self._unfinished.mkdir()
                self._manifest.write(within=self._unfinished)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def lacks(self, name: str) -> bool:
        """Return whether a file is still to be written."""
        try:
            # A file that a crash of the machine left empty is not complete.
            return os.stat(f"{self.folder}/{name}").st_size == 0
        except FileNotFoundError:
            return True

    @contextmanager
    def writing(self, name: str, *, sync: bool = False) -> Iterator[IO[bytes]]:
        """Open a file that appears under ``name`` when all is written; with ``sync`` it survives a system crash."""
        target = self.folder / name
        with write_errors(target):
            self._unfinished.mkdir(exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target, within=self._unfinished, sync=sync) as temporary, temporary.open("wb") as file:
            yield file

    def _check(self) -> None:
        if self._manifest.path.exists():
            self._manifest.check()
            return
        others = sorted(path.name for path in self.folder.iterdir() if path.name[0] != ".")
        if others:
            raise OptionError(
                f"{self.folder} holds files ({', '.join(others[:3])}) but no {MANIFEST}, so they were not made by this "
                "command: give another output=…, or an empty folder."
            )
