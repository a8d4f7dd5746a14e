"""Limits of a request before it is decoded: rate per client, size of the body, time of the upload."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from cretta.serve.refusal import Refusal
from cretta.serve.settings import Settings

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
CLIENTS = 4096
"""Addresses whose rate is remembered."""
DRAINED_BYTES = 2**20
DRAIN_SECONDS = 2.0
"""How much of the body of a refused request is read, at most, and for how long."""


class RateLimit:
    """A token bucket per client address, with room for one second of requests."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, client: str) -> None:
        """Count a request; raise :class:`Refusal` if the client sends too many."""
        if not self._rate:
            return
        now = self._clock()
        room = max(1.0, self._rate)
        left, since = self._buckets.pop(client, (room, now))
        left = min(room, left + (now - since) * self._rate)
        self._buckets[client] = (max(0.0, left - 1), now) if left >= 1 else (left, now)
        if len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        if left < 1:
            raise Refusal(429, f"expected at most {self._rate:g} requests per second; send fewer.", retry_after=1)


class Uploads:
    """The bodies that are being read or decoded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.pending = 0
        """Bytes of all bodies."""

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise :class:`Refusal` if the headers announce a body that is not accepted."""
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "expected a body that is not compressed; leave Content-Encoding out.")
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise Refusal(400, f"expected a number as Content-Length, got {length!r}.")
        if int(length) > self._settings.max_body:
            raise _too_large(self._settings)


class Upload:
    """The body of one request; counts bytes and time while it is received."""

    def __init__(self, uploads: Uploads, settings: Settings, receive: Receive) -> None:
        self._uploads = uploads
        self._settings = settings
        self._receive = receive
        self._bytes = 0
        self._deadline = asyncio.get_running_loop().time() + settings.upload_seconds
        self.complete = False
        """Whether all of the body was received."""

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the next message; raise :class:`Refusal` if the body is too large or too slow."""
        if self.complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            seconds = self._settings.upload_seconds
            raise Refusal(408, f"expected the body within {seconds:g} seconds; send it faster.") from None
        size = len(message.get("body", b""))
        self._bytes += size
        self._uploads.pending += size
        self.complete = not message.get("more_body", False)
        if self._bytes > self._settings.max_body:
            raise _too_large(self._settings)
        if self._uploads.pending > self._settings.max_pending:
            raise Refusal(503, "too many uploads at once; try again later.", retry_after=1)
        return message

    async def drain(self) -> None:
        """Read a small rest of the body: if the connection is closed before, the client may lose the response."""
        loop = asyncio.get_running_loop()
        self._deadline = min(self._deadline, loop.time() + DRAIN_SECONDS)
        with contextlib.suppress(Refusal):
            while not self.complete and self._bytes <= DRAINED_BYTES:
                await self.receive()

    def close(self) -> None:
        """End the request: its bytes count no longer."""
        self._uploads.pending -= self._bytes


def _too_large(settings: Settings) -> Refusal:
    return Refusal(413, f"expected a body of at most {settings.max_body} bytes; send fewer or smaller images.")
