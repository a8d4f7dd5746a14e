"""How long runs will take: by what the store remembers, else by a forward pass and how many a method makes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import torch

from cretta.bench.execute import COUNTED
from cretta.bench.result import Result
from cretta.bench.run import Run
from cretta.bench.store import Store
from cretta.bench.workshop import Workshop
from cretta.methods import get

BACKWARD = 1.4
"""A pass back for γ and β, in forward passes."""
TRIAL = 32
"""Images in the pass that is timed, at most."""


def estimate(runs: Sequence[Run], store: Store, workshop: Workshop) -> dict[Run, float]:
    """Seconds that each run will take, 0 for those the store has. Guesses: within a factor of two, mostly."""
    known = _known(store)
    counted: set[Run] = set()
    forward: dict[tuple[str, str, int | None], float] = {}
    found = {}
    for run in dict.fromkeys(runs):
        if run.key(workshop.materials(run)) in store:
            found[run] = 0.0
            continue
        each = known.get((run.data, run.model, run.method, run.batch_size))
        if each is None:
            place = (run.model, run.data, run.size)
            if place not in forward:
                forward[place] = _forward(run, workshop)
            facts = get(run.method).facts
            each = forward[place] * (facts.forwards + BACKWARD * facts.backwards)
        # Operations are counted once for each setting, in three steps of a few images.
        setting = dataclasses.replace(run, domains=("any",), stream="iid", delta=None, clean_after=0, seed=0)
        counting = 0 if setting in counted else 3 * min(COUNTED, run.batch_size)
        counted.add(setting)
        found[run] = each * (workshop.images(run) + run.clean_after + counting)
    return found


def _known(store: Store) -> dict[tuple[str, str, str, int], float]:
    """Seconds an image, by what mostly decides them."""
    found: dict[tuple[str, str, str, int], list[Result]] = {}
    for result in store:
        run = result.run
        found.setdefault((run["data"], run["model"], run["method"], run["batch_size"]), []).append(result)
    return {
        key: sum(each.of().seconds for each in results) / sum(each.of().images for each in results)
        for key, results in found.items()
    }


def _forward(run: Run, workshop: Workshop) -> float:
    """Seconds an image, forwards."""
    domain = workshop.domain(run, run.domains[0])
    count = min(TRIAL, run.batch_size, domain.count)
    x = domain.batch(torch.arange(count)).to(workshop.device, memory_format=torch.channels_last)
    model = workshop.model(run.model)
    times = []
    with torch.inference_mode():
        for _ in range(4):
            begun = time.perf_counter()
            float(model(x).sum())
            times.append(time.perf_counter() - begun)
    # The least: the first pass prepares, and others are disturbed.
    return min(times) / count
