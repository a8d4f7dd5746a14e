from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cretta import streams
from cretta.errors import OptionError
from cretta.streams import Batch, Stream

LABELS = np.repeat(np.arange(10), 100)

EVERY: dict[str, Callable[[int], Stream]] = {
    "ordered": lambda seed: streams.ordered(np.arange(97)[::-1], 10),
    "iid": lambda seed: streams.iid(97, 10, seed=seed),
    "single images": lambda seed: streams.iid(13, 1, seed=seed),
    "dirichlet 10": lambda seed: streams.dirichlet(LABELS[::3], 20, 10.0, seed=seed),
    "dirichlet 0.01": lambda seed: streams.dirichlet(LABELS[::3], 20, 0.01, seed=seed),
    "continual": lambda seed: streams.continual([33, 20], 8, seed=seed),
    "gradual": lambda seed: streams.gradual([33, 20, 7], 8, seed=seed),
    "mixed": lambda seed: streams.mixed([33, 20, 7], 8, seed=seed),
}


def visits(stream: Stream) -> dict[int, list[int]]:
    """Return the indices of each domain, in order."""
    visited: dict[int, list[int]] = {}
    for batch in stream:
        for domain, positions, indices in batch.parts():
            assert batch.indices[positions].tolist() == indices.tolist()
            visited.setdefault(domain, []).extend(indices.tolist())
    return visited


@pytest.mark.parametrize("name", EVERY)
def test_every_sample_comes_exactly_once(name: str) -> None:
    stream = EVERY[name](0)
    for domain, indices in visits(stream).items():
        assert sorted(indices) == list(range(len(indices)))
        if name in ("continual", "gradual", "mixed"):
            assert len(indices) == (33, 20, 7)[domain]
    assert [batch.number for batch in stream] == list(range(len(stream)))


@pytest.mark.parametrize("name", [name for name in EVERY if name != "ordered"])
def test_the_seed_decides_the_order(name: str) -> None:
    def order(seed: int) -> list[tuple[list[int], list[int]]]:
        return [(batch.domains.tolist(), batch.indices.tolist()) for batch in EVERY[name](seed)]

    assert order(0) == order(0)
    assert order(0) != order(1)


def test_all_batches_except_the_last_are_of_equal_size() -> None:
    assert [len(batch) for batch in streams.iid(25, 10)] == [10, 10, 5]
    assert [len(batch) for batch in streams.dirichlet(LABELS, 300, 0.01)] == [300, 300, 300, 100]


def test_a_batch_of_a_sequence_is_of_one_domain() -> None:
    assert [batch.domains.tolist() for batch in streams.continual([5, 3], 4)] == [[0] * 4, [0], [1] * 3]


def test_a_gradual_stream_is_a_continual_one_that_does_not_adapt_to_the_last_domain() -> None:
    counts, batch_size = [5, 4, 4, 5], 4
    stream = streams.gradual(counts, batch_size, seed=3)
    continual = streams.continual(counts, batch_size, seed=3)
    assert [batch.indices.tolist() for batch in stream] == [batch.indices.tolist() for batch in continual]
    assert [(int(batch.domains[0]), batch.adapts) for batch in stream] == [
        (0, True),
        (0, True),
        (1, True),
        (2, True),
        (3, False),
        (3, False),
    ]
    assert all(batch.adapts for batch in continual)


def test_a_mixed_batch_says_what_is_in_it() -> None:
    batch = next(iter(streams.mixed([50, 50], 40)))
    parts = {domain: len(indices) for domain, _, indices in batch.parts()}
    assert list(parts) == [0, 1]
    assert sum(parts.values()) == 40
    assert min(parts.values()) > 8  # each is hypergeometric with mean 20 and deviation 2.5


def test_order_of_the_users_own() -> None:
    assert [b.indices.tolist() for b in streams.ordered([3, 1, 2], 2)] == [[3, 1], [2]]


# The Dirichlet law.


@pytest.mark.parametrize("delta", [10.0, 1.0, 0.1, 0.01])
def test_shares_of_a_class_follow_the_law(delta: float) -> None:
    """A symmetric Dirichlet(δ) over n places has shares of mean 1/n and second moment (δ + 1) / (n (n δ + 1)).

    And each share is Beta(δ, (n - 1) δ), which the counts of shares below the law's own quantiles must show.
    """
    places, draws, count = 5, 4000, 10**9
    generator = np.random.default_rng(0)
    shares = np.array([streams.spread(count, places, delta, generator) for _ in range(draws)]) / count
    np.testing.assert_allclose(shares.sum(1), 1)
    assert shares.mean(0) == pytest.approx([1 / places] * places, abs=4 * shares.std() / np.sqrt(draws))
    second = (delta + 1) / (places * (places * delta + 1))
    noise = (shares**2).std() / np.sqrt(draws)
    assert (shares**2).mean(0) == pytest.approx([second] * places, abs=4 * noise)
    # Chi-square of one share against the law, over ten bins of equal probability by an independent sampler.
    law = np.rint(np.random.default_rng(1).beta(delta, (places - 1) * delta, size=400_000) * count) / count
    edges = np.unique(np.quantile(law, np.linspace(0, 1, 11)[1:-1]))
    observed = np.bincount(np.searchsorted(edges, shares[:, 0]), minlength=len(edges) + 1)
    expected = np.bincount(np.searchsorted(edges, law), minlength=len(edges) + 1) / len(law) * draws
    usable = expected > 5
    chi_square = float(((observed - expected)[usable] ** 2 / expected[usable]).sum())
    assert chi_square < 30  # at most 9 degrees of freedom: exceeded once in two thousand seeds


@pytest.mark.parametrize("delta", [10.0, 0.01])
def test_histograms_of_batches(delta: float) -> None:
    """At δ = 10 the chi-square of a batch's classes is not far from its degrees of freedom; at δ = 0.01 it is."""
    labels = np.repeat(np.arange(10), 1000)
    statistics = []
    for batch in streams.dirichlet(labels, 200, delta, seed=3):
        histogram = np.bincount(labels[batch.indices], minlength=10)
        statistics.append(((histogram - 20.0) ** 2 / 20.0).sum())
    if delta == 10:
        assert np.mean(statistics) < 40
    else:
        assert np.mean(statistics) > 500  # one class alone would give 1800


def test_small_delta_fills_batches_with_single_classes() -> None:
    largest = [
        np.bincount(LABELS[batch.indices], minlength=10).max() / len(batch)
        for batch in streams.dirichlet(LABELS, 20, 0.001, seed=0)
    ]
    assert np.mean(largest) > 0.8


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: streams.iid(0, 5), "count=0"),
        (lambda: streams.iid(5, 0), "batch_size=0"),
        (lambda: streams.iid(5, 2.0), "batch_size=2.0"),  # type: ignore[arg-type]
        (lambda: streams.ordered([1, 1], 2), "twice"),
        (lambda: streams.ordered([-1, 1], 2), "from 0 up"),
        (lambda: streams.ordered([], 2), "non-empty"),
        (lambda: streams.dirichlet(LABELS, 10, 0.0), "delta=0.0"),
        (lambda: streams.dirichlet(LABELS, 10, float("nan")), "delta=nan"),
        (lambda: streams.dirichlet(LABELS.reshape(2, -1), 10, 1.0), "shape"),
        (lambda: streams.dirichlet([0.5, 1.0], 10, 1.0), "class number"),  # type: ignore[list-item]
        (lambda: streams.continual([], 10), "empty"),
        (lambda: streams.mixed([3, 0], 10), "count=0"),
    ],
)
def test_wrong_requests(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        wrong()


# The loop.


def read(batch: Batch) -> tuple[Tensor | None, int]:
    return (None if batch.number == 1 else torch.from_numpy(batch.indices).float()), 10 * batch.number


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_loop_yields_a_step_per_batch_in_order(ahead: int) -> None:
    stream = streams.gradual([4, 2, 3], 2)
    steps = list(streams.follow(stream, read, lambda x: 2 * x, frozen=lambda x: -x, ahead=ahead))
    assert [step.batch for step in steps] == list(stream)
    assert [step.extra for step in steps] == [0, 10, 20, 30, 40]
    for step in steps:
        indices, expected = torch.from_numpy(step.batch.indices).float(), 2 if step.batch.adapts else -1
        assert torch.equal(step.logits, torch.empty(0, 1) if step.batch.number == 1 else expected * indices)
        assert (step.seconds > 0) == (step.batch.number != 1)


def test_only_the_model_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that reading, the model and the other callbacks move on."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def wait(seconds: float) -> None:
        clock[0] += seconds

    def slow_read(batch: Batch) -> tuple[Tensor, None]:
        wait(100)
        return torch.zeros(1, 2), None

    def model(x: Tensor) -> Tensor:
        wait(1)
        return x

    calls: list[tuple[int, tuple[int, ...]]] = []

    def before(batch: Batch, x: Tensor) -> None:
        wait(10)
        calls.append((batch.number, tuple(x.shape)))

    for step in streams.follow(streams.ordered(range(3), 1), slow_read, model, before=before):
        wait(1000)
        assert step.seconds == 1
    assert calls == [(0, (1, 2)), (1, (1, 2)), (2, (1, 2))]


def test_each_step_is_handled_before_the_next_batch_is_predicted() -> None:
    predicted = 0

    def model(x: Tensor) -> Tensor:
        nonlocal predicted
        predicted += 1
        return x

    steps = streams.follow(streams.ordered(range(9), 1), lambda batch: (torch.zeros(1, 2), None), model, ahead=2)
    for number, step in enumerate(steps):
        assert (step.batch.number, predicted) == (number, number + 1)
        if number == 4:
            steps.close()
    assert predicted == 5
