from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from cretta.errors import BatchError, OptionError
from cretta.metrics import Bins, calibration_error


def two(confidences: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    """Class 0 with the given confidences, class 1 with the rest."""
    first = torch.tensor(confidences, dtype=dtype)
    return torch.stack([first, 1 - first], 1)


def labels_of(right: list[bool]) -> Tensor:
    return torch.tensor([0 if r else 1 for r in right])


def random_predictions(count: int, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=generator)
    return logits.softmax(-1), torch.randint(0, classes, (count,), generator=generator)


def slow(probabilities: Tensor, labels: Tensor, bins: int) -> float:
    """The definition, sample by sample."""
    members: dict[int, list[tuple[float, bool]]] = {}
    for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        # Closed on the right: (0.7, 0.8] is bin 8 of 10.
        members.setdefault(max(1, math.ceil(confidence * bins - 1e-12)), []).append(
            (confidence, row.index(confidence) == label)
        )
    total = 0.0
    for pairs in members.values():
        mean = sum(c for c, _ in pairs) / len(pairs)
        right = sum(r for _, r in pairs) / len(pairs)
        total += len(pairs) / len(labels) * abs(mean - right)
    return total


def test_one_bin_by_hand() -> None:
    # Four samples at 0.75, three right: |0.75 - 3/4| = 0.
    assert calibration_error(two([0.75] * 4), labels_of([True, True, True, False])) == pytest.approx(0, abs=1e-12)
    # None right: |0.75 - 0| = 0.75. All right: |0.75 - 1| = 0.25.
    assert calibration_error(two([0.75] * 4), labels_of([False] * 4)) == pytest.approx(0.75)
    assert calibration_error(two([0.75] * 4), labels_of([True] * 4)) == pytest.approx(0.25)


def test_three_bins_by_hand() -> None:
    confidences = [0.55, 0.57, 0.92, 0.94, 0.96, 0.71]
    right = [True, False, True, True, False, True]
    # (0.5, 0.6]: mean (0.55 + 0.57)/2 = 0.56, accuracy 1/2, gap 0.06, share 2/6  -> 0.02
    # (0.9, 1.0]: mean (0.92 + 0.94 + 0.96)/3 = 0.94, accuracy 2/3, gap 0.27333, share 3/6 -> 0.136667
    # (0.7, 0.8]: mean 0.71, accuracy 1, gap 0.29, share 1/6 -> 0.048333
    expected = 0.02 + 0.13666666666666666 + 0.04833333333333334
    assert calibration_error(two(confidences), labels_of(right)) == pytest.approx(expected, abs=1e-12)
    # One bin: mean (0.55 + 0.57 + 0.92 + 0.94 + 0.96 + 0.71)/6 = 4.65/6 = 0.775, accuracy 4/6: 0.108333
    assert calibration_error(two(confidences), labels_of(right), bins=1) == pytest.approx(0.775 - 4 / 6, abs=1e-12)
    # Two bins: all lie in (0.5, 1], so the same.
    assert calibration_error(two(confidences), labels_of(right), bins=2) == pytest.approx(0.775 - 4 / 6, abs=1e-12)


def test_errors_of_one_bin_cancel_and_those_of_two_do_not() -> None:
    # In (0.6, 0.7]: 0.62 right, 0.68 wrong: |1.30 - 1| / 2 = 0.15.
    assert calibration_error(two([0.62, 0.68]), labels_of([True, False])) == pytest.approx(0.15)
    # In two bins: (|0.62 - 1| + |0.72 - 0|) / 2 = (0.38 + 0.72) / 2 = 0.55.
    assert calibration_error(two([0.62, 0.72]), labels_of([True, False])) == pytest.approx(0.55)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("edge", [0.6, 0.7, 0.8, 0.9])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(edge: float, dtype: torch.dtype) -> None:
    # With its neighbor below in one bin: |edge + (edge - 0.05) - 1| / 2.
    together = abs(2 * edge - 0.05 - 1) / 2
    value = calibration_error(two([edge, edge - 0.05], dtype), labels_of([True, False]))
    assert value == pytest.approx(together, abs=1e-6)
    # With its neighbor above in two: (|edge - 1| + |edge + 0.05 - 0|) / 2.
    apart = (1 - edge + edge + 0.05) / 2
    value = calibration_error(two([edge, edge + 0.05], dtype), labels_of([True, False]))
    assert value == pytest.approx(apart, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("edge", [0.2, 0.3, 0.4])
def test_low_edges(edge: float, dtype: torch.dtype) -> None:
    def row(confidence: float) -> list[float]:
        rest = 1 - confidence
        return [confidence, *[rest / 9] * 9]

    probabilities = torch.tensor([row(edge), row(edge - 0.05)], dtype=dtype)
    together = abs(2 * edge - 0.05 - 1) / 2
    assert calibration_error(probabilities, torch.tensor([0, 1])) == pytest.approx(together, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_full_confidence_is_in_the_last_bin(dtype: torch.dtype) -> None:
    # With 0.95 in (0.9, 1]: |1 + 0.95 - 1| / 2 = 0.475.
    value = calibration_error(two([1.0, 0.95], dtype), labels_of([True, False]))
    assert value == pytest.approx(0.475, abs=2e-3)
    assert calibration_error(two([1.0, 1.0], dtype), labels_of([True, True])) == 0.0
    assert calibration_error(two([1.0, 1.0], dtype), labels_of([False, False])) == 1.0


def test_rounding_above_one_stays_in_the_last_bin() -> None:
    probabilities = torch.tensor([[1.0000001, 0.0], [0.95, 0.05]])
    assert calibration_error(probabilities, torch.tensor([0, 1])) == pytest.approx(0.475, abs=1e-6)


@pytest.mark.parametrize("bins", [1, 2, 3, 10, 15, 100])
@pytest.mark.parametrize("classes", [2, 5, 100])
def test_equals_the_definition(bins: int, classes: int) -> None:
    probabilities, labels = random_predictions(300, classes, seed=bins)
    assert calibration_error(probabilities, labels, bins) == pytest.approx(slow(probabilities, labels, bins), abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [2, 10])
def test_agrees_with_torchmetrics(seed: int, classes: int) -> None:
    probabilities, labels = random_predictions(2000, classes, seed)
    theirs = multiclass_calibration_error(probabilities, labels, num_classes=classes, n_bins=10, norm="l1")
    assert calibration_error(probabilities, labels) == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_streaming_equals_at_once(seed: int) -> None:
    probabilities, labels = random_predictions(500, seed=seed)
    cuts = torch.randint(1, 60, (60,), generator=torch.Generator().manual_seed(seed)).cumsum(0)
    indices = cuts[cuts < 500].tolist()
    batches = list(zip(probabilities.tensor_split(indices), labels.tensor_split(indices), strict=True))
    running = Bins.empty()
    for part, part_labels in batches:
        running += Bins.from_probabilities(part, part_labels)
    assert running.calibration_error == pytest.approx(calibration_error(probabilities, labels), abs=1e-12)
    # The error of a stream is not the mean of the errors of its batches.
    mean = sum(calibration_error(p, y) * len(y) for p, y in batches) / 500
    assert running.calibration_error < mean - 1e-3


def test_values_can_be_read_at_any_time() -> None:
    running = Bins.empty()
    assert all(math.isnan(value) for value in (running.calibration_error, running.accuracy, running.mean_confidence))
    running += Bins.from_probabilities(two([0.75] * 2), labels_of([True, True]))
    assert (running.calibration_error, running.accuracy) == pytest.approx((0.25, 1))
    running += Bins.from_probabilities(two([0.75] * 2), labels_of([False, True]))
    # Three of four are correct at 0.75.
    assert (running.calibration_error, running.accuracy) == pytest.approx((0, 0.75), abs=1e-12)
    assert running.mean_confidence == pytest.approx(0.75)
    assert type(running.calibration_error) is float


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_taken(dtype: torch.dtype) -> None:
    probabilities, labels = random_predictions(200)
    value = calibration_error(probabilities.to(dtype), labels)
    assert value == pytest.approx(calibration_error(probabilities, labels), abs=0.02)


@pytest.mark.parametrize("bins", [0, -1, 1.5, 10.0, True, None, "10"])
def test_wrong_numbers_of_bins_are_refused(bins: Any) -> None:
    for build in (
        lambda: Bins.empty(bins),
        lambda: Bins.from_confidence(torch.tensor([0.5]), torch.tensor([True]), bins),
        lambda: calibration_error(two([0.7]), labels_of([True]), bins),
    ):
        with pytest.raises(OptionError, match=r"bins=.*: expected an integer, at least 1"):
            build()


GOOD = two([0.75, 0.6])
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "at least one row"),
        (GOOD[0], LABELS, "expected scores"),
        (GOOD[None], LABELS, "expected scores"),
        (GOOD, torch.tensor([0]), "expected scores"),
        (GOOD, LABELS[:, None], "expected scores"),
        (GOOD, torch.tensor([0, 2]), "integers from 0 to 1"),
        (GOOD, torch.tensor([-1, 0]), "integers from 0 to 1"),
        (GOOD, LABELS.float(), "integers"),
        (torch.tensor([[2.0, -1.0], [0.5, 0.5]]), LABELS, "softmax"),
        (torch.tensor([[4.0, 3.0], [1.0, 2.0]]), LABELS, "softmax"),
        (GOOD.log(), LABELS, "softmax"),
        (GOOD * 100, LABELS, "softmax"),
        (GOOD * 0.99, LABELS, "softmax"),
        (torch.tensor([[float("nan")] * 2, [0.5, 0.5]]), LABELS, "softmax"),
        (torch.tensor([[float("inf"), 0.0], [0.5, 0.5]]), LABELS, "softmax"),
    ],
    ids=[
        *("empty", "vector", "cube", "fewer labels", "column", "too high", "negative", "floats"),
        *("logits that sum to 1", "logits", "log-probabilities", "per cent", "short", "nan", "infinite"),
    ],
)
def test_wrong_batches_are_refused(probabilities: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        calibration_error(probabilities, labels)


def test_many_classes_in_half_precision_still_sum_to_one() -> None:
    probabilities, labels = random_predictions(50, classes=1000)
    calibration_error(probabilities.half(), labels)


def test_bins_by_hand() -> None:
    bins = Bins.from_probabilities(two([0.55, 0.57, 0.92, 0.6]), labels_of([True, False, True, False]))
    assert bins.count == (0, 0, 0, 0, 0, 3, 0, 0, 0, 1)
    assert bins.correct == (0, 0, 0, 0, 0, 1, 0, 0, 0, 1)
    assert bins.confidence == pytest.approx([0, 0, 0, 0, 0, 0.55 + 0.57 + 0.6, 0, 0, 0, 0.92])
    # (|1.72 - 1| + |0.92 - 1|) / 4.
    assert bins.calibration_error == pytest.approx(0.2)


@pytest.mark.parametrize("bins", [1, 2, 10, 15])
def test_bins_of_batches_add_up_to_those_of_the_stream(bins: int) -> None:
    probabilities, labels = random_predictions(500)
    parts = [
        Bins.from_probabilities(part, part_labels, bins)
        for part, part_labels in zip(probabilities.split(70), labels.split(70), strict=True)
    ]
    at_once = Bins.from_probabilities(probabilities, labels, bins)
    for total in (Bins.sum(parts), sum(parts, start=Bins.empty(bins))):
        assert (total.count, total.correct) == (at_once.count, at_once.correct)
        assert total.confidence == pytest.approx(at_once.confidence, abs=1e-12)
        assert total.calibration_error == pytest.approx(at_once.calibration_error, abs=1e-12)
    assert Bins.sum(parts) == Bins.sum(parts[::-1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_confidence_and_correctness_are_enough(dtype: torch.dtype) -> None:
    probabilities, labels = random_predictions(500)
    probabilities = probabilities.to(dtype)
    confidence, predicted = probabilities.max(-1)
    bins = Bins.from_confidence(confidence, predicted == labels)
    assert bins == Bins.from_probabilities(probabilities, labels)
    assert bins.accuracy == pytest.approx(float((predicted == labels).double().mean()))
    assert bins.mean_confidence == pytest.approx(float(confidence.double().mean()))


def test_empty_bins_add_nothing() -> None:
    bins = Bins.from_probabilities(GOOD, LABELS)
    assert Bins.empty() + bins == bins


def test_different_numbers_of_bins_do_not_add_up() -> None:
    with pytest.raises(OptionError, match=r"expected the same number of bins in each part, got \[10, 15\]"):
        Bins.empty(10) + Bins.empty(15)
    with pytest.raises(TypeError):
        Bins.empty() + 1  # type: ignore[operator]


def test_gradients_are_not_stored() -> None:
    probabilities, labels = random_predictions(20)
    bins = Bins.from_probabilities(probabilities.requires_grad_(), labels)
    assert {type(value) for value in bins.confidence} == {float}
