from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cretta.errors import BatchError
from cretta.metrics import Accuracy, accuracy


def random_scores(count: int, classes: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, classes, generator=generator), torch.randint(0, classes, (count,), generator=generator)


def test_by_hand() -> None:
    scores = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.0, 0.4, 0.6], [0.3, 0.3, 0.4]])
    # Predicted 1, 0, 2, 2; right are the first and the third: 2 / 4.
    assert accuracy(scores, torch.tensor([1, 1, 2, 0])) == 0.5
    assert accuracy(scores, torch.tensor([1, 0, 2, 2])) == 1.0
    assert accuracy(scores, torch.tensor([0, 1, 1, 1])) == 0.0
    assert accuracy(scores[:3], torch.tensor([1, 1, 1])) == pytest.approx(1 / 3)


def test_logits_count_as_probabilities_do() -> None:
    logits, labels = random_scores(500)
    assert accuracy(logits, labels) == accuracy(logits.softmax(-1), labels)
    assert accuracy(logits - 100, labels) == accuracy(logits, labels)
    assert accuracy(logits, labels) == pytest.approx(float((logits.argmax(-1) == labels).float().mean()))


@pytest.mark.parametrize("seed", range(3))
def test_streaming_equals_at_once(seed: int) -> None:
    scores, labels = random_scores(300)
    cuts = torch.randint(1, 40, (60,), generator=torch.Generator().manual_seed(seed)).cumsum(0)
    cuts = cuts[cuts < 300]
    running = Accuracy()
    for part, part_labels in zip(scores.tensor_split(cuts.tolist()), labels.tensor_split(cuts.tolist()), strict=True):
        running.update(part, part_labels)
    assert running.value == accuracy(scores, labels)
    assert running.seen == 300


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_labels_of_any_whole_type(dtype: torch.dtype) -> None:
    scores, labels = random_scores(100)
    assert accuracy(scores, labels.to(dtype)) == accuracy(scores, labels)


def test_gradients_are_not_kept() -> None:
    scores, labels = random_scores(10)
    running = Accuracy()
    running.update(scores.requires_grad_(), labels)
    assert type(running.value) is float


def test_nothing_is_known_before_the_first_batch() -> None:
    assert math.isnan(Accuracy().value)


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)),
        (torch.zeros(3), torch.tensor([0, 1, 2])),
        (torch.zeros(2, 3, 4), torch.tensor([0, 1])),
        (torch.zeros(2, 3), torch.tensor([0, 1, 2])),
        (torch.zeros(2, 3), torch.tensor([[0], [1]])),
        (torch.zeros(1, 3), torch.tensor(0)),
        (torch.zeros(2, 3), torch.tensor([0, 3])),
        (torch.zeros(2, 3), torch.tensor([0, -1])),
        (torch.zeros(2, 3), torch.tensor([0.0, 1.0])),
    ],
    ids=["empty", "vector", "cube", "more labels", "column", "scalar label", "too high", "negative", "floats"],
)
def test_wrong_batches_are_refused_and_change_nothing(scores: Tensor, labels: Tensor) -> None:
    with pytest.raises(BatchError):
        accuracy(scores, labels)
    running = Accuracy()
    running.update(*random_scores(10))
    before = running.value
    with pytest.raises(BatchError):
        running.update(scores, labels)
    assert (running.value, running.seen) == (before, 10)
