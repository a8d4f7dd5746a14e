from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cretta.errors import OptionError
from cretta.metrics import mean_corruption_error

NAMES = [f"corruption {number}" for number in range(15)]


def random_errors(seed: int, least: float = 0.05) -> dict[str, dict[int, float]]:
    drawn = least + 0.5 * torch.rand(15, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {name: dict(zip(range(1, 6), row.tolist(), strict=True)) for name, row in zip(NAMES, drawn, strict=True)}


def test_by_hand() -> None:
    base = {"fog": {1: 0.1, 5: 0.3}, "snow": {1: 0.2, 5: 0.6}}
    errors = {"fog": {1: 0.1, 5: 0.1}, "snow": {1: 0.3, 5: 0.7}}
    # Fog: 0.2 / 0.4 = 50 %. Snow: 1.0 / 0.8 = 125 %. Their mean is 87.5 %.
    assert mean_corruption_error(errors, base) == pytest.approx(87.5, abs=1e-12)
    # Not the ratio of the means, 1.2 / 1.2, nor the mean over severities of ratios, (1 + 1/3 + 3/2 + 7/6) / 4.
    assert mean_corruption_error(errors, base) != pytest.approx(100, abs=1)


@pytest.mark.parametrize("seed", range(20))
def test_source_is_exactly_100(seed: int) -> None:
    errors = random_errors(seed)
    assert mean_corruption_error(errors, errors) == 100.0
    # In another order, too.
    turned = {name: dict(reversed(errors[name].items())) for name in reversed(errors)}
    assert mean_corruption_error(turned, errors) == 100.0


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_definition(seed: int) -> None:
    errors, base = random_errors(seed), random_errors(seed + 100)
    expected = 0.0
    for name in NAMES:
        expected += sum(errors[name][s] for s in range(1, 6)) / sum(base[name][s] for s in range(1, 6)) / 15
    assert mean_corruption_error(errors, base) == pytest.approx(100 * expected, abs=1e-10)


def test_one_severity_is_a_ratio() -> None:
    assert mean_corruption_error({"fog": {5: 0.25}}, {"fog": {5: 0.5}}) == 50
    assert mean_corruption_error({"fog": {5: 0.0}}, {"fog": {5: 0.5}}) == 0


def test_an_easy_corruption_counts_as_much_as_a_hard_one() -> None:
    base = {"easy": {5: 0.01}, "hard": {5: 0.9}}
    assert mean_corruption_error({"easy": {5: 0.02}, "hard": {5: 0.9}}, base) == pytest.approx(150)


def test_a_base_that_fails_at_some_severities_only_will_do() -> None:
    assert mean_corruption_error({"fog": {1: 0.1, 5: 0.2}}, {"fog": {1: 0.0, 5: 0.6}}) == pytest.approx(50)


GOOD = {"fog": {1: 0.1, 5: 0.3}, "snow": {1: 0.2, 5: 0.6}}


@pytest.mark.parametrize(
    ("errors", "base", "message"),
    [
        ({}, GOOD, r"same corruptions in errors and base, got \[\] and \['fog', 'snow'\]"),
        (GOOD, {}, "base is empty"),
        (GOOD, {"fog": {}, "snow": {}}, "base is empty"),
        ({"fog": GOOD["fog"]}, GOOD, r"same corruptions.* got \['fog'\] and \['fog', 'snow'\]"),
        (GOOD, {"fog": GOOD["fog"]}, r"same corruptions.* got \['fog', 'snow'\] and \['fog'\]"),
        (GOOD | {"fog": {1: 0.1}}, GOOD, r"errors has severities \[1\] of 'fog': expected \[1, 5\]"),
        (GOOD | {"fog": {1: 0.1, 4: 0.3}}, GOOD, r"errors has severities \[1, 4\] of 'fog': expected \[1, 5\]"),
        (GOOD, GOOD | {"fog": {1: 0.1}}, r"base has severities \[1\] of 'fog': expected \[1, 5\]"),
        (GOOD | {"fog": {1: 0.1}}, GOOD | {"fog": {1: 0.1}}, r"severities \[1\] of 'fog': expected \[1, 5\]"),
        (GOOD, GOOD | {"fog": {1: 0.0, 5: 0.0}}, "base makes no error on 'fog'"),
        (GOOD | {"fog": {1: 10.0, 5: 30.0}}, GOOD, r"errors\['fog'\]\[1\] is 10.0:.*divide percentages by 100"),
        (GOOD, GOOD | {"snow": {1: 0.2, 5: 60.0}}, r"base\['snow'\]\[5\] is 60.0"),
        (GOOD | {"fog": {1: -0.1, 5: 0.3}}, GOOD, r"errors\['fog'\]\[1\] is -0.1"),
        (GOOD | {"fog": {1: math.nan, 5: 0.3}}, GOOD, r"errors\['fog'\]\[1\] is nan"),
    ],
)
def test_what_cannot_be_compared_is_refused(errors: Any, base: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        mean_corruption_error(errors, base)
