"""A benchmark as the paper's items run it: which images, how many, which network, and the runs made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from cretta.bench import Buffer, Run
from cretta.bench.run import Scalar
from cretta.data.corruptions import CORRUPTIONS, SEVERITIES
from cretta.data.pacs import DOMAINS as PACS
from cretta.errors import OptionError
from cretta.methods import get

METHODS = ("source", "bn_adapt", "pl", "shot", "tent", "eta", "eata", "sar", "aea", "tea", "cretta")
"""Those of the paper's tables, in their order."""
WORST = 5
"""The severity of "Severity L5"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A benchmark, its network, and how much of it is run."""

    name: str
    title: str
    """As the paper calls it."""
    data: str
    """The benchmark, as ``cretta.bench.benchmarks`` names it."""
    model: str
    """What ``open_model`` takes; {folder}, {root} and {source} stand for places that are known later."""
    weights: str
    """The network in words."""
    preset: str
    """The methods' presets for it."""
    make: str = ""
    """What to type to get the network, where it is a file; may hold the same places as ``model``."""
    otherwise: str = ""
    """The benchmark to take where the data are not there."""
    batch_size: int = 200
    images: int | None = None
    """So many of each domain: the first, or every n-th where they are sorted by class; None is all."""
    of: int = 10_000
    """How many there are."""
    size: int | None = None
    corruptions: tuple[str, ...] = CORRUPTIONS
    """At severity 5 in the main tables."""
    some: tuple[str, ...] = CORRUPTIONS
    """For averages over severities, for streams and for ablations."""
    severities: tuple[int, ...] = SEVERITIES
    """Those that averages are over."""
    gradual: tuple[str, ...] = CORRUPTIONS
    """For gradual shift, which passes all severities."""
    gradual_images: int | None = None
    methods: tuple[str, ...] = METHODS
    options: tuple[tuple[str, tuple[tuple[str, Scalar], ...]], ...] = ()
    """Over the presets, by method."""
    remarks: tuple[str, ...] = ()
    """What the paper leaves open about it, and what was chosen."""
    baseline_remarks: tuple[str, ...] = ()
    """The same, where baselines that learn are shown."""

    def run(
        self,
        *domains: str,
        method: str = "cretta",
        seed: int = 0,
        options: Mapping[str, Scalar] | None = None,
        buffer: Buffer | None = None,
        stream: str = "iid",
        delta: float | None = None,
        images: int | None = None,
    ) -> Run:
        """One run; equal arguments give equal runs, whichever item asks."""
        preset, given = settings(method, self.preset)
        # A value that the preset has anyway is left out, so that the run is the one without it.
        wanted = {**given, **dict(dict(self.options).get(method, ())), **(options or {})}
        known = get(method).presets[preset] if preset else {}
        told = {name: value for name, value in wanted.items() if name not in known or known[name] != value}
        return Run(
            data=self.data,
            domains=domains,
            model=self.model,
            method=method,
            preset=preset,
            options=tuple(told.items()),
            stream=stream,
            delta=delta,
            images=self.images if images is None else images,
            size=self.size,
            batch_size=self.batch_size,
            buffer=buffer or Buffer(),
            seed=seed,
        )

    def source(self, domain: str) -> Family:
        """PACS with that domain as its source."""
        if self.name != "pacs":
            raise OptionError(f"{self.name} has no source domains; only pacs has.")
        if domain not in PACS:
            raise OptionError(f"domain={domain!r}: give one of {', '.join(PACS)}.")
        return dataclasses.replace(
            self,
            data=f"pacs:{domain}",
            model=_filled(self.model, source=domain),
            make=_filled(self.make, source=domain),
        )

    def placed(self, **places: str) -> Family:
        """With these places filled in."""
        return dataclasses.replace(self, model=_filled(self.model, **places), make=_filled(self.make, **places))

    @property
    def average(self) -> str:
        """The severities that averages are over, in words."""
        if self.severities == SEVERITIES:
            return f"severities {SEVERITIES[0]}–{SEVERITIES[-1]}"
        return f"severit{'ies' if len(self.severities) > 1 else 'y'} {', '.join(map(str, self.severities))}"

    def batch(self, images: int | None) -> int:
        """Images in a batch of a stream over so many of each domain; None is all."""
        return min(self.batch_size, images or self.of)

    @property
    def steps(self) -> int:
        """Batches of a stream over one domain."""
        return -(-(self.images or self.of) // self.batch_size)


def settings(method: str, preset: str) -> tuple[str | None, dict[str, Scalar]]:
    """The preset of a method for a family, and what the paper sets beside it.

    ETA, EATA and SAR have the thresholds of their official code in the paper, whatever the number of classes: the
    preset "paper". Where a family has its own learning rate, they come on top of it.

    >>> settings("cretta", "cifar100"), settings("pl", "cifar100"), settings("eta", "cifar10")
    (('cifar100', {}), (None, {}), ('paper', {}))
    """
    presets = get(method).presets
    if preset in presets:
        return preset, dict(presets.get("paper", {}))
    return ("paper" if "paper" in presets else None), {}


def _filled(text: str, **places: str) -> str:
    for name, place in places.items():
        text = text.replace(f"{{{name}}}", place)
    return text
