"""A server whose responses a test can make fail, and a small dataset to download from it."""

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cretta.data import fetch, numpy_file
from cretta.data.fetch import get
from cretta.data.releases import Archive, Release
from processes import LONG

# A server whose responses can be made to fail, and which counts the bytes it sends

Answer = Callable[["Handler", bytes], None]


@dataclass
class Site:
    """The files, the answers to the next requests (correct after that), and what was requested and sent."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    sent: int = 0
    stop: threading.Event = field(default_factory=threading.Event)


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        self.site.ranges.append(self.headers.get("Range", ""))
        content = self.site.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        answer = self.site.answers.pop(0) if self.site.answers else well
        answer(self, content)

    def begin(self, status: int, length: int | None, **headers: str) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def body(self, content: bytes) -> None:
        for start in range(0, len(content), 1 << 16):
            piece = content[start : start + (1 << 16)]
            self.wfile.write(piece)
            self.wfile.flush()
            self.site.sent += len(piece)

    def log_message(self, *_: object) -> None:
        pass


def well(handler: Handler, content: bytes) -> None:
    asked = handler.headers.get("Range")
    if asked:
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            handler.begin(416, 0)
            return
        span = f"bytes {start}-{len(content) - 1}/{len(content)}"
        handler.begin(206, len(content) - start, Content_Range=span)
        handler.body(content[start:])
    else:
        handler.begin(200, len(content))
        handler.body(content)


def cut_at(size: int) -> Answer:
    def answer(handler: Handler, content: bytes) -> None:
        handler.begin(200, len(content))
        handler.body(content[:size])

    return answer


def stall_at(size: int) -> Answer:
    def answer(handler: Handler, content: bytes) -> None:
        cut_at(size)(handler, content)
        handler.site.stop.wait(LONG)

    return answer


def ignore_range(handler: Handler, content: bytes) -> None:
    handler.begin(200, len(content))
    handler.body(content)


def status(code: int) -> Answer:
    return lambda handler, content: handler.send_error(code)


def claim(difference: int) -> Answer:
    """Announce another length than is sent."""

    def answer(handler: Handler, content: bytes) -> None:
        handler.begin(200, len(content) + difference)
        handler.body(content)

    return answer


def page(kind: str, text: bytes) -> Answer:
    def answer(handler: Handler, content: bytes) -> None:
        handler.begin(200, len(text), Content_Type=kind)
        handler.body(text)

    return answer


def without_length(handler: Handler, content: bytes) -> None:
    handler.begin(200, None)
    handler.body(content)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses short; no timeout ends before the machine has had time to answer."""
    monkeypatch.setattr(fetch.download, "PAUSE", 0.02)
    monkeypatch.setattr(fetch.download, "TIMEOUT", LONG / 2)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    hurry(monkeypatch)
    serving = Site()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"site": serving}))
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up here on purpose
    serving.address = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield serving
    serving.stop.set()
    server.shutdown()
    thread.join()
    server.server_close()


# A dataset of eight noisy images, 800 KB


def toy(*archives: Archive, **changes: Any) -> Release:
    fields: dict[str, Any] = {
        "name": "toy",
        "contents": "eight",
        "folder": "Toy",
        "archives": archives,
        "markers": (("labels.npy",),),
        "open": lambda path, part, size: numpy_file(path / "images.npy", path / "labels.npy"),
        "classes": 2,
        "images": {"all": 8},
        "example": "",
        "page": "",
        "license": "",
        "unpacked_size": 1000,
    }
    return Release(**fields | changes)


def toy_folder(folder: Path, images: int = 8) -> Path:
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (images, 183, 183, 3), dtype=np.uint8)
    np.save(folder / "images.npy", pixels)
    np.save(folder / "labels.npy", np.arange(images) % 2)
    return folder


def archived(folder: Path, mode: str = "w", name: str = "Toy") -> bytes:
    target = io.BytesIO()
    quick: dict[str, Any] = {"preset": 0} if mode == "w:xz" else {}  # noise can only be pressed slowly, not small
    with tarfile.open(fileobj=target, mode=mode, **quick) as archive:  # type: ignore[call-overload]
        archive.add(folder, name)
    return target.getvalue()


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return archived(toy_folder(tmp_path / "made" / "Toy"))


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def offer(site: Site, content: bytes, file: str = "toy.tar") -> Archive:
    site.files[file] = content
    return Archive(file, md5(content), len(content), (site.address + file,))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def listed(home: Path) -> set[str]:
    return {each.name for each in home.iterdir()}


def assert_toy(home: Path) -> None:
    """Assert that the complete dataset is there, and nothing else."""
    assert listed(home) == {"Toy"}
    images = np.load(home / "Toy" / "images.npy")
    assert np.array_equal(images, np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8))
    assert np.load(home / "Toy" / "labels.npy").tolist() == [0, 1] * 4


def reported(record: Release, home: Path, source: Path) -> str:
    said: list[str] = []
    get(record, root=home, source=source, report=said.append)
    return said[-1]
