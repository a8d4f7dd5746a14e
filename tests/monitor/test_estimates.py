from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cretta.errors import BatchError, OptionError
from cretta.monitor import SourceReference, cot, estimate_accuracy, fit_temperature
from cretta.monitor.estimates import ESTIMATES, label_counts


def random_logits(count: int, classes: int, seed: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Logits and labels; the larger a logit, the more often its class is right."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(count, classes, generator=generator)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    return logits, labels


def slow_cross_entropy(logits: Tensor, labels: Tensor, temperature: float) -> float:
    total = 0.0
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        total += math.log(sum(math.exp(z / temperature) for z in row)) - row[label] / temperature
    return total / len(labels)


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_temperature_is_that_of_a_search(factor: float) -> None:
    logits, labels = random_logits(300, 5, seed=1)
    logits = logits * factor
    candidates = np.geomspace(0.1, 10, 400)
    best = min(candidates, key=lambda t: slow_cross_entropy(logits[:100], labels[:100], t))
    assert fit_temperature(logits[:100], labels[:100]) == pytest.approx(best, rel=0.02)
    assert fit_temperature(logits, labels) == pytest.approx(factor, rel=0.25)


def test_temperature_stays_within_its_bounds() -> None:
    right = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    assert 0.05 <= fit_temperature(right, torch.tensor([0, 1])) < 0.1
    assert fit_temperature(right, torch.tensor([1, 0])) == pytest.approx(20.0, rel=1e-6)


def test_atc_by_hand() -> None:
    """Of four source predictions two are wrong, so t is the third smallest confidence; two of three are above it."""
    source = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]])
    labels = torch.tensor([1, 0, 1, 0])
    target = torch.tensor([[0.0, 2.5], [0.0, 3.5], [5.0, 0.0]])
    for method in ("atc", "atc_entropy"):
        assert estimate_accuracy(target, source, labels, method=method) == pytest.approx(2 / 3)
        assert estimate_accuracy(source, source, labels, method=method) == 0.5
        all_wrong = estimate_accuracy(target, source, torch.tensor([1, 1, 1, 1]), method=method)
        assert (all_wrong, estimate_accuracy(target[1:], source, torch.zeros(4, dtype=torch.long), method=method)) == (
            0.0,
            1.0,
        )


def test_confidence_and_doc_by_hand() -> None:
    source, labels = torch.tensor([[2.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
    temperature = 2 / math.log(3)  # the confidence of the source becomes its accuracy, 3/4
    target = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    expected = np.mean([1 / (1 + math.exp(-z / temperature)) for z in (1.0, 3.0)])
    assert estimate_accuracy(target, source, labels, method="confidence") == pytest.approx(expected, abs=1e-6)
    assert estimate_accuracy(target, source, labels, method="doc") == pytest.approx(0.75 + expected - 0.75, abs=1e-6)


def brute_force(probabilities: Tensor, labels: list[int]) -> float:
    """The least mean of ½‖e_y − p‖₁ over all assignments of the labels."""
    rows = probabilities.tolist()

    def cost(row: list[float], label: int) -> float:
        return 0.5 * sum(abs((k == label) - p) for k, p in enumerate(row))

    return min(
        sum(cost(row, label) for row, label in zip(rows, order, strict=True)) / len(rows)
        for order in set(itertools.permutations(labels))
    )


@pytest.mark.parametrize("seed", range(5))
def test_cot_is_that_of_all_assignments(seed: int) -> None:
    logits, _ = random_logits(6, 3, seed)
    probabilities = logits.double().softmax(-1)
    found = cot(probabilities, torch.tensor([1.0, 2.0, 3.0]))
    assert found == pytest.approx(1 - brute_force(probabilities, [0, 1, 1, 2, 2, 2]), abs=1e-9)


def test_cot_notices_a_confident_collapse_that_atc_does_not() -> None:
    source, labels = random_logits(400, 4, seed=3, scale=4.0)
    collapsed = torch.zeros(200, 4)
    collapsed[:, 2] = 12.0
    assert estimate_accuracy(collapsed, source, labels, method="atc") == 1.0
    assert estimate_accuracy(collapsed, source, labels, method="cot") < 0.35


def test_cot_in_parts_is_near_cot_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities = random_logits(600, 4, seed=4)[0].softmax(-1)
    frequencies = torch.ones(4)
    at_once = cot(probabilities, frequencies)
    monkeypatch.setattr("cretta.monitor.estimates.AT_ONCE", 200)
    in_parts = cot(probabilities, frequencies)
    assert in_parts != at_once
    assert in_parts == pytest.approx(at_once, abs=0.03)


def test_label_counts() -> None:
    assert label_counts(torch.tensor([1.0, 1.0, 2.0]), 8).tolist() == [0, 0, 1, 1, 2, 2, 2, 2]
    assert label_counts(torch.tensor([0.5, 0.3, 0.2]), 4).tolist() == [0, 0, 1, 2]
    assert label_counts(torch.ones(3), 5).tolist() == [0, 0, 1, 1, 2]
    assert label_counts(torch.ones(3), 1).tolist() == [0]


def test_estimates_of_the_source_itself_are_its_accuracy() -> None:
    logits, labels = random_logits(2000, 5, seed=5, scale=3.0)
    reference = SourceReference.of(logits, labels)
    estimates = reference.estimates(logits)
    assert set(estimates) == set(ESTIMATES)
    for name, value in estimates.items():
        assert value == pytest.approx(reference.accuracy, abs=0.03), name
    assert reference.energies.tolist() == sorted((-logits.logsumexp(-1)).tolist())


@pytest.mark.parametrize(
    ("classes", "images", "correct", "expected"),
    [(10, 20, 3, True), (10, 20, 4, False), (10, 19, 0, False), (2, 20, 9, True), (2, 20, 10, False)],
)
def test_accuracy_at_chance(classes: int, images: int, correct: int, expected: bool) -> None:
    logits = torch.zeros(images, classes)
    logits[:, 0] = 1
    labels = torch.ones(images, dtype=torch.int64)
    labels[:correct] = 0
    assert SourceReference.of(logits, labels).at_chance is expected


def test_wrong_arguments() -> None:
    logits, labels = random_logits(8, 3, seed=6)
    with pytest.raises(OptionError, match=r"unknown estimate 'atcc'.*Did you mean 'atc'"):
        estimate_accuracy(logits, logits, labels, method="atcc")
    with pytest.raises(BatchError, match=r"source logits \(M, C\) and labels \(M,\).*got \(8, 3\) and \(7,\)"):
        estimate_accuracy(logits, logits, labels[1:])
    with pytest.raises(BatchError, match=r"source labels from 0 to 2.*got 3 to 3"):
        estimate_accuracy(logits, logits, torch.full((8,), 3))
    with pytest.raises(BatchError, match=r"expected logits \(N, 3\) with at least one row, got \(8, 2\)"):
        estimate_accuracy(logits[:, :2], logits, labels)
