from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from cretta.errors import BusyError, StateError
from cretta.storage import atomic_write, lock, require_lock


def test_a_file_is_replaced_only_when_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
    assert path.read_text() == "new"
    with pytest.raises(ZeroDivisionError), atomic_write(path) as temporary:
        temporary.write_text(f"half {1 / 0}")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_files_can_be_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with atomic_write(tmp_path / "file", within=tmp_path / "work", sync=False) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path / "work"
    assert (tmp_path / "file").read_text() == "new"
    assert not list((tmp_path / "work").iterdir())


def test_a_failed_write_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    with (
        pytest.raises(StateError, match=r"cannot write .*file: No space left on device\. .* the same command again"),
        atomic_write(tmp_path / "file"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(StateError, match="No such file"), atomic_write(tmp_path / "none" / "file") as temporary:
        temporary.write_text("")
    assert not list(tmp_path.iterdir())


def test_one_at_a_time_holds_a_lock_and_its_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock(path) as first, lock(path) as second, lock(tmp_path / "other") as other:
        assert (first, second, other) == (True, False, True)
        with pytest.raises(BusyError, match=f"another process is working in {tmp_path};"), require_lock(path):
            pass
    assert not list(tmp_path.iterdir())
    with require_lock(path), lock(path) as second:
        assert not second


def test_a_lock_on_a_removed_file_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder removes it at the end, while another process may have opened it already."""
    path, flock = tmp_path / "lock", fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        path.unlink()
        flock(descriptor, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", late)
        with lock(path) as locked:
            assert not locked
    with lock(path) as locked:
        assert locked


def test_without_locks_in_the_file_system_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", absent)
    with lock(tmp_path / "lock") as locked:
        assert locked


def test_a_lock_in_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot write"), require_lock(tmp_path / "file" / "lock"):
        pass
