"""Estimate how long runs take, from the time of stored runs or of a forward pass."""

from __future__ import annotations

import timeit
from collections.abc import Sequence
from statistics import median

import torch

from cretta.bench.context import RunContext
from cretta.bench.result import Result
from cretta.bench.run import Run
from cretta.bench.store import Store
from cretta.methods import get

TRIAL = 32
"""Images in the pass that is timed, at most."""


def passes(run: Run) -> float:
    """Return how many forward passes of an image take as long as its step."""
    return get(run.method).facts.cost


def estimate(runs: Sequence[Run], store: Store, context: RunContext) -> dict[Run, float]:
    """Return the seconds that each run will take, 0 for those in the store; mostly within a factor of two or three.

    The speed is that of stored runs of the same network, best of the same method; without any, a forward pass is timed.
    All runs are validated before that.
    """
    keys = {run: context.key(run) for run in runs}
    stored = {run: store.get(key) for run, key in keys.items()}
    speeds: dict[tuple[str, str, int | None], dict[str, float]] = {}
    for run, result in stored.items():
        known = speeds.setdefault(_network(run), {})
        if run.method not in known and result and (seconds := _pass_seconds(result)):
            known[run.method] = seconds
    estimates = dict.fromkeys(runs, 0.0)
    for run in (run for run, result in stored.items() if result is None):
        known = speeds[_network(run)]
        if not known:
            known["forward pass"] = _forward_seconds(run, context)
        estimates[run] = known.get(run.method, median(known.values())) * passes(run) * context.images(run)
    return estimates


def _network(run: Run) -> tuple[str, str, int | None]:
    return run.model, run.data, run.size


def _pass_seconds(result: Result) -> float:
    """Return the seconds per image of a forward pass, as the batches of a stored run took."""
    return median(row.seconds / row.images for row in result.rows) / passes(result.run)


def _forward_seconds(run: Run, context: RunContext) -> float:
    """Return the seconds per image of a forward pass."""
    domain = context.domain(run, run.domains[0])
    count = min(TRIAL, run.batch_size, domain.count)
    x = domain.batch(torch.arange(count), context.device).contiguous(memory_format=torch.channels_last)
    model = context.model(run.model)
    with torch.inference_mode():
        # The minimum: the first pass prepares, and others may be disturbed.
        return min(timeit.repeat(lambda: float(model(x).sum()), repeat=4, number=1)) / count
