"""Archives unpacked, with nothing written outside of their folder."""

import errno
import io
import re
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

from cretta.data.compression import ERRORS, decompress, drain
from cretta.errors import StateError

from .job import Progress, check_space

Told = Callable[[int, int | None], None]


def unpack(file: Path, folder: Path, progress: Progress) -> None:
    """Unpacks a tar or zip archive, and refuses one that would write outside of ``folder``."""
    if not hasattr(tarfile, "data_filter"):
        raise StateError("unpacking safely needs Python 3.11.4 or later: update Python.")
    folder.mkdir(parents=True)
    take = _zip if zipfile.is_zipfile(file) else _tar
    try:
        take(file, folder, partial(progress, f"unpacking {file.name}"))
    except tarfile.FilterError as error:
        raise StateError(f"{file} is refused, for it would write outside of its folder ({error}).") from error
    except (*ERRORS, zipfile.BadZipFile, RuntimeError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        advice = "free some space, then try again" if full else "get it anew"
        raise StateError(f"{file} cannot be unpacked ({error}): {advice}.") from error


def _tar(file: Path, folder: Path, progress: Told) -> None:
    with _Heard(file, progress) as opened, decompress(opened) as stream:
        # As a stream, for going back in what was pressed takes long.
        with tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                members.extract(member, folder, filter="data")
        drain(stream)
    size = file.stat().st_size
    progress(size, size)


class _Heard(io.BufferedReader):
    """A file that tells, every megabyte, how far it was read."""

    def __init__(self, file: Path, progress: Told) -> None:
        super().__init__(io.FileIO(file))
        self._size, self._told, self._progress = file.stat().st_size, 0, progress

    def read(self, size: int | None = -1, /) -> bytes:
        """As any file's."""
        chunk = super().read(size)
        if self.tell() - self._told >= 1 << 20:
            self._told = self.tell()
            self._progress(self._told, self._size)
        return chunk


def _zip(file: Path, folder: Path, progress: Told) -> None:
    with zipfile.ZipFile(file) as members:
        listed = members.infolist()
        size, done = sum(each.file_size for each in listed), 0
        check_space(folder, 0, size)
        for member in listed:
            path = PurePosixPath(member.filename.replace("\\", "/"))
            # extract() would drop these parts in silence, and put the file where nobody looks for it.
            if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", str(path)):
                raise tarfile.FilterError(member.filename)
            if path.parts[:1] == ("__MACOSX",):  # what macOS adds: not images, but named so
                continue
            members.extract(member, folder)
            done += member.file_size
            progress(done, size)
