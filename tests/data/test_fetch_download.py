import http.server
import io
import shutil
import signal
import socket
import ssl
import subprocess
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

import fetch_site
import numpy as np
import pytest
from fetch_site import (
    HURRY,
    Handler,
    Site,
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
    well,
    without_length,
    wrong_range,
)

from cretta.data.fetch import Progress, UnreachableError, get
from cretta.data.fetch.line import Line
from cretta.errors import StateError
from processes import LONG

content, home, site = fetch_site.content, fetch_site.home, fetch_site.site


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Progress:
    """A progress that ends the wait for a server once it has stalled after 300 000 bytes, and never before."""
    sockets: list[socket.socket] = []
    keep = Line.keep

    def keep_both(line: Line, connected: socket.socket) -> None:
        keep(line, connected)
        sockets.append(connected)

    def hear(what: str, done: int, total: int | None) -> None:
        if done == 300_000 and len(sockets) == 1:
            assert sockets[0].gettimeout() == HURRY.stall
            sockets[0].settimeout(0.01)

    monkeypatch.setattr(Line, "keep", keep_both)
    return hear


def test_what_was_cut_continues(site: Site, content: bytes, home: Path) -> None:
    site.answers = [cut_at(300_000)]
    get(toy(offer(site, content)), root=home, patience=HURRY)
    assert_toy(home)
    assert site.ranges == ["", "bytes=300000-"]
    assert site.sent == len(content)


def test_what_stalled_continues(site: Site, content: bytes, home: Path, impatient: Progress) -> None:
    site.answers = [stall_at(300_000)]
    get(toy(offer(site, content)), root=home, patience=replace(HURRY, connect=LONG), progress=impatient)
    assert_toy(home)
    assert site.ranges == ["", "bytes=300000-"]
    assert site.sent == len(content)


def test_a_server_that_ignores_ranges_is_asked_for_all(site: Site, content: bytes, home: Path) -> None:
    site.answers = [cut_at(300_000), ignore_range]
    get(toy(offer(site, content)), root=home, patience=HURRY)
    assert_toy(home)
    assert site.sent == 300_000 + len(content)


def test_a_part_is_resumed_by_a_later_call(site: Site, content: bytes, home: Path) -> None:
    site.answers = [cut_at(500_000), status(503)]
    entry = toy(offer(site, content))
    with pytest.raises(UnreachableError, match=r"toy\.tar cannot be downloaded: .*HTTP 503 .*, after 2 attempts"):
        get(entry, root=home, patience=replace(HURRY, attempts=2))
    assert listed(home) == {"toy.tar.part", "toy.tar.part.json"}
    assert (home / "toy.tar.part").read_bytes() == content[:500_000]
    site.sent = 0
    get(entry, root=home)
    assert_toy(home)
    assert site.sent == len(content) - 500_000


def test_a_part_of_which_nothing_is_known_is_not_trusted(site: Site, content: bytes, home: Path) -> None:
    home.mkdir()
    (home / "toy.tar.part").write_bytes(content[:400])
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert site.ranges == [""]


def test_a_server_that_never_comes_round_is_given_up(site: Site, content: bytes, home: Path) -> None:
    site.answers = [cut_at(1000), *[cut_at(1000, tagged=False)] * 5]
    with pytest.raises(UnreachableError, match=rf"ended after 1000 of {len(content)} bytes, after 3 attempts"):
        get(toy(offer(site, content)), root=home, patience=HURRY)
    assert len(site.ranges) == 3


@pytest.mark.parametrize("known", [True, False])
def test_a_length_that_is_too_long(site: Site, content: bytes, home: Path, known: bool) -> None:
    site.answers = [claim(+1000)] * 9
    archive = offer(site, content, size=None if known else 0)
    message = rf"offers {len(content) + 1000} bytes, but toy\.tar has {len(content)}"
    with pytest.raises(UnreachableError, match=message if known else "ended after"):
        get(toy(archive), root=home, patience=HURRY)
    assert "Toy" not in listed(home)
    assert "toy.tar" not in listed(home)
    assert len(site.ranges) == (1 if known else 3)


@pytest.mark.parametrize("known", [True, False])
def test_a_length_that_is_too_short(site: Site, content: bytes, home: Path, known: bool) -> None:
    site.answers = [claim(-1000)] * 9
    archive = offer(site, content, size=None if known else 0)
    found = md5(content[:-1000])
    with pytest.raises(StateError, match="another file" if known else f"has MD5 {found}.*has {md5(content)}.*removed"):
        get(toy(archive), root=home, patience=HURRY)
    assert listed(home) == set()


def test_a_length_need_not_be_told(site: Site, content: bytes, home: Path) -> None:
    site.answers = [without_length]
    get(toy(offer(site, content, size=0)), root=home)
    assert_toy(home)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("text/html; charset=utf-8", b"<p>Please log in"),
        ("application/octet-stream", b"\n <!DOCTYPE html><html>Please log in"),
        ("application/octet-stream", b"<HTML>Please log in"),
    ],
)
def test_a_page_is_refused(site: Site, content: bytes, home: Path, kind: str, text: bytes) -> None:
    site.answers = [page(kind, text)] * 3
    with pytest.raises(UnreachableError, match=r"a web page instead of the file.*Open the address in a browser"):
        get(toy(offer(site, content, size=0)), root=home, patience=HURRY)
    assert listed(home) == set()
    assert len(site.ranges) == 1


def test_a_file_that_is_gone_is_not_asked_for_again(site: Site, content: bytes, home: Path) -> None:
    archive = offer(site, content)
    site.files.clear()
    with pytest.raises(UnreachableError, match=r"toy\.tar: HTTP 404 .*With the archive at hand: .* get toy .*--from"):
        get(toy(archive), root=home, patience=HURRY)
    assert len(site.ranges) == 1


def test_a_server_that_is_busy_is_asked_again(site: Site, content: bytes, home: Path) -> None:
    site.answers = [status(503), status(429)]
    get(toy(offer(site, content)), root=home, patience=HURRY)
    assert_toy(home)
    assert len(site.ranges) == 3


def test_a_file_that_changes_is_taken_from_the_start(site: Site, content: bytes, home: Path) -> None:
    archive = offer(site, content)
    old = bytes(len(content))

    def old_half(handler: Handler, _: bytes) -> None:
        cut_at(300_000)(handler, old)

    site.answers = [old_half]
    get(toy(archive), root=home, patience=HURRY)
    assert_toy(home)
    # The tag did not match any more, so the server sent all of the new file.
    assert site.ranges == ["", "bytes=300000-"]
    assert site.sent == 300_000 + len(content)


def test_a_file_that_changes_unseen_is_found_out_by_its_checksum(site: Site, content: bytes, home: Path) -> None:
    archive = offer(site, content)
    old = bytes(len(content))

    def old_half(handler: Handler, _: bytes) -> None:
        cut_at(300_000, tagged=False)(handler, old)

    def rest_untagged(handler: Handler, content: bytes) -> None:
        handler.begin(206, len(content) - 300_000, Content_Range=f"bytes 300000-{len(content) - 1}/{len(content)}")
        handler.body(content[300_000:])

    site.answers = [old_half, rest_untagged]
    get(toy(archive), root=home, patience=HURRY)
    assert_toy(home)
    assert site.ranges == ["", "bytes=300000-", ""]


def test_a_part_need_not_repeat_the_tag(site: Site, content: bytes, home: Path) -> None:
    def untagged(handler: Handler, content: bytes) -> None:
        handler.begin(206, len(content) - 300_000, Content_Range=f"bytes 300000-{len(content) - 1}/{len(content)}")
        handler.body(content[300_000:])

    site.answers = [cut_at(300_000), untagged]
    get(toy(offer(site, content)), root=home, patience=HURRY)
    assert_toy(home)
    assert site.sent == len(content)


def test_a_file_that_has_moved_is_followed(site: Site, content: bytes, home: Path) -> None:
    def moved(handler: Handler, content: bytes) -> None:
        handler.begin(301, 0, Location="/elsewhere")

    archive = offer(site, content)
    site.files["elsewhere"] = content
    site.answers = [moved, cut_at(300_000), moved]
    get(toy(archive), root=home, patience=HURRY)
    assert_toy(home)
    assert site.ranges == ["", "", "bytes=300000-", "bytes=300000-"]
    assert site.sent == len(content)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not on the path")
def test_a_certificate_must_be_trusted(
    site: Site, content: bytes, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: Progress
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
        address = f"https://127.0.0.1:{server.server_address[1]}/toy.tar"
        entry = toy(replace(offer(site, content), urls=(address,)))
        with pytest.raises(UnreachableError, match=r"its certificate is not trusted \(self.signed certificate\)"):
            get(entry, root=home, patience=HURRY)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        site.answers = [stall_at(300_000)]
        get(entry, root=home, patience=HURRY, progress=impatient)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert_toy(home)
    assert site.sent == len(content)


def test_a_wrong_range_is_refused(site: Site, content: bytes, home: Path) -> None:
    site.answers = [cut_at(300_000), wrong_range]
    get(toy(offer(site, content)), root=home, patience=HURRY)
    assert_toy(home)
    assert site.ranges == ["", "bytes=300000-", ""]


def test_a_wrong_checksum_is_refused(site: Site, content: bytes, home: Path) -> None:
    archive = offer(site, content)
    site.files["toy.tar"] = other = content[:-1] + b"x"
    message = rf"has MD5 {md5(other)}, but toy\.tar as published has {md5(content)}\. The file was removed"
    with pytest.raises(StateError, match=message) as raised:
        get(toy(archive), root=home, patience=HURRY)
    assert not isinstance(raised.value, UnreachableError)
    assert listed(home) == set()
    assert len(site.ranges) == 1


def test_a_server_that_is_not_there_fails_fast_and_the_next_is_asked(site: Site, content: bytes, home: Path) -> None:
    archive = offer(site, content)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/toy.tar"
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:\d+: Connection refused, after 2 attempts"):
            get(toy(replace(archive, urls=(address,))), root=home, patience=replace(HURRY, attempts=9))
        get(toy(replace(archive, urls=(address, *archive.urls))), root=home, patience=HURRY)
    assert_toy(home)


def test_another_address_continues_what_the_first_began(site: Site, content: bytes, home: Path) -> None:
    archive = offer(site, content)
    site.files["mirror"] = content
    site.answers = [cut_at(300_000), *[status(500)] * 2]
    both = (*archive.urls, f"{site.address}mirror")
    get(toy(replace(archive, urls=both)), root=home, patience=replace(HURRY, attempts=2))
    assert_toy(home)
    assert site.sent == len(content)


def test_several_archives_come_at_once(site: Site, home: Path, tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=LONG)

    def meet(handler: Handler, content: bytes) -> None:
        together.wait()
        well(handler, content)

    archives = []
    for name in ("one", "two", "three"):
        np.save(tmp_path / "labels.npy", np.zeros(3))
        np.save(tmp_path / f"{name}.npy", np.zeros(3))
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w") as archive:
            archive.add(tmp_path / "labels.npy", "Toy/labels.npy")
            archive.add(tmp_path / f"{name}.npy", f"Toy/{name}.npy")
        archives.append(offer(site, target.getvalue(), f"{name}.tar"))
    site.answers = [meet] * 3
    get(toy(*archives), root=home, patience=HURRY)
    assert listed(home) == {"Toy"}
    assert listed(home / "Toy") == {"labels.npy", "one.npy", "two.npy", "three.npy"}


def test_one_that_fails_ends_the_others(site: Site, content: bytes, home: Path) -> None:
    good, bad = offer(site, content), offer(site, content + b"x", "bad.tar")

    site.answers = [stall_at(300_000), stall_at(300_000)]
    del site.files["bad.tar"]
    start = time.monotonic()
    with pytest.raises(UnreachableError, match=r"bad\.tar: HTTP 404"):
        get(toy(good, bad), root=home, patience=HURRY)
    assert time.monotonic() - start < HURRY.stall


@pytest.mark.process
def test_an_interruption_is_quick_and_the_next_call_continues(site: Site, content: bytes, home: Path) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def strike(what: str, done: int, total: int | None) -> None:
        if done == 300_000:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    site.answers = [stall_at(300_000)]
    before = signal.signal(signal.SIGALRM, interrupt)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            get(toy(offer(site, content)), root=home, patience=HURRY, progress=strike)
        assert time.monotonic() - start < HURRY.stall
    finally:
        signal.signal(signal.SIGALRM, before)
    assert listed(home) == {"toy.tar.part", "toy.tar.part.json"}
    get(toy(offer(site, content)), root=home)
    assert_toy(home)
    assert site.sent == len(content)
