"""Estimate how long runs take, from the time of a forward pass."""

from __future__ import annotations

import timeit
from collections.abc import Sequence

import torch

from cretta.bench.context import RunContext
from cretta.bench.run import Run
from cretta.bench.store import Store
from cretta.methods import get

BACKWARD = 1.4
"""Cost of a backward pass for γ and β, in forward passes."""
TRIAL = 32
"""Images in the pass that is timed, at most."""


def estimate(runs: Sequence[Run], store: Store, context: RunContext) -> dict[Run, float]:
    """Return the seconds that each run will take, 0 for those in the store; mostly within a factor of two or three.

    All runs are validated before anything is timed.
    """
    keys = {run: context.key(run) for run in runs}
    forward: dict[tuple[str, str, int | None], float] = {}
    estimates = {}
    for run, key in keys.items():
        network, facts = (run.model, run.data, run.size), get(run.method).facts
        if key not in store and network not in forward:
            forward[network] = _forward_seconds(run, context)
        passes = 0.0 if key in store else facts.forwards + BACKWARD * facts.backwards
        estimates[run] = passes and passes * forward[network] * context.images(run)
    return estimates


def _forward_seconds(run: Run, context: RunContext) -> float:
    """Return the seconds per image of a forward pass."""
    domain = context.domain(run, run.domains[0])
    count = min(TRIAL, run.batch_size, domain.count)
    x = domain.batch(torch.arange(count), context.device).contiguous(memory_format=torch.channels_last)
    model = context.model(run.model)
    with torch.inference_mode():
        # The minimum: the first pass prepares, and others may be disturbed.
        return min(timeit.repeat(lambda: float(model(x).sum()), repeat=4, number=1)) / count
