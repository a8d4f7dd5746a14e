"""The bounded first-in-first-out queue between the event loop and the writer."""

from __future__ import annotations

import threading
import time
from collections import deque

from cretta.serve.refusal import Refusal
from cretta.serve.requests import Item, Request


class ImageQueue:
    """Images that wait for a batch. All images of a request are accepted together, or none."""

    def __init__(self, capacity: int, full_status: int = 429) -> None:
        self.capacity = capacity
        self.full_status = full_status
        self.sequence = 0
        """Images accepted so far."""
        self.draining = False
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, request: Request) -> None:
        """Accept a request, or raise :class:`Refusal`."""
        with self._changed:
            if self.draining:
                raise Refusal(503, "the service is shutting down; send the request to another one.", retry_after=5)
            if len(request.items) > self.capacity:
                raise Refusal(413, f"expected at most {self.capacity} images, got {len(request.items)}; send fewer.")
            if len(self._items) + len(request.items) > self.capacity:
                raise Refusal(
                    self.full_status,
                    f"{len(self._items)} images are waiting, of {self.capacity}; try again later.",
                    retry_after=1,
                )
            now = time.monotonic()
            for item in request.items:
                item.sequence, item.arrived = self.sequence, now
                self.sequence += 1
            self._items.extend(request.items)
            self._changed.notify_all()

    def drop(self, request: Request) -> int:
        """Remove the images of a request that no batch has yet; return how many there were."""
        with self._changed:
            before = len(self._items)
            self._items = deque(item for item in self._items if item.request is not request)
            return before - len(self._items)

    def take(self, most: int, wait: float, patience: float) -> list[Item]:
        """Return the next batch: up to ``most`` images, or what arrived within ``wait`` seconds of the first.

        Return an empty list if nothing arrives within ``patience`` seconds, or :meth:`notify` is called.
        """
        with self._changed:
            if not self._items:
                self._changed.wait(patience)
            while 0 < len(self._items) < most and not self.draining:
                remaining = self._items[0].arrived + wait - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            return [self._items.popleft() for _ in range(min(most, len(self._items)))]

    def drain(self) -> None:
        """Accept nothing from now on."""
        with self._changed:
            self.draining = True
            self._changed.notify_all()

    def notify(self) -> None:
        """Let a waiting :meth:`take` return."""
        with self._changed:
            self._changed.notify_all()

    def clear(self) -> list[Request]:
        """Remove all images; return their requests."""
        with self._changed:
            requests = list(dict.fromkeys(item.request for item in self._items))
            self._items.clear()
            return requests
