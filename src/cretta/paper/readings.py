"""From results to numbers: means over corruptions for each seed, and what is missing for them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from cretta.bench import BatchRow, Result, Run
from cretta.errors import OptionError
from cretta.metrics import mean_corruption_error
from cretta.report.content import Cell, Series, cell
from cretta.report.spread import jackknife

Groups = Sequence[Sequence[Run]]
"""For each seed, the runs that make its number together."""
Curve = Callable[[Sequence[BatchRow]], Sequence[float]]
"""A number for each batch of a stream."""


@dataclasses.dataclass(frozen=True)
class Readings:
    """Results by their runs, and why others cannot be had."""

    results: Mapping[Run, Result]
    lacking: Mapping[Run, str] = dataclasses.field(default_factory=dict)
    comparable: bool = True
    """Whether differences to the paper mean anything."""

    def cell(self, groups: Groups, value: Callable[[list[Result]], float], printed: float | None = None) -> Cell:
        """Mean and deviation over the seeds that are whole; where none is, why."""
        whole = [group for group in groups if group and all(run in self.results for run in group)]
        if not whole:
            return Cell(printed=printed, note=self.why(groups))
        try:
            values = {group[0].seed: value([self.results[run] for run in group]) for group in whole}
        except OptionError as wrong:  # such as a source model without an error to be relative to
            return Cell(printed=printed, note=str(wrong))
        note = "" if len(whole) == len(groups) else f"{len(whole)} of {len(groups)} seeds"
        blocks = jackknife([self.results[run] for run in whole[0]], value)
        return dataclasses.replace(cell(values, printed, note, blocks), comparable=self.comparable)

    def why(self, groups: Groups) -> str:
        """Why there is no number, in a few words."""
        runs = [run for group in groups for run in group]
        if not runs:
            return "left out at this scale"
        if any(run in self.lacking for run in runs):
            return "not available, see notes"
        done = sum(run in self.results for run in runs)
        return f"{done} of {len(runs)} runs" if done else "not run"

    def curve(self, label: str, runs: Sequence[Run], of: Curve) -> tuple[Series, ...]:
        """``of`` the runs' batches, averaged over the runs; nothing unless all are there."""
        if not runs or not all(run in self.results for run in runs):
            return ()
        curves = [of(self.results[run].rows) for run in runs]
        values = tuple(mean(values) for values in zip(*curves, strict=False))
        return (Series(label, tuple(map(float, range(len(values)))), values),)

    def series(self, label: str, points: Sequence[tuple[float | str, Cell]]) -> tuple[Series, ...]:
        """A series of the points that have a value; none, if none has."""
        found = [(x, each) for x, each in points if each.value is not None]
        if not found:
            return ()
        whole = all(each.deviation is not None for _, each in found)
        return (
            Series(
                label,
                tuple(x for x, _ in found),
                tuple(each.value for _, each in found if each.value is not None),
                tuple(each.deviation for _, each in found if each.deviation is not None) if whole else (),
            ),
        )


def mean(values: Sequence[float]) -> float:
    """The mean, whatever the order."""
    return math.fsum(values) / len(values)


def accuracy(results: Sequence[Result]) -> float:
    """In per cent, the mean over runs."""
    return 100 * mean([result.of().accuracy for result in results])


def calibration_error(results: Sequence[Result]) -> float:
    """ECE of each stream in per cent, the mean over runs."""
    return 100 * mean([result.of().calibration_error for result in results])


def corruption_error(results: Sequence[Result]) -> float:
    """MCE in per cent; the second half of the results are the source model's, of the same domains."""
    half = len(results) // 2
    return mean_corruption_error(_errors(results[:half]), _errors(results[half:]))


def confidences(rows: Sequence[BatchRow]) -> list[float]:
    """Of each batch, in per cent."""
    return [100 * row.scores.bins.mean_confidence for row in rows]


def calibration_errors(rows: Sequence[BatchRow]) -> list[float]:
    """ECE of each batch alone, in per cent."""
    return [100 * row.scores.calibration_error for row in rows]


def energies(rows: Sequence[BatchRow]) -> list[float]:
    """Mean energy of each batch's target images."""
    return [row.energy for row in rows]


def running_accuracies(rows: Sequence[BatchRow]) -> list[float]:
    """Of the stream so far after each batch, in per cent."""
    return [100 * scores.accuracy for scores in accumulate(row.scores for row in rows)]


def running_calibration_errors(rows: Sequence[BatchRow]) -> list[float]:
    """ECE of the stream so far after each batch, in per cent."""
    return [100 * scores.calibration_error for scores in accumulate(row.scores for row in rows)]


def _errors(results: Sequence[Result]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for result in results:
        corruption, _, severity = str(result.run["domains"][0]).partition("/")
        found.setdefault(corruption, {})[int(severity)] = result.of().error
    return found
