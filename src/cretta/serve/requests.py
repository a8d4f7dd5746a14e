"""Requests on their way through the queue: images in, predictions out, each exactly once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8] | NDArray[np.float32]
"""(H, W, 3): bytes, or floats in [0, 1]."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The answer for one image, with what is needed to repeat it in the library."""

    probabilities: NDArray[np.float32]
    index: int
    """The predicted class."""
    energy: float
    sequence: int
    """The position among all images that this process accepted."""
    batch: int
    step: int
    """Updates of the model before this answer."""


@dataclasses.dataclass(eq=False)
class Item:
    """One image of a request."""

    request: Request
    position: int
    image: Image
    sequence: int = -1
    """Set by the queue."""
    arrived: float = 0.0


class Request:
    """Images that one client sent, and the future of their predictions; made in the event loop."""

    def __init__(self, images: Sequence[Image], *, adapt: bool = True) -> None:
        self.adapt = adapt
        self.items = [Item(self, position, image) for position, image in enumerate(images)]
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[Prediction]] = self.loop.create_future()
        self._predictions: dict[int, Prediction] = {}

    def add(self, position: int, prediction: Prediction) -> bool:
        """Record a prediction; return whether it was the last one. Only the writer calls it."""
        self._predictions[position] = prediction
        return len(self._predictions) == len(self.items)

    def _resolve(self, error: BaseException | None) -> None:
        if self.future.done():  # the client has gone
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result([self._predictions[item.position] for item in self.items])


def resolve(requests: Iterable[Request], error: BaseException | None = None) -> None:
    """Answer requests, complete or with an error, from the writer's thread: one call per event loop."""
    by_loop: dict[Any, list[Request]] = {}
    for request in requests:
        by_loop.setdefault(request.loop, []).append(request)
    for loop, members in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_all, members, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _resolve_all(requests: list[Request], error: BaseException | None) -> None:
    for request in requests:
        request._resolve(error)
