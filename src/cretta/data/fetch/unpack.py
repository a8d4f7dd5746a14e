"""Unpack archives; nothing is written outside of their folder."""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

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
        reason = str(error).partition("\n")[0].rstrip(":")
        raise StateError(
            f"{file} cannot be unpacked ({reason}): if the disk is full, free some space; else download it again."
        ) from error


def _extract_tar(file: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    size = file.stat().st_size
    with file.open("rb") as opened, tarfile.open(fileobj=opened) as archive:
        for member in archive:
            archive.extract(member, folder, filter="data")
            progress(opened.tell(), size)
        # To the end, where the checksum is; tarfile does not read that far.
        while archive.fileobj is not None and archive.fileobj.read(1 << 18):
            pass
    progress(size, size)


def _extract_zip(file: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        size, done = sum(member.file_size for member in members), 0
        for member in members:
            if not member.filename.startswith("__MACOSX/"):  # metadata that macOS adds, with the names of images
                archive.extract(member, folder)  # without parts of the path that lead out of the folder
            done += member.file_size
            progress(done, size)
