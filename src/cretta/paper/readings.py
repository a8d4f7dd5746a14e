"""From results to numbers: means over corruptions for each seed, and why a number is missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from cretta.bench import Buffer, Result, Run
from cretta.bench.run import Scalar
from cretta.data.domains import Domain
from cretta.errors import OptionError
from cretta.paper.family import Family, is_mild
from cretta.paper.scale import Scale
from cretta.paper.values import Curve, Value
from cretta.report.content import Cell, Series, cell
from cretta.report.spread import blocks_of

Groups = Sequence[Sequence[Run]]
"""For each seed, the runs whose results make its number together."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """A method, or CreTTA in another setting."""

    label: str
    method: str = "cretta"
    options: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)
    buffer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of a Buffer, or the family of this scale whose images it has; by default the paper's buffer."""
    group: str = ""
    """Heading of its row in a table."""


class Readings:
    """Results at a scale, by run; every run that is asked for is recorded, so that drawing an item also plans it."""

    def __init__(
        self, scale: Scale, results: Mapping[Run, Result] | None = None, missing: Mapping[Run, str] | None = None
    ) -> None:
        self.scale = scale
        self.results = results or {}
        self.missing = missing or {}
        """Why runs could not be done."""
        self._requests: dict[str, dict[Run, None]] = {}

    def requests(self) -> dict[str, list[Run]]:
        """Return the runs asked for since the last call, by family."""
        requests = {family: list(runs) for family, runs in self._requests.items()}
        self._requests.clear()
        return requests

    def groups(
        self, family: Family, variant: Variant, streams: Sequence[Domain | tuple[Domain, ...]], **settings: Any
    ) -> list[list[Run]]:
        """Return for each seed the runs of a variant over these streams.

        A stream is a domain, or a tuple of several. ``settings`` are further ones of :meth:`Family.run`. No groups
        where the scale does not run the variant on all streams.
        """
        settings |= {"method": variant.method, "options": variant.options}
        buffer = dict(variant.buffer)
        if "family" in buffer:
            buffer["data"] = self.scale.family(buffer.pop("family")).data
        settings["buffer"] = Buffer(**buffer)
        domains = [(stream,) if isinstance(stream, Domain) else stream for stream in streams]
        seeds = self.scale.seeds_of(variant.method, family, mild=any(map(is_mild, domains)))
        groups = [[family.run(*stream, seed=seed, **settings) for stream in domains] for seed in seeds]
        self._requests.setdefault(family.name, {}).update(dict.fromkeys(run for group in groups for run in group))
        return groups

    def cell(self, groups: Groups, value: Value, printed: float | None = None, *, by_run: bool = False) -> Cell:
        """Return mean and deviation over the seeds whose runs are all done; where there is none, why.

        ``by_run``: the spread is that over runs rather than over blocks of batches, for a number of single batches.
        """
        complete = self._complete(groups)
        if not complete:
            return Cell(printed=printed, note=self._reason(groups))
        try:
            values = {group[0].seed: value([self.results[run] for run in group]) for group in complete}
        except OptionError as error:  # such as a source model without an error to be relative to
            return Cell(printed=printed, note=str(error))
        note = "" if len(complete) == len(groups) else f"{len(complete)} of {len(groups)} seeds"
        try:
            first = [self.results[run] for run in complete[0]]
            blocks = tuple(value(block) for block in ([[r] for r in first] if by_run else blocks_of(first)))
        except OptionError:  # likewise, in a block of batches
            blocks = ()
        return dataclasses.replace(cell(values, printed, note, blocks), comparable=self.scale.comparable)

    def _complete(self, groups: Groups) -> list[Sequence[Run]]:
        return [group for group in groups if group and all(run in self.results for run in group)]

    def _reason(self, groups: Groups) -> str:
        runs = dict.fromkeys(run for group in groups for run in group)
        if any(run in self.missing for run in runs):
            return "not available, see notes"
        done = sum(run in self.results for run in runs)
        return f"{done} of {len(runs)} runs" if done else "not run"

    def curve(self, label: str, groups: Groups, curve: Curve) -> tuple[Series, ...]:
        """Return the curve over the batches, averaged over the seeds whose runs are all done; no series without one."""
        curves = [curve(self.results[run].rows) for group in self._complete(groups) for run in group]
        if not curves:
            return ()
        values = tuple(fmean(values) for values in zip(*curves, strict=False))
        return (Series(label, tuple(map(float, range(len(values)))), values),)

    def series(self, label: str, points: Sequence[tuple[float | str, Groups]], value: Value) -> tuple[Series, ...]:
        """Return a series of the points that the scale runs; no series before all have a value, nor of one point."""
        cells = [(x, self.cell(groups, value)) for x, groups in points if groups]
        measured = [(x, cell.value, cell.deviation) for x, cell in cells if cell.value is not None]
        if len(measured) < max(2, len(cells)):
            return ()
        deviations = tuple(deviation for _, _, deviation in measured if deviation is not None)
        return (
            Series(
                label,
                tuple(x for x, _, _ in measured),
                tuple(y for _, y, _ in measured),
                deviations if len(deviations) == len(measured) else (),
            ),
        )


def with_base(groups: Groups, base: Groups) -> list[list[Run]]:
    """Return each group followed by the base's group of its seed; a base with one seed follows every group."""
    return [[*group, *base[min(index, len(base) - 1)]] for index, group in enumerate(groups)]
