"""A run: which method meets which data, said completely. Equal descriptions are equal runs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from cretta import streams
from cretta.buffer import SELECT
from cretta.errors import OptionError
from cretta.options import unknown

Scalar = str | int | float | bool | None | tuple[str, ...]

STREAMS = ("iid", "ordered", "dirichlet", "continual", "gradual", "mixed")
VERSION = 3
"""Of what a run means: when results would change for the same description, this number does too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffer:
    """Which source images a method is given."""

    data: str = ""
    """Another benchmark's images; by default the run's own."""
    split: str = "train"
    """Of its training images, or of its clean test images."""
    size: float = 0.1
    """A share below 1, or a count."""
    select: str = "random"

    def __post_init__(self) -> None:
        if self.split not in ("train", "test"):
            raise unknown("split of a buffer", self.split, ("train", "test"))
        if self.select not in SELECT:
            raise unknown("selection of a buffer", self.select, SELECT)
        if isinstance(self.size, bool) or not self.size > 0 or (self.size >= 1 and self.size != int(self.size)):
            raise OptionError(f"a buffer of {self.size!r} images: give a share below 1, or a whole number of images.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A stream of target images, a model, a method with its options, and a seed."""

    data: str
    """A benchmark, as ``cretta.bench.benchmarks`` names them."""
    domains: tuple[str, ...]
    """What the stream passes through, such as ("fog/5",); "clean" is the target's own test set."""
    model: str
    method: str = "cretta"
    preset: str | None = None
    options: tuple[tuple[str, Scalar], ...] = ()
    """Over the preset's, by name."""
    stream: str = "iid"
    delta: float | None = None
    """δ of the Dirichlet stream."""
    images: int | None = None
    """So many of each domain: the first, or every n-th where they are sorted by class; None is all."""
    size: int | None = None
    """Side to scale images to that come as files; None is the benchmark's own."""
    batch_size: int = 200
    buffer: Buffer = Buffer()
    clean_after: int = 0
    """So many clean images are predicted after the stream, without adapting: what was forgotten shows there."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.domains, tuple) or not self.domains:
            raise OptionError(f"domains={self.domains!r}: give a tuple of at least one, such as ('fog/5',).")
        if self.stream not in STREAMS:
            raise unknown("stream", self.stream, STREAMS)
        if self.delta is None and self.stream == "dirichlet":
            raise OptionError("stream='dirichlet' needs its δ; give it as well, such as delta=0.1.")
        if self.delta is not None and self.stream != "dirichlet":
            raise OptionError(
                f"stream={self.stream!r} with delta={self.delta}: δ is for the stream 'dirichlet'; leave it out."
            )
        if self.delta is not None and (isinstance(self.delta, bool) or not 0 < self.delta < math.inf):
            raise OptionError(f"delta={self.delta!r}: must be a number above 0; the paper uses 10, 1, 0.1 and 0.01.")
        if self.stream not in ("continual", "gradual", "mixed") and len(self.domains) > 1:
            raise OptionError(
                f"stream={self.stream!r} with {len(self.domains)} domains: it takes one; continual, gradual and mixed "
                "take several."
            )
        whole("batch_size", self.batch_size, 1)
        whole("clean_after", self.clean_after, 0)
        whole("seed", self.seed, 0)
        if self.images is not None:
            whole("images", self.images, 1)
        if self.size is not None:
            whole("size", self.size, 1)
        object.__setattr__(self, "options", tuple(sorted((name, _frozen(value)) for name, value in self.options)))

    def with_options(self, **options: Scalar) -> Run:
        """The same run with these options over its own."""
        return dataclasses.replace(self, options=tuple({**dict(self.options), **options}.items()))

    def describe(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        described: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        described["options"] = dict(described["options"])
        return described

    @classmethod
    def from_description(cls, described: dict[str, Any]) -> Run:
        """The run that :meth:`describe` told of."""
        given = dict(described)
        options = tuple((name, _frozen(value)) for name, value in given.pop("options").items())
        buffer = Buffer(**given.pop("buffer"))
        return cls(**{**given, "domains": tuple(given["domains"])}, options=options, buffer=buffer)

    def key(self, materials: dict[str, str]) -> str:
        """What the run is filed under: itself and ``materials``, fingerprints of what its names stand for."""
        described = self.describe()
        if Path(self.model).is_file():  # its content counts, which is among the materials, not where it lies
            described["model"] = "a file"
        told = json.dumps({"version": VERSION, "run": described, "materials": materials}, sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:24]

    def schedule(self, counts: list[int], labels: Any) -> streams.Stream:
        """The stream's batches; their domain's name is its place in ``domains``."""
        if self.stream == "ordered":
            return streams.ordered(range(counts[0]), self.batch_size, domain="0")
        if self.stream == "iid":
            return streams.iid(counts[0], self.batch_size, seed=self.seed, domain="0")
        if self.stream == "dirichlet":
            assert self.delta is not None
            return streams.dirichlet(labels, self.batch_size, self.delta, seed=self.seed, domain="0")
        named = {str(place): count for place, count in enumerate(counts)}
        make = streams.mixed if self.stream == "mixed" else streams.continual
        return make(named, self.batch_size, seed=self.seed)

    def adapts_to(self, place: int) -> bool:
        """Whether the model learns from the domain at this place; a gradual stream ends with the source, frozen."""
        return self.stream != "gradual" or place < len(self.domains) - 1


def whole(name: str, value: object, least: int) -> None:
    """Raises unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}={value!r}: must be a whole number, at least {least}.")


def _frozen(value: Any) -> Scalar:
    """Lists, as JSON gives them, are tuples here; everything else stays."""
    frozen: Scalar = tuple(value) if isinstance(value, list) else value
    return frozen
