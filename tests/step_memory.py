"""The memory of one step of an adapter, measured on a clone of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import cretta
from cretta.metrics import peak_meter


def peak_memory(adapter: cretta.Adapter[Any], batch: Tensor, *, steady: bool = True) -> int:
    """Return the peak bytes of a steady step, for which everything that is computed once exists, or of the next."""
    clone = adapter.clone()

    def step() -> None:
        for _ in range(clone.options.adapt_every):
            clone(batch)

    if steady:
        step()
        state = clone.state.snapshot()
        step()
        clone.state.restore(state)
    with peak_meter(batch.device) as meter:
        step()
    return meter.peak
