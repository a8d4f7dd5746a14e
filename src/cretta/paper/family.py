"""A dataset as the paper's items run it: how many of its images, with which network, and the runs on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cretta.bench import Buffer, Run
from cretta.bench.run import Scalar
from cretta.data.corruptions import CORRUPTIONS, SEVERITIES
from cretta.data.domains import Domain
from cretta.data.pacs import DOMAINS
from cretta.data.registry import Dataset, dataset
from cretta.methods import get

WORST = SEVERITIES[-1]
"""The severity of "Severity L5"."""
FEWER = " †"
"""Marks methods that a scale runs on fewer images than others."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A dataset, its network, and how much of it is run."""

    name: str
    data: str
    """The dataset, as the registry names it; {source} stands for the source domain of PACS."""
    model: str
    """What ``open_model`` takes; {models} and {source} stand for a folder and for the source domain."""
    network: str
    """The network in words."""
    heading: str = ""
    """Its title in tables, where it is not that of the dataset."""
    train: str = ""
    """The command that trains the network, where it is a file; {root} and {models} stand for folders."""
    fallback: str = ""
    """The dataset to use where ``data`` is not installed."""
    batch_size: int = 0
    """The paper's if 0."""
    images: int | None = None
    """Of each domain: the first, or every n-th where they are sorted by class; None for all."""
    fewer: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The same by method, for those that have fewer."""
    seeds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How many by method, where these are not the scale's."""
    mild: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Images by method at severities below 5, with the scale's seeds; others then run at severity 5 only."""
    size: int | None = None
    corruptions: tuple[str, ...] = CORRUPTIONS
    """At severity 5 in the main tables."""
    some: tuple[str, ...] = CORRUPTIONS
    """For averages over severities, and for streams."""
    ablations: tuple[str, ...] = ()
    """For ablations; ``some`` if empty."""
    severities: tuple[int, ...] = SEVERITIES
    """Those that averages are over."""
    gradual: tuple[str, ...] = CORRUPTIONS
    """For gradual shift, which goes through all severities."""
    gradual_images: int | None = None
    continual_images: int | None = None
    """Of each visit to a domain, in streams through many of them without a reset."""
    continual_batch_size: int = 0
    """Of these streams; as others if 0."""
    options: Mapping[str, Mapping[str, Scalar]] = dataclasses.field(default_factory=dict)
    """Over the presets, by method."""
    remarks: tuple[str, ...] = ()
    """What the paper leaves open about it, and what was chosen."""
    baseline_remarks: tuple[str, ...] = ()
    """The same, where baselines that learn are shown."""

    def __post_init__(self) -> None:
        if not self.batch_size:
            object.__setattr__(self, "batch_size", self.record.batch_size)
        if not self.ablations:
            object.__setattr__(self, "ablations", self.some)

    @property
    def record(self) -> Dataset:
        """The dataset's record in the registry; all source domains of PACS have the same settings."""
        return dataset(self.data.replace("{source}", DOMAINS[0]))

    @property
    def title(self) -> str:
        """The shifted dataset as the paper calls it, or the heading."""
        return self.heading or self.record.title

    def run(
        self,
        *domains: Domain,
        method: str = "cretta",
        seed: int = 0,
        options: Mapping[str, Scalar] | None = None,
        buffer: Buffer | None = None,
        stream: str = "iid",
        delta: float | None = None,
        images: int | None = None,
        images_of: str = "",
        batch_size: int = 0,
    ) -> Run:
        """Return one run; equal arguments give equal runs, whichever item asks for them.

        It has as many images as the scale gives to the method, or to the method ``images_of``.
        """
        preset, settings = settings_of(method, self.record.preset)
        settings |= {**self.options.get(method, {}), **(options or {})}
        # A value that the preset has anyway is left out, so that the run equals the one without it.
        known = get(method).presets[preset] if preset else {}
        changed = {name: value for name, value in settings.items() if name not in known or known[name] != value}
        return Run(
            data=self.data,
            domains=domains,
            model=self.model,
            method=method,
            preset=preset,
            options=tuple(changed.items()),
            stream=stream,
            delta=delta,
            images=self.images_of(images_of or method, domains) if images is None else images,
            size=self.size,
            batch_size=batch_size or self.batch_size,
            buffer=buffer or Buffer(),
            seed=seed,
        )

    def images_of(self, method: str, domains: Sequence[Domain]) -> int | None:
        """Return how many images of each domain a method gets; None for all."""
        mild = self.mild.get(method) if is_mild(domains) else None
        return self.fewer.get(method, self.images) if mild is None else mild

    def members(self) -> tuple[Family, ...]:
        """Return the family for each of its source domains; itself, if it has none."""
        return tuple(self.resolve(source=domain) for domain in DOMAINS) if "{source}" in self.data else (self,)

    def resolve(self, **values: str) -> Family:
        """Return the family with these values for the names in braces."""
        texts: dict[str, Any] = {"data": self.data, "model": self.model, "train": self.train}
        for name, value in values.items():
            texts = {field: text.replace(f"{{{name}}}", value) for field, text in texts.items()}
        return dataclasses.replace(self, **texts)

    @property
    def average(self) -> str:
        """The severities that averages are over, in words."""
        if self.severities == SEVERITIES:
            return f"severities {SEVERITIES[0]}–{SEVERITIES[-1]}"
        return f"severit{'ies' if len(self.severities) > 1 else 'y'} {', '.join(map(str, self.severities))}"

    def batch(self, images: int | None) -> int:
        """Return the images in a batch of a stream with this many images per domain; None for all."""
        return min(self.batch_size, images or self.record.test_images)

    @property
    def steps(self) -> int:
        """Batches of a stream over one domain."""
        return -(-(self.images or self.record.test_images) // self.batch_size)


def is_mild(domains: Sequence[Domain]) -> bool:
    """Return whether all corruptions of a stream are below severity 5.

    >>> is_mild([Domain("fog", 4)]), is_mild([Domain("fog", 4), Domain("fog", 5)]), is_mild([Domain("clean")])
    (True, False, False)
    """
    return 0 < max((domain.severity or 0 for domain in domains), default=0) < WORST


def settings_of(method: str, preset: str) -> tuple[str | None, dict[str, Scalar]]:
    """Return the preset of a method for a dataset, and the options that the paper sets over it.

    ETA, EATA and SAR have the thresholds of their official code in the paper, whatever the number of classes: the
    preset "paper". Where a dataset has its own learning rate, they come on top of it.

    >>> settings_of("cretta", "cifar100"), settings_of("pl", "cifar100"), settings_of("eta", "cifar10")
    (('cifar100', {}), (None, {}), ('paper', {}))
    """
    presets = get(method).presets
    if preset in presets:
        return preset, dict(presets.get("paper", {}))
    return ("paper" if "paper" in presets else None), {}
