import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import fetch_site
import pytest
from fetch_site import archived, listed, toy

from cretta.data.fetch import get
from cretta.data.fetch.unpack import unpack
from cretta.errors import StateError

content, home = fetch_site.content, fetch_site.home


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    content = b"evil" if kind == tarfile.REGTYPE else b""
    info.size = len(content)
    return info, io.BytesIO(content)


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil")],
        [member("Toy/../../evil")],
        [member("Toy/way", tarfile.SYMTYPE, "../.."), member("Toy/way/evil")],
        [member("Toy/way", tarfile.SYMTYPE, "/tmp")],
        [member("Toy/way", tarfile.LNKTYPE, "../../../file")],
        [member("Toy/device", tarfile.CHRTYPE)],
    ],
    ids=["up", "down-up", "through-link", "absolute-link", "hard-link", "device"],
)
def test_a_tar_archive_cannot_leave_its_folder(members: list[Any], home: Path, tmp_path: Path) -> None:
    file = tmp_path / "evil.tar"
    with tarfile.open(file, "w") as archive:
        for info, content in members:
            archive.addfile(info, content)
    before = {each.relative_to(tmp_path) for each in tmp_path.rglob("*")}
    with pytest.raises(StateError, match=r"evil\.tar is refused: it would write outside of its folder"):
        get(toy(), root=home, source=file)
    assert {each.relative_to(tmp_path) for each in tmp_path.rglob("*")} == before | {Path("home")}


def test_an_absolute_path_in_a_tar_archive_stays_inside(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        info, content = member("x")
        info.name = f"{tmp_path}/evil"
        archive.addfile(info, content)
    unpack(tmp_path / "evil.tar", tmp_path / "new", lambda *_: None)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "Toy/../../evil", "..\\evil", "C:\\evil"])
def test_a_zip_archive_cannot_leave_its_folder(name: str, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "evil.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "evil")
    unpack(file, tmp_path / "new", lambda *_: None)
    assert listed(tmp_path) == {"evil.zip", "new"}
    assert not Path("/evil").exists()
    with pytest.raises(StateError, match=r"evil\.zip does not hold toy"):
        get(toy(), root=home, source=file)
    assert listed(home) == set()


def test_archives_that_are_damaged(content: bytes, home: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        archive.write(tmp_path / "made" / "Toy" / "images.npy", "Toy/images.npy")
    zipped = bytearray((tmp_path / "whole.zip").read_bytes())
    zipped[100_000] ^= 1
    packed = archived(tmp_path / "made" / "Toy", "w:gz")
    for name, damaged in (
        ("cut.tar", content[:100_000]),
        ("cut.tar.gz", packed[:100_000]),
        ("flipped.tar.gz", packed[:5000] + bytes(100) + packed[5100:]),
        ("flipped.zip", bytes(zipped)),
        ("none.tar", b"nothing of the kind" * 100),
        ("empty.tar", b""),
    ):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(StateError, match=rf"{name} (cannot be unpacked .*again|does not hold toy)"):
            get(toy(), root=home, source=tmp_path / name)
        assert listed(home) == set()
