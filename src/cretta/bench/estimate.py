"""Estimate how long runs take: from results in the store, otherwise from the time of a forward pass."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import torch

from cretta.bench.context import RunContext
from cretta.bench.execute import COUNTED
from cretta.bench.result import Result
from cretta.bench.run import Run
from cretta.bench.store import Store
from cretta.methods import get

BACKWARD = 1.4
"""Cost of a backward pass for γ and β, in forward passes."""
TRIAL = 32
"""Images in the pass that is timed, at most."""


def estimate(runs: Sequence[Run], store: Store, context: RunContext) -> dict[Run, float]:
    """Return the seconds that each run will take, 0 for those in the store; mostly within a factor of two.

    All runs are validated before anything is timed.
    """
    keys = {run: context.key(run) for run in runs}
    known = _seconds_per_image(store)
    counted: set[Run] = set()
    forward: dict[tuple[str, str, int | None], float] = {}
    estimates = {}
    for run, key in keys.items():
        if key in store:
            estimates[run] = 0.0
            continue
        seconds = known.get((run.data, run.model, run.method, run.batch_size))
        if seconds is None:
            network = (run.model, run.data, run.size)
            if network not in forward:
                forward[network] = _forward_seconds(run, context)
            facts = get(run.method).facts
            seconds = forward[network] * (facts.forwards + BACKWARD * facts.backwards)
        # Operations are counted once for each setting, in three steps of a few images.
        setting = dataclasses.replace(run.without_stream(), seed=0)
        counting = 0 if setting in counted else 3 * min(COUNTED, run.batch_size)
        counted.add(setting)
        estimates[run] = seconds * (context.images(run) + run.clean_after + counting)
    return estimates


def _seconds_per_image(store: Store) -> dict[tuple[str, str, str, int], float]:
    """Return the seconds per image of the results in the store, by the settings that mostly decide them."""
    groups: dict[tuple[str, str, str, int], list[Result]] = {}
    for result in store:
        run = result.run
        groups.setdefault((run.data, run.model, run.method, run.batch_size), []).append(result)
    return {
        key: sum(result.of().seconds for result in results) / sum(result.of().images for result in results)
        for key, results in groups.items()
    }


def _forward_seconds(run: Run, context: RunContext) -> float:
    """Return the seconds per image of a forward pass."""
    domain = context.domain(run, run.domains[0])
    count = min(TRIAL, run.batch_size, domain.count)
    x = domain.batch(torch.arange(count), context.device).contiguous(memory_format=torch.channels_last)
    model = context.model(run.model)
    times = []
    with torch.inference_mode():
        for _ in range(4):
            begun = time.perf_counter()
            float(model(x).sum())
            times.append(time.perf_counter() - begun)
    # The minimum: the first pass prepares, and others may be disturbed.
    return min(times) / count
