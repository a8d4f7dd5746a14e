"""What every request passes first: access, rate, size; and the headers that every response gets."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import closing
from typing import Any

from starlette.requests import ClientDisconnect

from cretta.serve.access import Access, route_path
from cretta.serve.limits import RateLimit, Receive, Upload, Uploads
from cretta.serve.metrics import Metrics
from cretta.serve.refusal import Refusal
from cretta.serve.settings import Settings

logger = logging.getLogger(__name__)
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
}


class Gate:
    """An ASGI middleware: checks requests before the application, and completes responses."""

    def __init__(self, app: Application, access: Access, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._access = access
        self._settings = settings
        self._metrics = metrics
        self._rate = RateLimit(settings.rate)
        self._uploads = Uploads(settings)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        counted = path == "/predict" or path.endswith("/infer")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        upload = Upload(self._uploads, self._settings, receive)
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        started = False

        async def respond(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                names = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in HEADERS.items() if pair[0] not in names)]
                if has_body and not upload.complete:
                    await upload.drain()
                if has_body and not upload.complete:
                    # Else the client could go on sending, slowly, and keep the connection.
                    message["headers"].append((b"connection", b"close"))
                if counted:
                    self._metrics.requests.labels(str(message["status"])).inc()
            await send(message)

        with closing(upload):
            try:
                self._rate.check((scope.get("client") or ("", 0))[0])  # first: so that tokens cannot be guessed quickly
                self._access.check(scope, headers)
                self._uploads.check(headers)
            except Refusal as refusal:
                await send_refusal(refusal, respond)
                return
            try:
                await self._app(scope, upload.receive, respond)
            except ClientDisconnect:
                logger.debug("a client has gone during its upload")
            except Exception as error:
                logger.exception("a request failed", extra={"facts": {"path": path}})
                if not started:
                    message = f"an internal error ({type(error).__name__}); the log has the cause."
                    await send_refusal(Refusal(500, message), respond)


def refusal_parts(refusal: Refusal) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the response to a request that is refused."""
    headers = {"content-type": "application/json"}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return refusal.status, headers, json.dumps({"error": str(refusal)}).encode()


async def send_refusal(refusal: Refusal, send: Send) -> None:
    """Send the response to a request that is refused."""
    status, headers, body = refusal_parts(refusal)
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
