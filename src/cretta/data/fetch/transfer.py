"""One attempt to take a file, or what is not there of it yet, over HTTP."""

import http.client
import re
from collections.abc import Callable
from importlib.metadata import version

from cretta.data.releases import Archive

from .job import Progress
from .line import Line, PassingError, UnreachableError, faults
from .part import PartFile

CHUNK = 1 << 18


def transfer(address: str, archive: Archive, part: PartFile, line: Line, progress: Progress) -> None:
    """Appends to ``part`` what it lacks; the published MD5 will tell whether the pieces belong together."""
    notes = part.notes
    if not notes:
        part.forget()
    have, total = part.size, notes.get("size")
    if have and have == total:
        return
    headers = {"User-Agent": f"cretta/{version('cretta')}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if notes.get("tag") and notes.get("address") == address:  # another server has other tags
            headers["If-Range"] = notes["tag"]
    with faults(address), line.ask(address, headers) as response:
        if _is_page(response):
            raise UnreachableError(
                f"{address}: the server gave a web page instead of the file. Open the address in a browser: the "
                "network may ask for a login, or the file may have moved."
            )
        start, size = _span(response)
        if size is not None and archive.size and size != archive.size:
            raise UnreachableError(
                f"{address}: the server offers {size} bytes, but {archive.file} has {archive.size}; it is another file."
            )
        if start is None:
            have, total = 0, size
            part.begin({"address": address, "tag": _tag(response), "size": size})
        elif not have or start != have or size != (total or size):
            said = f"the server gave another part of the file than that from {have} on"
            raise PassingError(said, start_over=True)
        expected = total or archive.size or None
        _append(response, part, lambda done: progress(archive.file, have + done, expected))
    if total is not None and part.size < total:
        raise PassingError(f"the answer ended after {part.size} of {total} bytes")


def _is_page(response: http.client.HTTPResponse) -> bool:
    if response.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
        return True
    return response.peek(64).lstrip()[:14].lower().startswith((b"<!doctype html", b"<html"))


def _span(response: http.client.HTTPResponse) -> tuple[int | None, int | None]:
    """Where a part starts, None if it is the whole file, and how long that is, if told."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        return (int(span[1]), int(span[2])) if span else (-1, None)
    length = response.headers.get("Content-Length", "")
    return None, int(length) if length.isdecimal() else None


def _tag(response: http.client.HTTPResponse) -> str | None:
    etag = response.headers.get("ETag", "")
    # A weak tag holds for what is alike, not for what is the same byte by byte.
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")


def _append(response: http.client.HTTPResponse, part: PartFile, progress: Callable[[int], None]) -> None:
    done = 0
    progress(done)
    with part.writing():
        file = part.file.open("ab")
    with file:
        # One read of the socket at a time, so that a stall loses nothing of what came before.
        while chunk := response.read1(CHUNK):
            with part.writing():
                file.write(chunk)
                file.flush()
            done += len(chunk)
            progress(done)
