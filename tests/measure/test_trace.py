from __future__ import annotations

import pytest
import torch

from cretta.functional import energy
from cretta.measure import Trace, accuracy, calibration_error


def test_a_trace_equals_the_measures_of_everything_so_far() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4, generator=generator) * 3
    labels = torch.randint(0, 4, (50,), generator=generator)
    trace = Trace()
    for start, stop in ((0, 20), (20, 27), (27, 50)):
        trace.update(logits[start:stop], labels[start:stop], seconds=(stop - start) / 100)
        assert trace.accuracy[-1] == pytest.approx(accuracy(logits[:stop], labels[:stop]))
        expected = calibration_error(logits[:stop].softmax(1), labels[:stop])
        assert trace.calibration_error[-1] == pytest.approx(expected, abs=1e-9)
        assert trace.energy[-1] == pytest.approx(float(energy(logits[start:stop]).mean()))
    assert trace.sizes == [20, 7, 23]
    assert trace.mean_energy == pytest.approx(float(energy(logits).mean()), abs=1e-5)
    assert trace.images_per_second == pytest.approx(100)
