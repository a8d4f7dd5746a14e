import fcntl
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import fetch_site
import pytest
from fetch_site import Site, assert_toy, offer, stall_at, toy, toy_folder

from cretta.data.fetch import get
from cretta.data.releases import Archive
from processes import LONG

content, home, site = fetch_site.content, fetch_site.home, fetch_site.site


SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from cretta.data import fetch
from cretta.data.registry import release
from cretta.data.releases import Archive
address, md5, size, root = sys.argv[1:]
archive = Archive("toy.tar", md5, int(size), (address,))
toy = replace(release("cifar10-c"), name="toy", folder="Toy", archives=(archive,))
retries = fetch.RetryPolicy(timeout=1800.0)
fetch.get(toy, root=root, retries=retries, progress=lambda what, done, total: print(done, flush=True))
"""


def start(archive: Archive, home: Path) -> subprocess.Popen[str]:
    arguments = [archive.urls[0], archive.md5, str(archive.size), str(home)]
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.process
def test_a_killed_process_is_continued_by_the_next_and_not_disturbed_by_another(
    site: Site, content: bytes, home: Path
) -> None:
    archive = offer(site, content)
    site.answers = [stall_at(300_000)]
    said: queue.Queue[str] = queue.Queue()
    second = threading.Thread(target=get, args=(toy(archive),), kwargs={"root": home, "report": said.put})
    with start(archive, home) as process:
        try:
            assert process.stdout is not None
            assert "300000\n" in process.stdout  # reads until this many bytes are in the file
            assert (home / ".toy.work" / "download" / "toy.tar.part").stat().st_size == 300_000
            # A second one waits until the first is gone, and takes over then.
            second.start()
            assert said.get(timeout=LONG) == "waiting for another process that gets toy"
            assert said.empty()
            assert site.ranges == [""]
        finally:
            process.kill()
        assert process.wait(LONG) == -signal.SIGKILL
    second.join(LONG)
    assert not second.is_alive()
    assert_toy(home)
    # Every byte was sent once.
    assert site.ranges == ["", "bytes=300000-"]
    assert site.sent == len(content)


def test_many_at_once_get_one_copy(site: Site, content: bytes, home: Path) -> None:
    entry = toy(offer(site, content))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(get(entry, root=home))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [home / "Toy"] * 6
    assert_toy(home)
    assert site.sent == len(content)


def test_a_lock_on_a_file_that_was_removed_does_not_count(
    site: Site, content: bytes, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who held the lock removes its file at the end; who waited for it has that one open still."""
    flock = fcntl.flock
    locks: list[int] = []

    def late(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            if not locks:
                (home / ".toy.lock").unlink()
            locks.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    get(toy(offer(site, content)), root=home)
    assert len(locks) == 2
    assert_toy(home)


def test_what_a_killed_unpacking_left_is_cleared(site: Site, content: bytes, home: Path) -> None:
    """Killed after the download: the archive is complete, and there is a part of a folder."""
    toy_folder(home / ".toy.work" / "unpacked" / "0" / "Half")
    (home / ".toy.work" / "download").mkdir()
    (home / ".toy.work" / "download" / "toy.tar").write_bytes(content)
    (home / ".toy.lock").touch()
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert site.ranges == []
