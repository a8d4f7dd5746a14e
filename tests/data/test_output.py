import errno
import json
from pathlib import Path
from typing import Any

import pytest

from cretta.data.output import MANIFEST, open_output
from cretta.errors import BusyError, OptionError, StateError

SETTINGS: dict[str, Any] = {"seed": 0, "size": (2, 3), "format": "png"}


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "out" / "fog" / "1.npy"
    with open_output(tmp_path / "out", SETTINGS) as output:
        assert output.lacks("fog/1.npy")
        with output.writing("fog/1.npy", sync=True) as file:
            file.write(b"half")
            file.flush()
            assert not target.exists()
            file.write(b" and half")
        assert target.read_bytes() == b"half and half"
        assert not output.lacks("fog/1.npy")
        with pytest.raises(TypeError), output.writing("2.npy") as file:
            file.write("no bytes")  # type: ignore[call-overload]
        assert output.lacks("2.npy")
        target.write_bytes(b"")
        assert output.lacks("fog/1.npy")
    names = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    assert names == ["1.npy", MANIFEST, "fog"]


def test_the_same_settings_go_on_and_others_are_refused(tmp_path: Path) -> None:
    with open_output(tmp_path, SETTINGS) as output, output.writing("1.png") as file:
        file.write(b"1")
    before = (tmp_path / MANIFEST).read_bytes()
    with open_output(tmp_path, SETTINGS) as output:
        assert not output.lacks("1.png")
    assert (tmp_path / MANIFEST).read_bytes() == before
    with (
        pytest.raises(
            StateError, match=r'settings: seed was 0 and is 1; format was "png" and is "jpeg"\. Use the same'
        ),
        open_output(tmp_path, {**SETTINGS, "seed": 1, "format": "jpeg"}),
    ):
        pass
    (tmp_path / MANIFEST).write_text(json.dumps([1]))
    with pytest.raises(StateError, match=r"cretta-make\.json cannot be read"), open_output(tmp_path, SETTINGS):
        pass


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fog.npy").write_bytes(b"published")
    with (
        pytest.raises(OptionError, match=r"holds files \(fog\.npy\) but no cretta-make\.json"),
        open_output(tmp_path, {}),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["fog.npy"]


def test_a_second_process_waits_its_turn(tmp_path: Path) -> None:
    with (
        open_output(tmp_path, SETTINGS),
        pytest.raises(BusyError, match="another process is working in"),
        open_output(tmp_path, SETTINGS),
    ):
        pass
    with open_output(tmp_path, SETTINGS):
        pass


def test_a_full_disk_says_that_the_work_can_go_on(tmp_path: Path) -> None:
    with (
        open_output(tmp_path, SETTINGS) as output,
        pytest.raises(StateError, match=r"cannot write .*1\.png: No space left.*the same command again"),
        output.writing("1.png"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot write"), open_output(tmp_path / "file" / "out", SETTINGS):
        pass
