from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cretta import streams
from cretta.errors import OptionError
from cretta.streams import Stream

LABELS = np.repeat(np.arange(10), 100)

EVERY: dict[str, Callable[[int], Stream]] = {
    "ordered": lambda seed: streams.ordered(np.arange(97)[::-1], 10),
    "iid": lambda seed: streams.iid(97, 10, seed=seed),
    "single images": lambda seed: streams.iid(13, 1, seed=seed),
    "dirichlet 10": lambda seed: streams.dirichlet(LABELS[::3], 20, 10.0, seed=seed),
    "dirichlet 0.01": lambda seed: streams.dirichlet(LABELS[::3], 20, 0.01, seed=seed),
    "continual": lambda seed: streams.continual({"fog": 33, "snow": 20}, 8, seed=seed),
    "gradual": lambda seed: streams.gradual(21, 8, seed=seed),
    "mixed": lambda seed: streams.mixed({"fog": 33, "snow": 20, "frost": 7}, 8, seed=seed),
}


def visits(stream: Stream) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for batch in stream:
        for name, positions, indices in batch.parts():
            assert batch.indices[positions].tolist() == indices.tolist()
            found.setdefault(name, []).extend(indices.tolist())
    return found


@pytest.mark.parametrize("name", EVERY)
def test_every_sample_comes_exactly_once(name: str) -> None:
    stream = EVERY[name](0)
    sizes = {"fog": 33, "snow": 20, "frost": 7}
    for domain, indices in visits(stream).items():
        assert sorted(indices) == list(range(len(indices)))
        if domain in sizes:
            assert len(indices) == sizes[domain]
    assert stream.images == sum(map(len, visits(stream).values()))
    assert len(list(stream)) == len(stream)


@pytest.mark.parametrize("name", [name for name in EVERY if name != "ordered"])
def test_the_seed_decides_the_order(name: str) -> None:
    def order(seed: int) -> list[tuple[str, list[int]]]:
        return [(batch.domain, batch.indices.tolist()) for batch in EVERY[name](seed)]

    assert order(0) == order(0)
    assert order(0) != order(1)


def test_batches_are_of_equal_size_but_for_the_last() -> None:
    assert [len(batch) for batch in streams.iid(25, 10)] == [10, 10, 5]
    assert [len(batch) for batch in streams.dirichlet(LABELS, 300, 0.01)] == [300, 300, 300, 100]


def test_a_batch_of_a_sequence_is_of_one_domain() -> None:
    assert [batch.domain for batch in streams.continual({"fog": 5, "snow": 3}, 4)] == ["fog", "fog", "snow"]
    domains = [batch.domain for batch in streams.gradual(4, 4)]
    assert domains == ["source", *(f"severity {s}" for s in (1, 2, 3, 4, 5)), "source again"]


def test_a_mixed_batch_says_what_is_in_it() -> None:
    batch = next(iter(streams.mixed({"fog": 50, "snow": 50}, 40)))
    assert batch.domain == "fog+snow"
    parts = {name: len(indices) for name, _, indices in batch.parts()}
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
    found = []
    for batch in streams.dirichlet(labels, 200, delta, seed=3):
        histogram = np.bincount(labels[batch.indices], minlength=10)
        found.append(((histogram - 20.0) ** 2 / 20.0).sum())
    if delta == 10:
        assert np.mean(found) < 40
    else:
        assert np.mean(found) > 500  # one class alone would give 1800


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
        (lambda: streams.continual({}, 10), "empty"),
        (lambda: streams.mixed({"fog": 0}, 10), "fog"),
    ],
)
def test_wrong_requests(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        wrong()
