"""Structured logs: one JSON object per line, or a line of text for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

FORMATS = ("json", "text")


class _Lines(logging.Formatter):
    """Formats a record with the entries of ``extra={"facts": …}``."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self._json = style == "json"

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        facts: dict[str, Any] = dict(getattr(record, "facts", {}))
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        if self._json:
            entry = {"time": time, "level": record.levelname.lower(), "event": record.getMessage(), **facts}
            return json.dumps(entry, default=str, ensure_ascii=False)
        details = " ".join(f"{name}={value}" for name, value in facts.items())
        return f"{time} {record.levelname.lower()}: {record.getMessage()} {details}".rstrip()


def log_to_stderr(style: str, level: str = "INFO") -> None:
    """Write the logs of the service, and the warnings of the web server, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(style))
    for name, least in (("cretta", level), ("uvicorn", "WARNING"), ("py.warnings", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False
    logging.captureWarnings(True)
