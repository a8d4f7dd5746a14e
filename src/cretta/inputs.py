"""The scale of the inputs: whether a batch fits the source buffer and the batches before it."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from cretta.buffer import BLOCK, SourceBuffer

FAR = 10.0
"""A batch is far outside if its root mean square is this many times the largest value known, or 1 if that is smaller.

Values within the known range have at most 1. Measured on corrupted images at severity 5, in [0, 1] or normalized, in
batches or alone: at most 1; normalized where [0, 1] is known: at most 2.1; times 255: at least 12. The floor, the
largest value of an image in [0, 1], keeps dark first images from making those after them look far outside.
"""
FIRST = 10
"""Without a buffer, the range is that of this many batches."""
ENOUGH = 8
"""With fewer images, [0, 1] and normalized values are not distinguished: images of low contrast may be either."""


class Scale(NamedTuple):
    """Mean, standard deviation and range of some inputs."""

    mean: float
    deviation: float
    low: float
    high: float

    @classmethod
    def of(cls, x: Tensor) -> Scale:
        """Return the scale of all values of ``x``."""
        x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        return cls(float(x.mean()), float(x.std(correction=0)), float(x.min()), float(x.max()))

    @property
    def kind(self) -> str:
        """Name the convention that the range points to; images resized by a cubic filter exceed it a little."""
        if self.high > 20:
            return "0 to 255" if self.high <= 320 and self.low >= -64 else "another scale"
        if self.low < -0.25:
            return "normalized" if self.low >= -20 else "another scale"
        if self.low >= 0 and 0 < self.high <= 1.25 / 255:
            return "0 to 1/255"
        return "0 to 1" if self.high <= 1.25 else "another scale"

    def __str__(self) -> str:
        return f"mean {self.mean:.3g}, deviation {self.deviation:.3g}, from {self.low:.3g} to {self.high:.3g}"

    def differs(self, other: Scale, count: int) -> bool:
        """Return whether ``count`` images of the scale ``other`` follow another convention, not only shifted."""
        decided = count >= ENOUGH or bool({"0 to 255", "0 to 1/255"} & {self.kind, other.kind})
        near = abs(other.mean - self.mean) <= self.deviation
        near &= self.deviation / 2 <= other.deviation <= 2 * self.deviation
        return self.kind != other.kind and decided and not near


class InputRange:
    """The range of the buffer that a method reads, or else of the first batches; warns of what does not fit, once."""

    def __init__(self, buffer: SourceBuffer | None) -> None:
        self.buffer = buffer
        self.largest: Tensor | None = None
        """The largest absolute value. It stays on the device: reading it would be a synchronization per batch."""
        self.batches = 0
        self._source: Scale | None = None
        self._compared = self._warned = False
        self._first: Tensor | None = None
        """The images so far, until there are enough to be compared with the buffer."""

    @property
    def reason(self) -> str:
        """Why a batch is not learned from."""
        return f"far outside the range of the {'first batches' if self.buffer is None else 'buffer'}"

    def limit(self, x: Tensor) -> Tensor | None:
        """Return the largest Euclidean norm of a batch of this shape that is not far outside; None if not known yet."""
        if self.buffer is not None and self._source is None:
            # Named augmentations leave the scale as it is.
            buffer = self.buffer if callable(self.buffer.augment) else self.buffer.with_augment("none")
            images = buffer.batch(0, min(BLOCK, len(buffer)), like=x)
            self._source, self.largest = Scale.of(images), images.abs().max()
        if self.largest is None:
            return None
        return FAR * math.sqrt(x.numel()) * self.largest.to(torch.promote_types(x.dtype, torch.float32)).clamp(min=1)

    def follow(self, x: Tensor) -> None:
        """Record a batch within the range; compare the first images with the buffer."""
        if self.buffer is None:
            if self.batches < FIRST and x.is_floating_point():
                largest = torch.linalg.vector_norm(x, math.inf)
                self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
                self.batches += 1
        elif not self._compared and self._source is not None:
            batch = Scale.of(x)
            if batch.deviation == 0:
                return  # a constant batch, such as black frames, has no scale: wait for the next
            if self._first is not None:
                x = torch.cat([self._first, x])
                batch = Scale.of(x)
            if differs := self._source.differs(batch, len(x)):
                self._warn(f"the buffer's images ({self._source}) and the batch ({batch}) differ in scale", batch)
            self._compared = differs or len(x) >= ENOUGH
            self._first = None if self._compared else x.clone()

    def warn_far(self, x: Tensor) -> None:
        """Warn of a batch far outside, the first time."""
        if not self._warned:
            batch = Scale.of(x)
            known = f"largest absolute value {float(self.largest):.3g}" if self.largest is not None else ""
            self._warn(
                f"a batch ({batch}) is {self.reason} ({known}); such batches are predicted, but not learned from", batch
            )
            self._warned = True

    def _warn(self, message: str, batch: Scale) -> None:
        if self._source is None:
            advice = (
                "Give all batches on the scale of the first ones"
                + (", x / 255 if these are in [0, 1]" if batch.kind == "0 to 255" else "")
                + "; if the first ones were not typical, call reset()."
            )
        else:
            advice = f"{_cause(self._source, batch)} Prepare both alike: they go through the same network."
        warnings.warn(f"{message}. {advice}", stacklevel=6)  # in the code that calls the adapter

    def snapshot(self) -> dict[str, Tensor]:
        """Return, as tensors, what cannot be read from the buffer again."""
        if self.buffer is not None or self.largest is None:
            return {}
        return {"largest": self.largest, "batches": torch.tensor(self.batches)}

    def restore(self, state: dict[str, Tensor], device: torch.device) -> None:
        """Restore what :meth:`snapshot` returned."""
        if self.buffer is None:
            largest = state.get("largest")
            self.largest = None if largest is None else largest.to(device)
            self.batches = int(state.get("batches", torch.tensor(0)))


def _cause(source: Scale, batch: Scale) -> str:
    kinds = {source.kind, batch.kind}
    for kind, cause in (
        (
            "0 to 255",
            "is on the scale 0 to 255, and the {other} is not: divide it by 255 (a buffer reads bytes as [0, 1])",
        ),
        ("0 to 1/255", "was divided by 255 twice, and the {other} was not"),
        ("normalized", "was normalized by mean and deviation outside the network, and the {other} was not"),
    ):
        if kind in kinds and len(kinds) > 1:
            one, other = ("batch", "buffer") if batch.kind == kind else ("buffer", "batch")
            return f"Likely, the {one} {cause.format(other=other)}."
    return "Likely, they were prepared in different ways."
