import signal
import subprocess
import sys
from pathlib import Path

import fetch_site
import pytest
from fetch_site import Site, assert_toy, offer, stall_at, toy, toy_folder

import forks
from cretta.data.fetch import get
from cretta.data.releases import Archive
from cretta.errors import BusyError

content, home, site = fetch_site.content, fetch_site.home, fetch_site.site


SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from cretta.data import fetch
from cretta.data.registry import release
from cretta.data.releases import Archive
from cretta.errors import BusyError
address, md5, size, root = sys.argv[1:]
archive = Archive("toy.tar", md5, int(size), (address,))
toy = replace(release("cifar10-c"), name="toy", folder="Toy", archives=(archive,))
fetch.download.TIMEOUT = 1800.0
fetch.get(toy, root=root, progress=lambda what, done, total: print(done, flush=True))
"""


def start(archive: Archive, home: Path) -> forks.Process:
    arguments = [archive.urls[0], archive.md5, archive.size, home]
    return forks.Process([sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE)


@pytest.mark.process
def test_a_killed_process_is_continued_by_the_next_and_not_disturbed_by_another(
    site: Site, content: bytes, home: Path
) -> None:
    archive = offer(site, content)
    site.answers = [stall_at(300_000)]
    with start(archive, home) as process:
        assert process.stdout is not None
        assert "300000\n" in process.stdout  # reads until this many bytes are in the file
        assert (home / ".toy.work" / "toy.tar.part").stat().st_size == 300_000
        with pytest.raises(BusyError, match=r"another process is working in .*; wait until it has finished"):
            get(toy(archive), root=home)
        assert site.ranges == [""]
        process.kill()
        assert process.wait() == -signal.SIGKILL
    get(toy(archive), root=home)
    assert_toy(home)
    # Every byte was sent once.
    assert site.ranges == ["", "bytes=300000-"]
    assert site.sent == len(content)


def test_what_a_killed_unpacking_left_is_cleared(site: Site, content: bytes, home: Path) -> None:
    """Killed after the download: the archive is complete, and there is a part of a folder."""
    toy_folder(home / ".toy.work" / "unpacked" / "Half")
    (home / ".toy.work" / "toy.tar").write_bytes(content)
    (home / ".toy.lock").touch()
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert site.ranges == []
