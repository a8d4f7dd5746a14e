"""A folder that is filled file by file, by one process at a time, and continued after an interruption."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from cretta.errors import OptionError
from cretta.storage import Manifest, atomic_write, require_lock
from cretta.storage.files import make_folder, write_errors

MANIFEST = "cretta-make.json"
_UNFINISHED = ".cretta-make"


@dataclass(frozen=True)
class Output:
    """The folder while it is being filled. A file has its name only when it is complete."""

    folder: Path

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
        make_folder(target.parent)
        within = self.folder / _UNFINISHED
        with atomic_write(target, within=within, sync=sync) as temporary, temporary.open("wb") as file:
            yield file


@contextmanager
def open_output(path: str | Path, settings: Mapping[str, Any]) -> Iterator[Output]:
    """Lock a folder and yield it; what an interrupted process left unfinished is removed.

    ``settings``, all that decides the content, are stored in a manifest: other ones are refused, so that the files of a
    folder are always of one kind.
    """
    folder = Path(path)
    remedy = f"To start over, remove {folder} or give another output=…."
    manifest = Manifest(folder / MANIFEST, settings, remedy=remedy, **{"made by": f"cretta {version('cretta')}"})
    make_folder(folder)
    with require_lock(folder / f"{_UNFINISHED}.lock"):
        others = sorted(path.name for path in folder.iterdir() if path.name[0] != ".")
        if manifest.path.exists():
            manifest.check()
        elif others:
            raise OptionError(
                f"{folder} holds files ({', '.join(others[:3])}) but no {MANIFEST}, so they were not made by this "
                "command: give another output=…, or an empty folder."
            )
        # In the same file system, so that a file is moved and not copied.
        unfinished = folder / _UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            with write_errors(unfinished):
                unfinished.mkdir()
            if not manifest.path.exists():
                manifest.write(within=unfinished)
            yield Output(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
