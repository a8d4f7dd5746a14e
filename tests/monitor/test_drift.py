from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cretta.errors import OptionError
from cretta.monitor import DriftTest


def energies(count: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


def test_ranks_and_boundary_by_hand() -> None:
    test = DriftTest(torch.tensor([3.0, 1.0, 2.0, 4.0]), alpha=0.1)
    assert math.isnan(test.mean_rank)
    test.update(torch.tensor([2.5, 9.0, 0.0, 4.0]))  # ranks 1/2, 1, 0, and 7/8: in the middle of its equals
    assert test.sum == pytest.approx(0.5 + 1 + 0 + 0.875 - 4 * 0.5)
    assert test.mean_rank == pytest.approx(2.375 / 4)
    finite = 4 * math.sqrt(math.log(4 / 0.1) / 8)
    assert test.boundary == pytest.approx(finite + math.sqrt(26 * math.log(26 / (25 * 0.05**2))))


def test_false_alarms_are_rarer_than_alpha_at_all_times() -> None:
    alarms = 0
    for seed in range(200):
        test = DriftTest(energies(500, 10_000 + seed), alpha=0.1)
        for batch in energies(3000, seed).split(100):
            test.update(batch)
        alarms += test.detected_after is not None
    assert alarms <= 0.1 * 200


@pytest.mark.parametrize(("shift", "most"), [(1.0, 500), (-1.0, 500), (0.5, 2000)])
def test_drift_is_detected(shift: float, most: int) -> None:
    test = DriftTest(energies(2000, 1))
    detected = [test.update(batch) for batch in energies(2000, 2, shift).split(50)]
    assert test.detected_after is not None
    assert test.detected_after <= most
    assert detected == sorted(detected)  # an alarm stays
    assert np.sign(test.mean_rank - 0.5) == np.sign(shift)


def test_wrong_alpha() -> None:
    with pytest.raises(OptionError, match=r"alpha=1\.5: expected a number above 0 and below 1"):
        DriftTest(energies(3, 1), alpha=1.5)
