"""Archives from their addresses, several at a time, until each has the published MD5.

By hand on urllib. What is needed is small and exact: continue what an earlier process left, take several files at a
time, notice a stall, a cut, a false length, a page instead of a file, a wrong checksum. The libraries that download
datasets do a part of this: they start over, trust what they get, or bring a framework along.
"""

import os
import urllib.parse
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from cretta.data.releases import Archive
from cretta.errors import StateError

from .job import Job, Progress, sum_of
from .line import Line, PassingError, Patience, UnreachableError
from .part import PartFile
from .transfer import CHUNK, transfer

PARALLEL = 4


def download(job: Job, archives: Sequence[Archive], patience: Patience) -> list[Path]:
    """Puts archives in ``job.home`` under their names, verified; one that fails ends the others."""
    line = Line(patience)

    def hear(what: str, done: int, total: int | None) -> None:
        if line.stopped.is_set():
            raise PassingError("stopped")
        job.progress(what, done, total)

    with ThreadPoolExecutor(min(PARALLEL, len(archives))) as pool:
        try:
            tasks = [pool.submit(_one, archive, job.home / archive.file, line, hear) for archive in archives]
            for task in wait(tasks, return_when=FIRST_EXCEPTION).done:
                task.result()
        finally:
            line.cut()
    return [job.home / archive.file for archive in archives]


def _one(archive: Archive, target: Path, line: Line, progress: Progress) -> None:
    if target.exists():
        try:
            _verify(target, archive, progress)
        except StateError as error:
            raise StateError(f"{error} Remove it, then try again.") from error
        return
    part, faults = PartFile(target), []
    for address in archive.urls:
        try:
            _take(address, archive, part, line, progress)
            os.replace(part.file, target)
            return
        except UnreachableError as fault:
            faults.append(str(fault))
    raise UnreachableError(f"{archive.file} cannot be downloaded: {' '.join(faults)}")


def _take(address: str, archive: Archive, part: PartFile, line: Line, progress: Progress) -> None:
    """Fills ``part``, from where it stands, until it has the published MD5."""
    for last in (False, True):
        in_pieces = _fill(address, archive, part, line, progress)
        try:
            _verify(part.file, archive, progress)
            return
        except StateError as error:
            part.forget()
            # The pieces may be of different files: one more time, from the start.
            if last or not in_pieces:
                raise StateError(
                    f"{address}: {error} The file was removed. Try again later, or get {archive.file} elsewhere and "
                    "name it with --from."
                ) from error


def _fill(address: str, archive: Archive, part: PartFile, line: Line, progress: Progress) -> bool:
    """Attempts until all is there; returns whether it came in pieces."""
    patience, failed, reached, most = line.patience, 0, False, part.size
    in_pieces = most > 0
    while True:
        try:
            transfer(address, archive, part, line, progress)
            return in_pieces
        except PassingError as fault:
            if line.stopped.is_set():
                raise UnreachableError(f"{address}: stopped.") from fault
            reached |= fault.reached
            if fault.start_over:
                part.forget()
            in_pieces |= part.size > 0
            # Less than this would let a server that drips keep us for ever.
            failed = 1 if part.size - most >= CHUNK else failed + 1
            most = max(most, part.size)
            if failed >= (patience.attempts if reached else min(2, patience.attempts)):
                host = urllib.parse.urlsplit(address).netloc
                raise UnreachableError(f"{host}: {fault}, after {failed} attempts.") from fault
            line.stopped.wait(fault.pause or min(60.0, patience.pause * 2 ** (failed - 1)))


def _verify(file: Path, archive: Archive, progress: Progress) -> None:
    found = sum_of(file, archive.file, progress)
    if found != archive.md5:
        raise StateError(f"{file} has MD5 {found}, but {archive.file} as published has {archive.md5}.")
