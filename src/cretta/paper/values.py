"""Numbers of results: one from the results of several runs, or one for each batch of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean

from cretta.bench import BatchRow, Result
from cretta.metrics import mean_corruption_error

Value = Callable[[Sequence[Result]], float]
"""A number from the results of several runs."""
Curve = Callable[[Sequence[BatchRow]], Sequence[float]]
"""A number for each batch of a stream."""


def accuracy(results: Sequence[Result]) -> float:
    """Return the mean over runs, in percent."""
    return 100 * fmean([result.scores.accuracy for result in results])


def calibration_error(results: Sequence[Result]) -> float:
    """Return the mean over runs of each stream's ECE, in percent."""
    return 100 * fmean([result.scores.calibration_error for result in results])


def corruption_error(results: Sequence[Result]) -> float:
    """Return mCE in percent; the second half of the results are the source model's, of the same domains."""
    errors: list[dict[str, dict[int, float]]] = [{}, {}]
    for index, result in enumerate(results):
        corruption, severity = result.run.domains[0].corruption
        errors[2 * index // len(results)].setdefault(corruption, {})[severity] = 1 - result.scores.accuracy
    return mean_corruption_error(*errors)


def above_base(value: Value) -> Value:
    """Return the number of a variant less that of its base, whose results are the second half."""
    return lambda results: value(results[: len(results) // 2]) - value(results[len(results) // 2 :])


def confidences(rows: Sequence[BatchRow]) -> list[float]:
    """Return the mean confidence of each batch, in percent."""
    return [100 * row.scores.bins.mean_confidence for row in rows]


def calibration_errors(rows: Sequence[BatchRow]) -> list[float]:
    """Return the ECE of each batch by itself, in percent."""
    return [100 * row.scores.calibration_error for row in rows]


def energies(rows: Sequence[BatchRow]) -> list[float]:
    """Return the mean energy of the target images of each batch."""
    return [row.energy for row in rows]


def running_accuracies(rows: Sequence[BatchRow]) -> list[float]:
    """Return the accuracy of the stream up to each batch, in percent."""
    return [100 * scores.accuracy for scores in accumulate(row.scores for row in rows)]


def running_calibration_errors(rows: Sequence[BatchRow]) -> list[float]:
    """Return the ECE of the stream up to each batch, in percent."""
    return [100 * scores.calibration_error for scores in accumulate(row.scores for row in rows)]
