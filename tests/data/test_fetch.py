from pathlib import Path

import fetch_site
import pytest
from fetch_site import Site, assert_toy, offer, toy

from cretta.data.fetch import get
from cretta.errors import OptionError, StateError

content, home, site = fetch_site.content, fetch_site.home, fetch_site.site


def test_downloads_verifies_and_unpacks(site: Site, content: bytes, home: Path) -> None:
    entry = toy(offer(site, content))
    heard: dict[str, list[int]] = {}
    said: list[str] = []
    found = get(
        entry, root=home, progress=lambda what, done, total: heard.setdefault(what, []).append(done), report=said.append
    )
    assert found == home / "Toy"
    assert_toy(home)
    for what in ("toy.tar", "checking toy.tar", "unpacking toy.tar"):
        assert heard[what] == sorted(heard[what])
        assert heard[what][-1] == len(content)
    assert said == [f"toy is in {home / 'Toy'}; MD5 of toy.tar as published."]

    said.clear()
    assert get(entry, root=home, report=said.append) == found
    assert said == [f"toy is there already: {found}"]
    assert site.ranges == [""]
    assert site.sent == len(content)


def test_a_root_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"cannot write .*home: Not a directory"):
        get(toy(), root=tmp_path / "file" / "home")


def test_from_nowhere(home: Path) -> None:
    with pytest.raises(OptionError, match="gone is not there: give an archive, a folder of archives, or"):
        get("cifar10", root=home, source="gone")
    with pytest.raises(OptionError, match=r"unknown dataset 'mnist'"):
        get("mnist", root=home)
    assert not home.exists()


@pytest.mark.parametrize(("name", "said"), [("imagenet", "account at https://image-net.org"), ("pacs", "a drive")])
def test_what_must_be_got_by_hand(name: str, said: str, home: Path) -> None:
    with pytest.raises(
        StateError, match=rf"{name} cannot be downloaded: .*{said}.*Then: cretta data get {name} --from"
    ):
        get(name, root=home)
