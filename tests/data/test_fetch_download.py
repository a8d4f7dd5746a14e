import http.server
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import fetch_site
import pytest
from fetch_site import (
    Handler,
    Site,
    archived,
    assert_toy,
    claim,
    cut_at,
    ignore_range,
    listed,
    md5,
    offer,
    page,
    stall_at,
    status,
    toy,
    without_length,
)

from cretta.data import fetch
from cretta.data.fetch import Progress, UnreachableError, get
from cretta.errors import StateError
from processes import LONG

content, home, site = fetch_site.content, fetch_site.home, fetch_site.site


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Progress:
    """Progress that ends the wait for a server once it has stalled after 300 000 bytes, and never before."""
    responses: list[Any] = []
    urlopen = urllib.request.urlopen

    def capture(*args: Any, **options: Any) -> Any:
        responses.append(urlopen(*args, **options))
        return responses[-1]

    def listen(activity: str, done: int, total: int | None) -> None:
        if done == 300_000 and len(responses) == 1:
            connection = responses[0].fp.raw._sock
            assert connection.gettimeout() == fetch.download.TIMEOUT
            connection.settimeout(0.01)

    monkeypatch.setattr(urllib.request, "urlopen", capture)
    return listen


def test_a_connection_that_is_cut_is_resumed(site: Site, content: bytes, home: Path) -> None:
    site.answers = [cut_at(300_000)]
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert site.ranges == ["", "bytes=300000-"]
    assert site.sent == len(content)


def test_a_connection_that_stalls_is_resumed(site: Site, content: bytes, home: Path, impatient: Progress) -> None:
    site.answers = [stall_at(300_000)]
    get(toy(offer(site, content)), root=home, progress=impatient)
    assert_toy(home)
    assert site.ranges == ["", "bytes=300000-"]
    assert site.sent == len(content)


def test_a_server_that_ignores_ranges_sends_the_complete_file(site: Site, content: bytes, home: Path) -> None:
    site.answers = [cut_at(300_000), ignore_range]
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert site.sent == 300_000 + len(content)


def test_a_download_is_resumed_by_a_later_call(site: Site, content: bytes, home: Path) -> None:
    site.answers = [cut_at(500_000), status(503), status(503)]
    record = toy(offer(site, content))
    with pytest.raises(UnreachableError, match=r"toy\.tar cannot be downloaded: .*HTTP Error 503.*, after 3 attempts"):
        get(record, root=home)
    part = home / ".toy.work" / "toy.tar.part"
    assert [path for path in home.rglob("*") if path.is_file()] == [part]
    assert part.read_bytes() == content[:500_000]
    site.sent = 0
    get(record, root=home)
    assert_toy(home)
    assert site.sent == len(content) - 500_000


def test_a_part_that_is_too_long_is_not_used(site: Site, content: bytes, home: Path) -> None:
    part = home / ".toy.work" / "toy.tar.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(content + b"x")
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert site.ranges == [f"bytes={len(content) + 1}-", ""]


def test_a_server_that_never_sends_more_is_given_up(site: Site, content: bytes, home: Path) -> None:
    site.answers = [cut_at(1000)] * 6
    with pytest.raises(UnreachableError, match=rf"ended after 1000 of {len(content)} bytes, after 3 attempts"):
        get(toy(offer(site, content)), root=home)
    assert len(site.ranges) == 3


@pytest.mark.parametrize("difference", [1000, -1000])
def test_a_file_of_another_size_is_refused(site: Site, content: bytes, home: Path, difference: int) -> None:
    site.answers = [claim(difference)] * 9
    message = rf"expected {len(content)} bytes, got {len(content) + difference} of text/plain.*Open the address"
    with pytest.raises(UnreachableError, match=message):
        get(toy(offer(site, content)), root=home)
    assert listed(home) == set()
    assert len(site.ranges) == 1


def test_the_length_is_optional(site: Site, content: bytes, home: Path) -> None:
    site.answers = [without_length]
    get(toy(offer(site, content)), root=home)
    assert_toy(home)


def test_a_web_page_is_refused(site: Site, content: bytes, home: Path) -> None:
    site.answers = [page("text/html; charset=utf-8", b"<p>Please log in")] * 3
    with pytest.raises(UnreachableError, match=r"got 16 of text/html\. Open the address in a browser: .*login"):
        get(toy(offer(site, content)), root=home)
    assert listed(home) == set()
    assert len(site.ranges) == 1


def test_a_missing_file_is_requested_once(site: Site, content: bytes, home: Path) -> None:
    archive = offer(site, content)
    site.files.clear()
    with pytest.raises(UnreachableError, match=r"toy\.tar: HTTP Error 404.*If you have the archive: .* toy .*--from"):
        get(toy(archive), root=home)
    assert len(site.ranges) == 1


def test_a_busy_server_is_asked_again(site: Site, content: bytes, home: Path) -> None:
    site.answers = [status(503), status(429)]
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert len(site.ranges) == 3


def test_pieces_of_different_files_are_detected_by_the_checksum(site: Site, content: bytes, home: Path) -> None:
    def old_half(handler: Handler, content: bytes) -> None:
        cut_at(300_000)(handler, bytes(len(content)))

    site.answers = [old_half]
    with pytest.raises(StateError, match=rf"has MD5 .* as published has {md5(content)}\. It was removed: run the"):
        get(toy(offer(site, content)), root=home)
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert site.ranges == ["", "bytes=300000-", ""]


def test_a_redirection_is_followed(site: Site, content: bytes, home: Path) -> None:
    def moved(handler: Handler, content: bytes) -> None:
        handler.begin(301, 0, Location="/elsewhere")

    archive = offer(site, content)
    site.files["elsewhere"] = content
    site.answers = [moved, cut_at(300_000), moved]
    get(toy(archive), root=home)
    assert_toy(home)
    assert site.ranges == ["", "", "bytes=300000-", "bytes=300000-"]
    assert site.sent == len(content)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not on the path")
def test_a_certificate_must_be_trusted(
    site: Site, content: bytes, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost -addext"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(
        ["openssl", *command.split(), names, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"site": site}))
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        url = f"https://127.0.0.1:{server.server_address[1]}/toy.tar"
        record = toy(replace(offer(site, content), urls=(url,)))
        with pytest.raises(UnreachableError, match=r"certificate verify failed: self.signed certificate"):
            get(record, root=home)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        site.answers = [cut_at(300_000)]
        get(record, root=home)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert_toy(home)
    assert site.sent == len(content)


def test_a_refused_range_starts_over(site: Site, content: bytes, home: Path) -> None:
    site.answers = [cut_at(300_000), status(416)]
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert site.ranges == ["", "bytes=300000-", ""]


def test_another_checksum_is_refused(site: Site, content: bytes, home: Path) -> None:
    archive = offer(site, content)
    site.files["toy.tar"] = other = content[:-1] + b"x"
    message = rf"has MD5 {md5(other)}, but toy\.tar as published has {md5(content)}\. It was removed"
    with pytest.raises(StateError, match=message) as raised:
        get(toy(archive), root=home)
    assert not isinstance(raised.value, UnreachableError)
    assert listed(home) == set()
    assert len(site.ranges) == 1


def test_an_unreachable_server_is_given_up_and_then_the_next_one_is_asked(
    site: Site, content: bytes, home: Path
) -> None:
    archive = offer(site, content)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/toy.tar"
        with pytest.raises(UnreachableError, match=r"1:\d+: \[Errno 111\] Connection refused, after 3 attempts"):
            get(toy(replace(archive, urls=(url,))), root=home)
        get(toy(replace(archive, urls=(url, *archive.urls))), root=home)
    assert_toy(home)


def test_another_server_continues_the_download_of_the_first(site: Site, content: bytes, home: Path) -> None:
    archive = offer(site, content)
    site.files["mirror"] = content
    site.answers = [cut_at(300_000), *[status(500)] * 2]
    urls = (*archive.urls, f"{site.address}mirror")
    get(toy(replace(archive, urls=urls)), root=home)
    assert_toy(home)
    assert site.sent == len(content)


def test_archives_are_installed_one_after_the_other(site: Site, home: Path, tmp_path: Path) -> None:
    archives = []
    for name in ("one", "two"):
        (tmp_path / name / "Toy" / name).mkdir(parents=True)
        (tmp_path / name / "Toy" / name / "image").write_text(name)
        packed = archived(tmp_path / name / "Toy")
        archives.append(replace(offer(site, packed, f"{name}.tar"), folders=(name,)))
    record = toy(*archives, markers=(("one",), ("two",)))
    second = site.files.pop("two.tar")
    with pytest.raises(UnreachableError, match=r"two\.tar: HTTP Error 404"):
        get(record, root=home)
    assert listed(home) == {"Toy"}, "the first archive is installed, and its file removed"
    assert record.missing_archives(home / "Toy") == (archives[1],)
    site.files["two.tar"] = second
    get(record, root=home)
    assert listed(home) == {"Toy"}
    assert [(home / "Toy" / name / "image").read_text() for name in ("one", "two")] == ["one", "two"]
    assert len(site.ranges) == 3


@pytest.mark.process
def test_an_interruption_ends_the_wait_for_a_server_and_the_next_call_continues(
    site: Site, content: bytes, home: Path
) -> None:
    """The server sends the signal when it has stalled: the main thread waits for data then."""
    received, interrupted = threading.Event(), threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def listen(activity: str, done: int, total: int | None) -> None:
        if done == 300_000:
            received.set()

    def stall_and_interrupt(handler: Handler, content: bytes) -> None:
        cut_at(300_000)(handler, content)
        received.wait(LONG)
        # Again and again: a signal just before the system call does not end it.
        while not interrupted.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        handler.site.stop.wait(LONG)

    site.answers = [stall_and_interrupt]
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            get(toy(offer(site, content)), root=home, progress=listen)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert site.ranges == [""], "no timeout has led to a second request"
    assert (home / ".toy.work" / "toy.tar.part").stat().st_size == 300_000
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert site.sent == len(content)
