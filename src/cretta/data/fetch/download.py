"""Download archives over HTTP, resumable by ranges, until they have the published MD5.

Written with urllib: pooch starts over after an interruption, and the downloads of torchvision and of huggingface_hub
bring a framework with them. The size and the MD5 of each archive are published, so the file itself is all that a later
process needs in order to continue; it requests the rest, and the MD5 shows whether the pieces belong together.
"""

import contextlib
import http
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from cretta.data.check import md5_of
from cretta.data.releases import Archive
from cretta.errors import StateError
from cretta.storage.files import write_errors

Progress = Callable[[str, int, int | None], None]
"""Called with an activity ("CIFAR-10-C.tar", "unpacking CIFAR-10-C.tar"), the bytes done, and their total if known."""

_CHUNK = 1 << 18


class UnreachableError(StateError):
    """No server sent the file."""


class TransientError(Exception):
    """An attempt failed; the next one may succeed."""

    def __init__(self, message: str, *, connected: bool = True, pause: float = 0.0) -> None:
        super().__init__(message)
        self.connected, self.pause = connected, pause


@dataclass(frozen=True)
class RetryPolicy:
    """How often to try, and how long to wait, in seconds.

    ``timeout`` limits a connection attempt and a time without data. ``attempts`` without progress end the download, or
    two attempts if no connection was made. The pause between them starts at ``pause`` and doubles each time.
    """

    timeout: float = 15.0
    attempts: int = 5
    pause: float = 1.0


def download(archive: Archive, target: Path, policy: RetryPolicy, progress: Progress) -> None:
    """Download to ``target`` and verify; until then the file has the suffix ``.part``, and can be resumed."""
    part = target.with_name(f"{target.name}.part")
    messages = []
    for url in archive.urls:
        try:
            _download_from(url, archive, part, policy, progress)
            os.replace(part, target)
            return
        except UnreachableError as error:
            messages.append(str(error))
    raise UnreachableError(f"{archive.file} cannot be downloaded: {' '.join(messages)}")


def verify(file: Path, archive: Archive, progress: Progress) -> None:
    """Raise unless a file has the published MD5."""
    md5 = md5_of(file, partial(progress, f"checking {archive.file}"))
    if md5 != archive.md5:
        raise StateError(f"{file} has MD5 {md5}, but {archive.file} as published has {archive.md5}.")


def _download_from(url: str, archive: Archive, part: Path, policy: RetryPolicy, progress: Progress) -> None:
    for last in (False, True):
        resumed = _complete(url, archive, part, policy, progress)
        try:
            verify(part, archive, progress)
            return
        except StateError as error:
            part.unlink()
            # The pieces may belong to different files: download once more, from the start.
            if last or not resumed:
                raise StateError(
                    f"{url}: {error} The file was removed. Try again later, or download {archive.file} elsewhere and "
                    "pass it with --from."
                ) from error


def _complete(url: str, archive: Archive, part: Path, policy: RetryPolicy, progress: Progress) -> bool:
    """Make requests until the file has its size; return whether it came in several pieces."""
    if _size(part) > archive.size:
        part.unlink()
    failed, connected, longest = 0, False, _size(part)
    resumed = longest > 0
    while _size(part) < archive.size:
        try:
            _request(url, archive, part, policy, progress)
        except TransientError as error:
            connected |= error.connected
            size = _size(part)
            resumed |= size > 0
            # Fewer bytes than this are not progress: a server that sends single bytes would never be given up.
            failed = 1 if size - longest >= _CHUNK else failed + 1
            longest = max(longest, size)
            if failed >= (policy.attempts if connected else min(2, policy.attempts)):
                host = urllib.parse.urlsplit(url).netloc
                raise UnreachableError(f"{host}: {error}, after {failed} attempts.") from error
            time.sleep(error.pause or min(60.0, policy.pause * 2 ** (failed - 1)))
    return resumed


def _request(url: str, archive: Archive, part: Path, policy: RetryPolicy, progress: Progress) -> None:
    """Append what one response sends."""
    start = _size(part)
    headers = {"User-Agent": f"cretta/{version('cretta')}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    with _network_errors(url, part), urllib.request.urlopen(request, timeout=policy.timeout) as response:
        if response.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
            raise UnreachableError(
                f"{url}: the server sent a web page instead of the file. Open the address in a browser: the network "
                "may require a login, or the file may have moved."
            )
        first, size = _content_range(response)
        if size not in (None, archive.size):
            raise UnreachableError(
                f"{url}: the server has {size} bytes, but {archive.file} has {archive.size}; it is another file."
            )
        if first not in (0, start):
            part.unlink()
            raise TransientError(f"the server sent the bytes from {first} on, not from {start}")
        done = first
        progress(archive.file, done, archive.size)
        with write_errors(part):
            # Not buffered, so that a killed process loses nothing.
            file = part.open("ab" if first else "wb", buffering=0)
        with file:
            while chunk := response.read1(_CHUNK):
                with write_errors(part):
                    file.write(chunk)
                done += len(chunk)
                progress(archive.file, done, archive.size)
    if done < archive.size:
        raise TransientError(f"the response ended after {done} of {archive.size} bytes")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _content_range(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return where the response starts in the file, -1 if that is not clear, and the size of the file, if known."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        return (int(span[1]), int(span[2])) if span else (-1, None)
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


@contextlib.contextmanager
def _network_errors(url: str, part: Path) -> Iterator[None]:
    """Distinguish errors that a further attempt may avoid from those that remain."""
    try:
        yield
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink()
                raise TransientError("the server has fewer bytes than were downloaded") from error
            if error.code not in (408, 425, 429) and error.code < 500:
                raise UnreachableError(f"{url}: HTTP {error.code} {error.reason}.") from error
            seconds = error.headers.get("Retry-After", "")
            pause = min(120.0, float(seconds)) if seconds.isdecimal() else 0.0
            raise TransientError(f"HTTP {error.code} {error.reason}", pause=pause) from error
    except (OSError, http.client.HTTPException) as error:
        # urllib wraps errors until the request is sent, and none after that.
        connected = not isinstance(error, urllib.error.URLError)
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise UnreachableError(f"{url}: its certificate is not trusted ({reason.verify_message}).") from error
        if isinstance(reason, TimeoutError):
            message = "no data within the timeout" if connected else "no connection within the timeout"
        else:
            message = (reason.strerror if isinstance(reason, OSError) else str(reason)) or type(reason).__name__
        raise TransientError(message, connected=connected) from error
