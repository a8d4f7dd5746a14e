"""The line to a server: connections that another thread can cut, and what their faults mean."""

import contextlib
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from cretta.errors import StateError


class UnreachableError(StateError):
    """No address gave the file."""


@dataclass(frozen=True)
class Patience:
    """How long to bear with a server, in seconds: to connect, without a byte, before the second attempt.

    ``attempts`` that bring nothing in a row are the last, or 2 where the server was not reached at all. The pause
    doubles from one to the next.
    """

    connect: float = 8.0
    stall: float = 30.0
    pause: float = 1.0
    attempts: int = 5


class PassingError(Exception):
    """A fault that may be gone at the next attempt, which starts over where what has come is of no use."""

    def __init__(self, message: str, *, reached: bool = True, start_over: bool = False, pause: float = 0.0) -> None:
        super().__init__(message)
        self.reached, self.start_over, self.pause = reached, start_over, pause


class Line(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """The connections of one call."""

    def __init__(self, patience: Patience) -> None:
        super().__init__()
        self.patience = patience
        self.stopped = threading.Event()
        self._sockets: list[socket.socket] = []
        self._opener = urllib.request.build_opener(self)

    def ask(self, address: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        """The answer, of which the body is still to be read."""
        request = urllib.request.Request(address, headers=headers)
        response: http.client.HTTPResponse = self._opener.open(request, timeout=self.patience.connect)
        return response

    def cut(self) -> None:
        """Ends every transfer at once."""
        self.stopped.set()
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def keep(self, connected: socket.socket) -> None:
        """Takes note of a connection."""
        connected.settimeout(self.patience.stall)
        self._sockets.append(connected)
        if self.stopped.is_set():
            self.cut()

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """How urllib opens an address."""
        return self.do_open(partial(_Connection, self), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """How urllib opens a secure one."""
        return self.do_open(partial(_SecureConnection, self), req, context=ssl.create_default_context())


class _Connection(http.client.HTTPConnection):
    def __init__(self, line: Line, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._line = line

    def connect(self) -> None:
        super().connect()
        self._line.keep(self.sock)


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    pass


@contextlib.contextmanager
def faults(address: str) -> Iterator[None]:
    """Tells what may pass from what will not."""
    try:
        yield
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error, address) from error
    except (OSError, http.client.HTTPException) as error:
        # urllib wraps what goes wrong until the request is sent, and nothing after it.
        reached = not isinstance(error, urllib.error.URLError)
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise UnreachableError(f"{address}: its certificate is not trusted ({reason.verify_message}).") from error
        said = (reason.strerror if isinstance(reason, OSError) else str(reason)) or type(reason).__name__
        if isinstance(reason, TimeoutError):
            said = "nothing came for too long" if reached else "no connection in time"
        raise PassingError(said, reached=reached) from error


def _refusal(error: urllib.error.HTTPError, address: str) -> Exception:
    if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return PassingError("the server has fewer bytes than there are already", start_over=True)
    if error.code in (408, 425, 429) or error.code >= 500:
        asked = error.headers.get("Retry-After", "")
        pause = min(120.0, float(asked)) if asked.isdecimal() else 0.0
        return PassingError(f"HTTP {error.code} {error.reason}", pause=pause)
    return UnreachableError(f"{address}: HTTP {error.code} {error.reason}.")
