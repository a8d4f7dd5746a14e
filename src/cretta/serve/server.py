"""The web server of one process: bounded headers, and a shutdown that answers what was accepted."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from cretta.errors import StateError
from cretta.serve.service import Service

logger = logging.getLogger(__name__)
HEADER_BYTES = 32 * 1024
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open."""
LATE = 5
"""Seconds for the answers of a last batch, after what was still waiting is refused."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise StateError(f"cannot listen on {host}:{port}: {reason}; choose another address or port.") from error
    return listener


def serve(app: FastAPI, listener: socket.socket, started: Callable[[], None] = lambda: None) -> bool:
    """Serve until SIGTERM or SIGINT; return whether all accepted requests were answered and the state was saved."""
    service: Service = app.state.service
    try:
        service.start()  # here, its errors have a message; in the server, they would have a traceback
    except BaseException:
        listener.close()
        raise
    _Server(configuration(app), service, started).run(sockets=[listener])
    return service.stop()


def configuration(app: FastAPI) -> uvicorn.Config:
    """Return the settings of the web server."""
    settings = app.state.service.settings
    return uvicorn.Config(
        app,
        http=_protocol(settings.header_seconds),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        limit_concurrency=settings.connections,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.drain) + LATE,
        proxy_headers=False,
    )


class _Server(uvicorn.Server):
    """After the first signal, readiness is withdrawn; after the grace period, connections are refused and drained."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._announce = started
        self._signals = 0
        self._exit_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and announce it."""
        await super().startup(sockets)
        if self.started:
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown at the first signal; at the second SIGINT, do not wait for requests."""
        self._signals += 1
        if self._signals > 1 and sig == signal.SIGINT:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop accepting connections."""
        if self._signals and self._exit_at is None:
            self._service.withdraw()
            self._exit_at = asyncio.get_running_loop().time() + self._service.settings.grace
        loop = asyncio.get_running_loop()
        if self._exit_at is not None and loop.time() >= self._exit_at and not self.should_exit:
            self._service.drain()
            self._service.live.close()  # open pages would hold up the shutdown
            loop.call_later(self._service.settings.drain, self._service.give_up)
            self.should_exit = True
        return await super().on_tick(counter)


def _protocol(seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a limit on the time that the headers of a request may take."""

    class Protocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, *reason: Any) -> None:
            super().connection_lost(*reason)
            self._forget()

        def _watch(self) -> None:
            """Start the time when headers are awaited; end it when they are complete."""
            if self.conn.their_state is not h11.IDLE:
                self._forget()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.close)

        def _forget(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Protocol
