"""Who may call what: a bearer token, and no requests from pages of other sites."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from cretta.serve.refusal import Refusal

OPEN = ("/", "/v2/health/live", "/v2/health/ready")
"""Need no token: the page itself has no data, and health is for probes."""
GUARDED = "/state"
"""Always needs a token, with everything below it."""


class Access:
    """The rules for one service. ``local`` says whether it is bound to loopback; None looks at each connection."""

    def __init__(self, token: str, local: bool | None = None) -> None:
        self._token = token
        self._local = local

    def check(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Raise :class:`Refusal` unless the request is allowed."""
        local = is_loopback((scope.get("server") or ("", None))[0]) if self._local is None else self._local
        host = headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname or ""
            origin = urlsplit(headers["origin"]).netloc if "origin" in headers else None
        except ValueError as error:
            raise Refusal(400, f"expected addresses in the headers Host and Origin ({error}).") from None
        if local and not is_loopback(name):
            # Else a page of another site, whose name resolves to this machine, could send requests.
            raise Refusal(403, f"expected the host localhost, got {host!r}; the service is bound to loopback.")
        if origin is not None and origin != host:
            raise Refusal(403, f"expected no requests from pages of other sites, got one of {headers['origin']!r}.")
        path = route_path(scope)
        if path in OPEN or (local and path != GUARDED and not path.startswith(f"{GUARDED}/")):
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token.encode()):
            raise Refusal(401, "expected the header 'Authorization: Bearer TOKEN' with the token of this service.")


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path of a request below the application, which may be mounted below another one."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


def is_loopback(host: str) -> bool:
    """Return whether an address, or a name, is this machine's own; the path of a Unix socket is."""
    if host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
