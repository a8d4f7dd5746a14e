"""Many runs: each is computed once, however many processes work on the store and whatever was interrupted before."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from cretta.bench.benchmarks import Benchmark
from cretta.bench.context import RunContext
from cretta.bench.execute import execute
from cretta.bench.result import BatchRow, Result
from cretta.bench.run import Run, Scalar
from cretta.bench.store import Store
from cretta.data.corruptions import SEVERITIES
from cretta.data.domains import CLEAN, Domain
from cretta.errors import OptionError
from cretta.methods import get

WAIT = 0.2
"""Seconds between two checks of runs that other processes work on."""


class Listener:
    """Is called while runs are executed; override what is of interest."""

    def begins(self, run: Run, images: int) -> None:
        """A run of so many images begins."""

    def batch(self, run: Run, row: BatchRow) -> None:
        """A batch is finished."""

    def ends(self, run: Run, result: Result, *, stored: bool) -> None:
        """A run is finished; ``stored`` if its result was in the store already."""


def expand(
    base: Run,
    benchmark: Benchmark,
    *,
    shifts: Sequence[str],
    severities: Sequence[int] | None = None,
    stream: str = "iid",
    delta: float | None = None,
    options: Mapping[str, Sequence[Mapping[str, Scalar]]],
    preset: str | None = None,
    seeds: Sequence[int] = (0,),
) -> list[Run]:
    """Return the runs of every combination of streams, methods and seeds, over ``base``.

    ``shifts`` are "clean", "fog/5", "fog" at each of the ``severities`` (by default 5), a domain of the benchmark, or
    "all". Streams that take several domains take all of them; a gradual stream goes through all severities of one
    corruption. ``options`` has the options to try of each method; ``preset`` is by default the method's for the
    benchmark.
    """
    streams = _streams(stream, _domains(shifts, severities or (5,), benchmark), severities)
    own = benchmark.preset
    presets = {name: own if preset is None and own in get(name).presets else preset for name in options}
    methods = [
        dataclasses.replace(base, method=name, preset=presets[name], options=tuple(values.items()))
        for name, combinations in options.items()
        for values in combinations
    ]
    return [
        dataclasses.replace(method, stream=stream, delta=delta, domains=domains, seed=seed)
        for domains in streams
        for method in methods
        for seed in seeds
    ]


def _domains(shifts: Sequence[str], severities: Sequence[int], benchmark: Benchmark) -> list[Domain]:
    """Return the domains, with a severity where they need one."""
    domains: list[Domain] = []
    for shift in shifts:
        for domain in map(Domain.parse, benchmark.domains if shift == "all" else (shift,)):
            complete = domain.name == CLEAN or domain.severity is not None or benchmark.corruptions == "none"
            domains += [domain] if complete else [Domain(domain.name, severity) for severity in severities]
    return list(dict.fromkeys(domains))


def _streams(stream: str, domains: Sequence[Domain], severities: Sequence[int] | None) -> list[tuple[Domain, ...]]:
    """Return the domains of each stream."""
    if stream == "gradual":
        if severities:
            raise OptionError(
                f"severity={severities[0]}, stream='gradual': it goes through all severities; leave it out."
            )
        corruptions = dict.fromkeys(domain.name for domain in domains if domain.name != CLEAN)
        if not corruptions:
            raise OptionError("stream='gradual': expected a corruption to go through; give one, such as fog.")
        clean = Domain(CLEAN)
        return [(clean, *(Domain(name, severity) for severity in SEVERITIES), clean) for name in corruptions]
    if stream in ("continual", "mixed"):
        return [tuple(domains)]
    return [(domain,) for domain in domains]


def run_all(
    runs: Sequence[Run], store: Store, context: RunContext, listener: Listener | None = None
) -> Iterator[tuple[Run, Result]]:
    """Yield every run with its result as it is finished; what is in the store is not computed again.

    All runs are validated before the first begins. Runs that other processes work on come last.
    """
    listener = listener or Listener()
    keys = sorted_keys(runs, context)
    waiting = list(keys)
    while waiting:
        busy: list[Run] = []
        for run in waiting:
            result = result_of(run, keys[run], store, context, listener)
            if result is None:
                busy.append(run)
            else:
                yield run, result
        if len(busy) == len(waiting):
            time.sleep(WAIT)
        waiting = busy


def sorted_keys(runs: Sequence[Run], context: RunContext) -> dict[Run, str]:
    """Return the keys of valid runs, those on the same images one after another: these are then read once."""
    keys = {run: context.key(run) for run in runs}
    order = sorted(keys, key=lambda run: (run.data, str(run.domains), run.images or 0, run.seed))
    return {run: keys[run] for run in order}


def result_of(run: Run, key: str, store: Store, context: RunContext, listener: Listener) -> Result | None:
    """Return the stored or computed result; None while another process works on it."""
    result = store.get(key)
    if result is None:
        with store.claim(key) as claimed:
            if not claimed:
                return None
            # It may have been finished between the first look and the claim.
            result = store.get(key)
            if result is None:
                listener.begins(run, context.images(run))
                result = execute(run, context, progress=partial(listener.batch, run))
                store.put(result)
                listener.ends(run, result, stored=False)
                return result
    listener.ends(run, result, stored=True)
    return result
