from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import brier_score_loss, log_loss
from torch import Tensor
from torchmetrics.functional.text import perplexity

from cretta.errors import BatchError
from cretta.metrics import BatchScores, calibration_error

LOG = math.log


def random_logits(count: int, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (count,), generator=generator)


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    return BatchScores.of(logits, labels).negative_log_likelihood


def brier_score(probabilities: Tensor, labels: Tensor) -> float:
    return BatchScores.of(probabilities.log(), labels).brier_score


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return BatchScores.of(logits, labels).accuracy


def test_accuracy_by_hand() -> None:
    scores = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.0, 0.4, 0.6], [0.3, 0.3, 0.4]]).log()
    # Predictions are 1, 0, 2, 2; the first and the third are correct: 2 / 4.
    assert accuracy(scores, torch.tensor([1, 1, 2, 0])) == 0.5
    assert accuracy(scores, torch.tensor([1, 0, 2, 2])) == 1.0
    assert accuracy(scores, torch.tensor([0, 1, 1, 1])) == 0.0
    assert accuracy(scores[:3], torch.tensor([1, 1, 1])) == pytest.approx(1 / 3)


def test_accuracy_and_calibration_are_those_of_the_probabilities() -> None:
    logits, labels = random_logits(500)
    scores = BatchScores.of(logits, labels)
    assert scores.accuracy == pytest.approx(float((logits.argmax(-1) == labels).double().mean()))
    assert scores.calibration_error == calibration_error(logits.softmax(-1), labels)
    assert BatchScores.of(logits - 100, labels).bins.count == scores.bins.count


def test_likelihood_by_hand() -> None:
    # p = (1/4, 3/4) and (2/3, 1/3): logits are log-odds.
    logits = torch.tensor([[0.0, LOG(3)], [LOG(2), 0.0]], dtype=torch.float64)
    # -log 3/4 and -log 1/3.
    expected = (LOG(4 / 3) + LOG(3)) / 2
    assert negative_log_likelihood(logits, torch.tensor([1, 1])) == pytest.approx(expected, abs=1e-14)
    assert negative_log_likelihood(logits[:1], torch.tensor([0])) == pytest.approx(LOG(4), abs=1e-14)


def test_brier_by_hand() -> None:
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64)
    # Label 0: 0.3² + 0.2² + 0.1² = 0.14. Label 1: 0.1² + 0.7² + 0.6² = 0.86.
    assert brier_score(probabilities, torch.tensor([0, 1])) == pytest.approx((0.14 + 0.86) / 2, abs=1e-15)
    assert brier_score(probabilities[:1], torch.tensor([0])) == pytest.approx(0.14, abs=1e-15)


def test_bounds() -> None:
    sure = torch.tensor([[1.0, 0.0, 0.0]])
    assert brier_score(sure, torch.tensor([0])) == 0
    assert brier_score(sure, torch.tensor([1])) == 2
    uniform = torch.full((3, 4), 0.25)
    # 3 · (1/4)² + (3/4)² = 12/16.
    assert brier_score(uniform, torch.tensor([0, 1, 3])) == pytest.approx(0.75, abs=1e-15)
    assert negative_log_likelihood(torch.zeros(3, 4), torch.tensor([0, 1, 3])) == pytest.approx(LOG(4), abs=1e-15)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 10])
def test_agree_with_scikit_learn(classes: int, seed: int) -> None:
    logits, labels = random_logits(400, classes, seed)
    probabilities, truth = logits.softmax(-1), labels.numpy()
    names = list(range(classes))
    theirs = log_loss(truth, probabilities.numpy(), labels=names)
    assert negative_log_likelihood(logits, labels) == pytest.approx(theirs, abs=1e-12)
    theirs = brier_score_loss(truth, probabilities.numpy(), labels=names, scale_by_half=False)
    assert brier_score(probabilities, labels) == pytest.approx(theirs, abs=1e-12)


def test_agree_with_torch_and_torchmetrics() -> None:
    logits, labels = random_logits(300, 7)
    value = negative_log_likelihood(logits, labels)
    assert value == pytest.approx(float(F.cross_entropy(logits, labels)), abs=1e-12)
    assert math.exp(value) == pytest.approx(float(perplexity(logits[None], labels[None])), rel=1e-6)


def test_log_probabilities_are_logits() -> None:
    logits, labels = random_logits(50)
    expected = negative_log_likelihood(logits, labels)
    assert negative_log_likelihood(logits.log_softmax(-1), labels) == pytest.approx(expected, abs=1e-12)
    assert negative_log_likelihood(logits - 700, labels) == pytest.approx(expected, abs=1e-10)


def test_what_a_softmax_rounds_to_zero_still_has_a_likelihood() -> None:
    logits = torch.tensor([[0.0, 1000.0]])
    assert logits.softmax(-1)[0, 0] == 0
    assert negative_log_likelihood(logits, torch.tensor([0])) == 1000
    # A class ruled out is infinitely unlikely, and does no harm elsewhere.
    ruled_out = torch.tensor([[0.0, 0.0, -math.inf]])
    assert negative_log_likelihood(ruled_out, torch.tensor([2])) == math.inf
    assert negative_log_likelihood(ruled_out, torch.tensor([0])) == pytest.approx(LOG(2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_added_up_in_double(dtype: torch.dtype) -> None:
    logits, labels = random_logits(500, 4)
    rounded = logits.to(dtype)
    exact = negative_log_likelihood(rounded.double(), labels)
    assert negative_log_likelihood(rounded, labels) == exact
    assert BatchScores.of(rounded, labels).brier_score == BatchScores.of(rounded.double(), labels).brier_score


@pytest.mark.parametrize("seed", range(3))
def test_streaming_equals_at_once(seed: int) -> None:
    logits, labels = random_logits(300, seed=seed)
    cuts = torch.randint(1, 40, (60,), generator=torch.Generator().manual_seed(seed)).cumsum(0)
    indices = cuts[cuts < 300].tolist()
    parts = [
        BatchScores.of(part, part_labels)
        for part, part_labels in zip(logits.tensor_split(indices), labels.tensor_split(indices), strict=True)
    ]
    at_once = BatchScores.of(logits, labels)
    for total in (BatchScores.sum(parts), sum(parts[1:], start=parts[0])):
        assert total.images == 300
        assert total.accuracy == at_once.accuracy
        assert total.calibration_error == pytest.approx(at_once.calibration_error, abs=1e-12)
        assert total.negative_log_likelihood == pytest.approx(at_once.negative_log_likelihood, abs=1e-12)
        assert total.brier_score == pytest.approx(at_once.brier_score, abs=1e-12)
    assert BatchScores.sum(parts) == BatchScores.sum(parts[::-1])


def test_gradients_are_not_stored() -> None:
    logits, labels = random_logits(10)
    scores = BatchScores.of(logits.requires_grad_(), labels)
    assert [type(value) for value in (scores.likelihood_sum, scores.brier_sum)] == [float, float]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_labels_of_any_whole_type(dtype: torch.dtype) -> None:
    logits, labels = random_logits(20)
    assert BatchScores.of(logits, labels.to(dtype)) == BatchScores.of(logits, labels)


LOGITS = torch.tensor([[2.0, -1.0], [0.5, 1.0]])
PROBABILITIES = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (LOGITS[:0], LABELS[:0], "at least one row"),
        (LOGITS[0], LABELS, "expected scores"),
        (LOGITS[None], LABELS, "expected scores"),
        (LOGITS, LABELS[:1], "expected scores"),
        (LOGITS, LABELS[:, None], "expected scores"),
        (LOGITS[:1], torch.tensor(0), "expected scores"),
        (LOGITS, torch.tensor([0, 2]), "integers from 0 to 1"),
        (LOGITS, torch.tensor([-1, 0]), "integers from 0 to 1"),
        (LOGITS, LABELS.float(), "integers"),
        (PROBABILITIES, LABELS, r"as probabilities do.*\.log\(\)"),
        (torch.tensor([[math.nan, 0.0], [0.0, 2.0]]), LABELS, r"NaN or \+inf"),
        (torch.tensor([[math.inf, 0.0], [0.0, 2.0]]), LABELS, r"NaN or \+inf"),
        (torch.tensor([[-math.inf, -math.inf], [0.0, 2.0]]), LABELS, "nothing but -inf"),
    ],
    ids=[
        *("empty", "vector", "cube", "fewer labels", "column", "scalar label", "too high", "negative", "floats"),
        *("probabilities", "nan", "infinite", "all ruled out"),
    ],
)
def test_wrong_batches_are_refused(logits: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        BatchScores.of(logits, labels)
