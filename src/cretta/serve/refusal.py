"""A request that is not served: the HTTP status, and a message that says what to do."""

from __future__ import annotations

from cretta.errors import CrettaError


class Refusal(CrettaError):  # noqa: N818  # a response, not a fault of the service
    """Raised where a request cannot be served; becomes the response ``{"error": message}``."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """Seconds after which the client may try again."""
