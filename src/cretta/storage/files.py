"""Atomic writes, and locks that the system releases when their process ends."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from cretta.errors import BusyError, StateError

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
TEMPORARY = f".*.{'[0-9a-f]' * 32}"
"""Pattern of the names of temporary files, which a killed process leaves behind."""


def check_target(path: Path) -> None:
    """Raise :class:`~cretta.errors.StateError` unless a file of this name can be written."""
    if path.parent.is_file():
        raise StateError(f"cannot write {path}: {path.parent} is a file; give the name of a folder.")
    if not path.parent.is_dir():
        raise StateError(f"cannot write {path}: the folder {path.parent} does not exist; make it first.")
    if path.is_dir():
        raise StateError(f"cannot write {path}: it is a folder; give the name of a file in it.")


@contextmanager
def atomic_write(path: Path, *, within: Path | None = None, sync: bool = True) -> Iterator[Path]:
    """Yield the name of a temporary file to write; rename it to ``path`` at the end, or remove it after an error.

    Until then it is a hidden file beside ``path``, or in the folder ``within`` on the same file system. ``sync`` waits
    until the content is on the disk, so that it survives a crash of the machine. A failed write raises
    :class:`~cretta.errors.StateError`.
    """
    temporary = (within or path.parent) / f".{path.name}.{uuid.uuid4().hex}"
    try:
        with write_errors(path):
            yield temporary
            if sync:
                with temporary.open("rb+") as written:
                    os.fsync(written.fileno())
            os.replace(temporary, path)
            if sync:
                _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can do that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_temporary(folder: Path) -> None:
    """Remove the temporary files of processes that were killed; the caller holds the lock of the folder."""
    for path in folder.glob(TEMPORARY):
        with suppress(OSError):
            path.unlink()


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Replace an ``OSError`` by a :class:`~cretta.errors.StateError` that names ``path`` and the remedy."""
    try:
        yield
    except OSError as error:
        raise StateError(
            f"cannot write {path}: {error.strerror or error}. What was saved before is unchanged; solve this, then run "
            "the same command again."
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless it exists."""
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def lock(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Try to lock the file ``path``, or ``wait`` for it; yield whether this process holds the lock.

    The lock ends with the context or with the process, even if that is killed. The file is removed at the end.
    """
    from filelock import FileLock, Timeout  # only where it is used: `import cretta` does not need it

    file_lock = FileLock(path)
    locked = True
    try:
        file_lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        locked = False
    except OSError as error:
        # Some network file systems have no locks; work without one there.
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield locked
    finally:
        if locked:
            # Removed while it is held: whoever waits for the removed file notices that by its link count.
            with suppress(OSError):  # Windows does not remove an open file
                path.unlink(missing_ok=True)
            file_lock.release()


@contextmanager
def require_lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock ``path``; raise :class:`~cretta.errors.BusyError` if another process has it, or ``wait``."""
    with ExitStack() as stack:
        with write_errors(path):
            locked = stack.enter_context(lock(path, wait=wait))
        if not locked:
            raise BusyError(
                f"another process is working in {path.parent}; wait until it has finished, or choose another output."
            )
        yield
