"""What the page shows: the last batches, alarms and images, sent as server-sent events."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import io
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import PIL.Image

from cretta.serve.observe import Observation
from cretta.serve.requests import Image, Item, Prediction

HISTORY = 500
"""Batches that the page shows."""
EVENTS = 50
"""Alarms, snapshots and errors that it shows."""
INTERVAL = 0.25
"""Seconds between two messages at least: the page is for people."""
BEAT = 15.0
"""Seconds after which an empty message shows that the connection works."""
SIDE = 96
"""Pixels of a thumbnail."""


class Live:
    """The last batches, alarms and images. The writer adds to it; pages read what is new to them."""

    def __init__(self, recent: int) -> None:
        self.batches: deque[tuple[int, dict[str, Any]]] = deque(maxlen=HISTORY)
        self.events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=EVENTS)
        self.images: deque[tuple[int, Image, Prediction]] = deque(maxlen=recent)
        self.number = 0
        """Counts what was added, so that a page knows what it has."""
        self.closed = asyncio.Event()
        self._pictures: dict[int, dict[str, Any]] = {}
        """Encoded images, by their sequence numbers."""
        self._changed: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def add(self, seen: Observation, items: Sequence[Item], predictions: Sequence[Prediction]) -> None:
        """Add a batch; called by the writer."""
        number = self.number + 1
        self.batches.append((number, _finite(dataclasses.asdict(seen))))
        for item, prediction in list(zip(items, predictions, strict=True))[-(self.images.maxlen or 0) :]:
            self.images.append((number, item.image.copy(), prediction))  # not the body that it is part of
        self.number = number  # last: a page that reads it finds the entries
        if seen.guard:
            self.event("guard", seen.guard, batch=seen.batch)
        self._notify()

    def event(self, kind: str, message: str, **facts: Any) -> None:
        """Add an alarm, a snapshot, an error or a command."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self.events.append((self.number + 1, {"kind": kind, "message": message, "time": time, **facts}))
        self.number += 1  # last: a page that reads it finds the entry
        self._notify()

    def close(self) -> None:
        """End the streams of all pages; called in the event loop."""
        self.closed.set()
        self._notify()

    def _notify(self) -> None:
        for loop, changed in list(self._changed):
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

    def _encoded(self, sent: int, now: int, labels: Sequence[str]) -> list[dict[str, Any]]:
        """Return the images after a number, up to another; each is encoded once, for all pages."""
        known, entries = self._pictures, list(self.images)
        pictures = {
            answer.sequence: known.get(answer.sequence) or _image(image, answer, labels) for _, image, answer in entries
        }
        self._pictures = pictures  # a thread of another page may do the same with older images
        return [pictures[answer.sequence] for number, _, answer in entries if sent < number <= now]

    async def stream(self, state: Callable[[], Mapping[str, Any]], labels: Sequence[str]) -> AsyncIterator[bytes]:
        """Yield messages for one page: all that is there, then what is new, until :meth:`close`."""
        changed = asyncio.Event()
        entry = (asyncio.get_running_loop(), changed)
        self._changed.add(entry)
        sent = 0
        try:
            while not self.closed.is_set():
                changed.clear()
                now = self.number  # what is added from here on is in the next message, and in that one only
                message = {
                    "recent": self.images.maxlen,
                    "state": state(),
                    "batches": [batch for number, batch in list(self.batches) if sent < number <= now],
                    "events": [event for number, event in list(self.events) if sent < number <= now],
                    "images": await asyncio.to_thread(self._encoded, sent, now, labels),
                }
                yield f"data: {json.dumps(message, allow_nan=False)}\n\n".encode()
                sent = now
                while not changed.is_set():
                    try:
                        await asyncio.wait_for(changed.wait(), BEAT)
                    except TimeoutError:
                        yield b": still here\n\n"
                if not self.closed.is_set():
                    await asyncio.sleep(INTERVAL)
        finally:
            self._changed.discard(entry)


def label(labels: Sequence[str], index: int) -> str:
    """Return the name of a class, or its number."""
    return labels[index] if index < len(labels) else str(index)


def _image(image: Image, prediction: Prediction, labels: Sequence[str]) -> dict[str, Any]:
    pixels = image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)
    picture = PIL.Image.fromarray(np.asarray(pixels))
    picture.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    picture.save(content, "PNG")
    return {
        "source": f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}",
        "label": label(labels, prediction.index),
        "probability": float(prediction.probabilities[prediction.index]),
        "sequence": prediction.sequence,
    }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replace what JSON cannot represent by None."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
