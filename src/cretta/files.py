"""Files that are whole or not there, and locks that end with their process."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@contextmanager
def replacing(path: Path, *, within: Path | None = None) -> Iterator[Path]:
    """A file to write to, which takes the name ``path`` when all of it is on the disk, and is gone if that fails.

    Until then it lies beside ``path``, hidden, or in the folder ``within`` of the same file system.
    """
    temporary = (within or path.parent) / f".{path.name}.{uuid.uuid4().hex}"
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Whether this process holds the lock ``path``; nobody else does until it leaves, or ends, however it ends."""
    with path.open("a+b") as file:
        # Who held it may have removed the file since we opened it: then ours is a lock on nothing.
        if not (_lock(file.fileno()) and _same(file.fileno(), path)):
            yield False
            return
        try:
            yield True
        finally:
            with suppress(OSError):  # Windows removes no open file
                path.unlink(missing_ok=True)


def _lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems have no locks; there one goes on without.
        return not isinstance(error, BlockingIOError | PermissionError)
    return True


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
