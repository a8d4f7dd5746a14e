from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import brier_score_loss, log_loss
from torch import Tensor
from torchmetrics.functional.text import perplexity

from cretta.errors import BatchError
from cretta.metrics import BrierScore, NegativeLogLikelihood, brier_score, negative_log_likelihood

LOG = math.log


def random_logits(count: int, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (count,), generator=generator)


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
    assert brier_score(uniform, torch.tensor([0, 1, 3])) == 0.75
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
    found = negative_log_likelihood(logits, labels)
    assert found == pytest.approx(float(F.cross_entropy(logits, labels)), abs=1e-12)
    assert math.exp(found) == pytest.approx(float(perplexity(logits[None], labels[None])), rel=1e-6)


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
    probabilities = logits.softmax(-1).to(torch.float32)
    assert brier_score(probabilities, labels) == brier_score(probabilities.double(), labels)


@pytest.mark.parametrize("seed", range(3))
def test_streaming_equals_at_once(seed: int) -> None:
    logits, labels = random_logits(300, seed=seed)
    cuts = torch.randint(1, 40, (60,), generator=torch.Generator().manual_seed(seed)).cumsum(0)
    places = cuts[cuts < 300].tolist()
    likelihood, brier = NegativeLogLikelihood(), BrierScore()
    for part, part_labels in zip(logits.tensor_split(places), labels.tensor_split(places), strict=True):
        likelihood.update(part, part_labels)
        brier.update(part.softmax(-1), part_labels)
    assert likelihood.value == pytest.approx(negative_log_likelihood(logits, labels), abs=1e-12)
    assert brier.value == pytest.approx(brier_score(logits.softmax(-1), labels), abs=1e-12)
    assert likelihood.seen == brier.seen == 300


@pytest.mark.parametrize("kind", [NegativeLogLikelihood, BrierScore])
def test_a_stream_is_two_numbers(kind: type[NegativeLogLikelihood] | type[BrierScore]) -> None:
    running = kind()
    assert math.isnan(running.value)
    logits, labels = random_logits(10)
    running.update((logits if kind is NegativeLogLikelihood else logits.softmax(-1)).requires_grad_(), labels)
    assert {name: type(value) for name, value in vars(running).items()} == {"total": float, "seen": int}
    assert type(running.value) is float


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_labels_of_any_whole_type(dtype: torch.dtype) -> None:
    logits, labels = random_logits(20)
    assert negative_log_likelihood(logits, labels.to(dtype)) == negative_log_likelihood(logits, labels)
    assert brier_score(logits.softmax(-1), labels.to(dtype)) == brier_score(logits.softmax(-1), labels)


LOGITS = torch.tensor([[2.0, -1.0], [0.5, 1.0]])
PROBABILITIES = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
LABELS = torch.tensor([0, 1])
WRONG_SHAPES: list[Any] = [
    (lambda scores: scores[:0], LABELS[:0], "at least one row"),
    (lambda scores: scores[0], LABELS, "needed are"),
    (lambda scores: scores[None], LABELS, "needed are"),
    (lambda scores: scores, LABELS[:1], "needed are"),
    (lambda scores: scores, LABELS[:, None], "needed are"),
    (lambda scores: scores, torch.tensor([0, 2]), "whole numbers from 0 to 1"),
    (lambda scores: scores, torch.tensor([-1, 0]), "whole numbers from 0 to 1"),
    (lambda scores: scores, LABELS.float(), "whole numbers"),
]


def refused_by_likelihood(logits: Tensor, labels: Tensor, message: str) -> None:
    running = NegativeLogLikelihood()
    running.update(LOGITS, LABELS)
    before = dict(vars(running))
    for take in (negative_log_likelihood, running.update):
        with pytest.raises(BatchError, match=message):
            take(logits, labels)
    assert vars(running) == before


def refused_by_brier(probabilities: Tensor, labels: Tensor, message: str) -> None:
    running = BrierScore()
    running.update(PROBABILITIES, LABELS)
    before = dict(vars(running))
    for take in (brier_score, running.update):
        with pytest.raises(BatchError, match=message):
            take(probabilities, labels)
    assert vars(running) == before


@pytest.mark.parametrize(("change", "labels", "message"), WRONG_SHAPES)
def test_wrong_shapes_and_labels_are_refused_and_change_nothing(change: Any, labels: Tensor, message: str) -> None:
    refused_by_likelihood(change(LOGITS), labels, message)
    refused_by_brier(change(PROBABILITIES), labels, message)


@pytest.mark.parametrize(
    "wrong",
    [LOGITS, LOGITS.log_softmax(-1), PROBABILITIES * 100, PROBABILITIES * 0.99, torch.full((2, 2), math.nan)],
    ids=["logits", "log-probabilities", "per cent", "short", "nan"],
)
def test_brier_refuses_what_are_no_probabilities(wrong: Tensor) -> None:
    refused_by_brier(wrong, LABELS, "softmax")


def test_likelihood_refuses_probabilities() -> None:
    refused_by_likelihood(PROBABILITIES, LABELS, r"as probabilities do.*\.log\(\)")
    negative_log_likelihood(PROBABILITIES.log(), LABELS)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_likelihood_refuses_what_has_no_softmax(value: float) -> None:
    refused_by_likelihood(torch.tensor([[value, 0.0], [0.0, 2.0]]), LABELS, r"NaN or \+inf")
    refused_by_likelihood(torch.tensor([[-math.inf, -math.inf], [0.0, 2.0]]), LABELS, "nothing but -inf")
