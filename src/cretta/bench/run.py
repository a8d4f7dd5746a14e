"""A run: a method on a stream of images, described completely. Equal descriptions are equal runs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from cretta import streams
from cretta.buffer import SELECT
from cretta.data.domains import CLEAN, Domain
from cretta.errors import OptionError
from cretta.options import check_integer, known

Scalar = str | int | float | bool | None | tuple[str, ...]

STREAMS = ("iid", "ordered", "dirichlet", "continual", "gradual", "mixed")
VERSION = 4
"""Version of the meaning of a description: raised when results would change for the same description."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffer:
    """Which source images a method gets."""

    data: str = ""
    """The benchmark whose images are used; by default the run's own."""
    split: str = "train"
    """"train" for its training images, "test" for its clean test images."""
    size: float = 0.1
    """A share below 1, or a number of images."""
    select: str = "random"

    def __post_init__(self) -> None:
        known("split of the buffer", self.split, ("train", "test"))
        known("way to select source images", self.select, SELECT)
        share = isinstance(self.size, float)
        if isinstance(self.size, bool) or not (0 < self.size < 1 if share else self.size >= 1):
            raise OptionError(
                f"a buffer of {self.size!r} images: give a share below 1, such as 0.1, or an integer number of images; "
                "for all of them, their number."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A stream of target images, a model, a method with its options, and a seed."""

    data: str
    """A benchmark, as ``cretta.bench.benchmarks`` names them."""
    domains: tuple[Domain, ...]
    """The domains of the stream in order; "clean" is the test set without a shift."""
    model: str
    method: str = "cretta"
    preset: str | None = None
    options: tuple[tuple[str, Scalar], ...] = ()
    """By name; they override those of the preset."""
    stream: str = "iid"
    delta: float | None = None
    """δ of the Dirichlet stream."""
    images: int | None = None
    """Images per domain: the first ones, or every n-th where they are sorted by class; None is all."""
    size: int | None = None
    """Side to which images that are files are scaled; None is the benchmark's own."""
    batch_size: int = 200
    buffer: Buffer = Buffer()
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.domains, tuple) or not self.domains:
            raise OptionError(f"domains={self.domains!r}: give a tuple of at least one, such as (Domain('fog', 5),).")
        known("stream", self.stream, STREAMS)
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
        for name, at_least in (("batch_size", 1), ("seed", 0), ("images", 1), ("size", 1)):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), at_least=at_least)
        object.__setattr__(self, "options", tuple(sorted((name, _frozen(value)) for name, value in self.options)))

    def with_options(self, **options: Scalar) -> Run:
        """Return the same run with these options over its own."""
        return dataclasses.replace(self, options=tuple({**dict(self.options), **options}.items()))

    def without_stream(self) -> Run:
        """Return what the adapter and the cost of a step depend on: the run on an arbitrary stream."""
        return dataclasses.replace(self, domains=(Domain(CLEAN),), stream="iid", delta=None)

    def describe(self) -> dict[str, Any]:
        """Return the description as JSON has it."""
        described: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {**described, "options": dict(described["options"]), "domains": list(map(str, self.domains))}

    @classmethod
    def from_description(cls, described: dict[str, Any]) -> Run:
        """Return the run that :meth:`describe` described."""
        fields = dict(described)
        options = tuple(fields.pop("options").items())
        buffer = Buffer(**fields.pop("buffer"))
        return cls(**{**fields, "domains": Domain.parse_all(*fields["domains"])}, options=options, buffer=buffer)

    def key(self, input_fingerprints: dict[str, str]) -> str:
        """Return the name of the result in a store, from the description and the fingerprints of the inputs."""
        described = self.describe()
        if Path(self.model).is_file():  # its content counts, which is among the fingerprints, not its path
            described["model"] = "a file"
        content = json.dumps({"version": VERSION, "run": described, "materials": input_fingerprints}, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:24]

    def schedule(self, counts: list[int], labels: Any) -> streams.Stream:
        """Return the batches of the stream; ``counts`` are the images of the domains, ``labels`` those of the first."""
        if self.stream == "ordered":
            return streams.ordered(range(counts[0]), self.batch_size)
        if self.stream == "iid":
            return streams.iid(counts[0], self.batch_size, seed=self.seed)
        if self.stream == "dirichlet":
            assert self.delta is not None
            return streams.dirichlet(labels, self.batch_size, self.delta, seed=self.seed)
        make = {"continual": streams.continual, "gradual": streams.gradual, "mixed": streams.mixed}[self.stream]
        return make(counts, self.batch_size, seed=self.seed)

    def label(self, stage: int) -> str:
        """Return the name that rows have for a domain, by its position; "clean again" ends a gradual stream."""
        last = self.stream == "gradual" and stage == len(self.domains) - 1
        return f"{self.domains[stage]} again" if last else str(self.domains[stage])


def _frozen(value: Any) -> Scalar:
    """Return a list, as JSON has it, as a tuple; everything else as it is."""
    frozen: Scalar = tuple(value) if isinstance(value, list) else value
    return frozen
