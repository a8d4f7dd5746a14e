from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from cretta.errors import StateError
from cretta.storage.journal import Journal, Position


class Counter:
    """A computation whose state is a number."""

    def __init__(self) -> None:
        self.value = 0

    def save(self, path: Path) -> None:
        path.write_text(str(self.value))

    def restore(self, path: Path) -> None:
        try:
            self.value = int(path.read_text())
        except ValueError as error:
            raise StateError("damaged") from error


def filled(folder: Path, parts: int = 3) -> Journal:
    """Return a journal of so many parts, of two batches each."""
    journal, counter = Journal(folder, {"a": 1}), Counter()
    for part in range(1, parts + 1):
        counter.value = 10 * part
        rows = pa.table({"batch": [2 * part - 2, 2 * part - 1]})
        journal.append(rows, counter.save, Position(2 * part, {"images": str(7 * part)}))
    return journal


def resumed(folder: Path) -> tuple[int, Position, list[int]]:
    """Return the restored state, the position and the rows."""
    journal, counter = Journal(folder, {"a": 1}), Counter()
    journal.check()
    position = journal.resume(counter.restore)
    return counter.value, position, [row for table in journal.tables() for row in table["batch"].to_pylist()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_journal_is_continued_after_its_last_part(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    assert resumed(folder) == (0, Position(), [])
    filled(folder)
    assert resumed(folder) == (30, Position(6, {"images": "21"}), [0, 1, 2, 3, 4, 5])


def test_without_a_readable_state_or_part_earlier_ones_are_used(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "state-00000006.safetensors").write_text("damaged")
    assert resumed(tmp_path) == (20, Position(4, {"images": "14"}), [0, 1, 2, 3])
    assert names(tmp_path) == [
        "part-00000000-00000002.parquet",
        "part-00000002-00000004.parquet",
        "settings.json",
        "state-00000004.safetensors",
    ]
    filled(tmp_path)
    (tmp_path / "part-00000004-00000006.parquet").write_bytes(b"damaged")
    assert resumed(tmp_path)[1].batches == 4
    filled(tmp_path)
    (tmp_path / "part-00000000-00000002.parquet").unlink()
    assert resumed(tmp_path) == (0, Position(), [])


def test_every_flipped_byte_of_a_part_is_noticed_or_harmless(tmp_path: Path) -> None:
    filled(tmp_path, parts=1)
    part = tmp_path / "part-00000000-00000002.parquet"
    state = tmp_path / "state-00000002.safetensors"
    content = part.read_bytes()
    for position in range(0, len(content), 11):
        flipped = bytearray(content)
        flipped[position] ^= 0x10
        part.write_bytes(flipped)
        state.write_text("10")
        try:
            rows = resumed(tmp_path)[2]
        except (KeyError, UnicodeDecodeError):  # in the facts or the names of columns, which have no checksum
            continue
        assert rows in ([], [0, 1])


def test_other_settings_are_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    other = Journal(tmp_path, {"a": 2}, remedy="Use b.")
    with pytest.raises(StateError, match=r"a was 1 and is 2\. .* Use b\."):
        other.check()
    other.clear()
    assert names(tmp_path) == []
    other.check()


def test_a_position_that_cannot_be_continued_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    before = names(tmp_path)

    def refuse(position: Position) -> None:
        raise StateError(f"at {position.batches}")

    with pytest.raises(StateError, match="at 6"):
        Journal(tmp_path, {"a": 1}).resume(Counter().restore, refuse)
    assert names(tmp_path) == before


def test_files_of_others_are_not_removed(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "notes.txt").touch()
    (tmp_path / f".part.{'0' * 32}").touch()
    Journal(tmp_path, {"a": 1}).clear()
    assert names(tmp_path) == ["notes.txt"]
