"""Unpack archives; nothing is written outside of their folder."""

import bz2
import errno
import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

from cretta.data.fetch.download import Progress
from cretta.errors import StateError


def unpack(file: Path, folder: Path, progress: Progress) -> None:
    """Unpack a tar or zip archive; raise if it would write outside of ``folder``."""
    if not hasattr(tarfile, "data_filter"):
        raise StateError("safe unpacking needs Python 3.11.4 or later: update Python.")
    folder.mkdir(parents=True)
    extract = _extract_zip if zipfile.is_zipfile(file) else _extract_tar
    try:
        extract(file, folder, partial(progress, f"unpacking {file.name}"))
    except tarfile.FilterError as error:
        raise StateError(f"{file} is refused: it would write outside of its folder ({error}).") from error
    except (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        remedy = "free some space, then run the command again" if full else "download it again"
        raise StateError(f"{file} cannot be unpacked ({error}): {remedy}.") from error


def _extract_tar(file: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    size = file.stat().st_size
    with file.open("rb") as opened, _decompressed(opened) as stream:
        # As a stream: seeking in compressed data is slow.
        with tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                members.extract(member, folder, filter="data")
                progress(opened.tell(), size)
        # To the end, where the checksums are; tarfile does not read that far, nor check the one of gzip.
        while stream.read(1 << 18):
            pass
    progress(size, size)


def _decompressed(file: io.BufferedReader) -> io.BufferedIOBase:
    start = file.peek(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(file)
    if start.startswith(b"BZh"):
        return bz2.open(file)
    return lzma.open(file) if start.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00\x80")) else file


def _extract_zip(file: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        size, done = sum(member.file_size for member in members), 0
        for member in members:
            path = PurePosixPath(member.filename.replace("\\", "/"))
            # extract() would remove these parts silently, and write the file to another path.
            if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", str(path)):
                raise tarfile.FilterError(member.filename)
            if path.parts[:1] == ("__MACOSX",):  # metadata that macOS adds, with the names of images
                continue
            archive.extract(member, folder)
            done += member.file_size
            progress(done, size)
