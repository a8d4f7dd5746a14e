"""Which implementation of an operation is used for each shape: the fastest of those that were timed at first use.

The choice is remembered for the process. Other implementations round differently, so a run is repeated bit for bit only
with the same choices: they are saved with a state and pinned where it is restored, and ``CRETTA_KERNELS`` fixes them.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

PYTORCH = "pytorch"
SAMPLE = 2**18
"""Numbers in a timed batch, at most: a few milliseconds. Larger batches share the choice."""
ROUNDS = 8
"""Times that each implementation runs, at most; the first is not counted, and the least of the others is."""
SECONDS = 0.15
"""After this time, three rounds are enough."""
MARGIN = 1.05
"""The first implementation is chosen that takes at most this times the least time, so that chance seldom decides."""


class Shape(NamedTuple):
    """An operation on images of one shape."""

    operation: str
    images: int
    inputs: int
    outputs: int
    height: int
    width: int

    def __str__(self) -> str:
        to = f" → {self.outputs}" if self.outputs != self.inputs else ""
        return f"{self.operation}, {self.images} × {self.inputs} × {self.height} × {self.width}{to}"

    @property
    def layer(self) -> Shape:
        """The same for any number of images."""
        return self._replace(images=0)


def sampled(images: int, channels: int, height: int, width: int) -> int:
    """Return how many of ``images`` are timed."""
    return min(images, max(1, SAMPLE // (channels * height * width)))


@dataclasses.dataclass(frozen=True)
class Choice:
    """The implementation of one shape, and the milliseconds of all that were timed; none if it was pinned."""

    shape: Shape
    kernel: str
    milliseconds: Mapping[str, float]

    def __str__(self) -> str:
        times = ", ".join(f"{name} {value:.2f} ms" for name, value in self.milliseconds.items()) or "pinned"
        return f"{self.shape}: {self.kernel} ({times})"


_choices: dict[Shape, Choice] = {}
_names: dict[Shape, str] = {}
_pinned: dict[str, str] = {}
_lock = threading.Lock()
decided: dict[tuple[object, ...], str] = {}
"""What callers decided, by whatever the decision depends on: one look-up per layer and batch."""


def chosen(shape: Shape) -> str | None:
    """Return the implementation that was chosen, or None before the first use."""
    return _names.get(shape)


def fastest(shape: Shape, candidates: Callable[[], Mapping[str, Callable[[], object]]]) -> str:
    """Return the implementation for ``shape``; at first use, time ``candidates``, in the order of preference."""
    name = _names.get(shape)
    if name is not None:
        return name
    with _lock:  # two timings at once would disturb each other
        if shape not in _names:
            runs = candidates()
            pinned = _pinned.get(str(shape))
            if pinned is not None and pinned in runs:
                _choices[shape] = Choice(shape, pinned, {})
            else:
                milliseconds = timed(runs)
                limit = MARGIN * min(milliseconds.values())
                first = next(name for name, value in milliseconds.items() if value <= limit)
                _choices[shape] = Choice(shape, first, milliseconds)
            _names[shape] = _choices[shape].kernel
        return _names[shape]


@torch.no_grad()
def timed(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least milliseconds of each function; they take turns."""
    least = dict.fromkeys(runs, float("inf"))
    start = time.perf_counter()
    for turn in range(ROUNDS):
        if turn >= 3 and time.perf_counter() - start > SECONDS:
            break
        for name, run in runs.items():
            begun = time.perf_counter()
            run()
            taken = 1e3 * (time.perf_counter() - begun)
            if turn:
                least[name] = min(least[name], taken)
    return least


def choices() -> tuple[Choice, ...]:
    """Return all choices of this process, in the order in which they were made."""
    return tuple(_choices.values())


def record() -> dict[str, str]:
    """Return the implementation of each shape so far, for :func:`pin`."""
    return {str(shape): choice.kernel for shape, choice in _choices.items()}


def pin(recorded: Mapping[str, str]) -> None:
    """Use these implementations for shapes for which nothing is chosen yet, where this processor has them."""
    _pinned.update(recorded)


def forget() -> None:
    """Forget all choices and pins: the next use times again."""
    with _lock:
        for memory in (_choices, _names, _pinned, decided):
            memory.clear()
