"""Many runs: each is done once, whoever works on the store, and whatever was cut off before."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from cretta.bench.execute import SAVE_EVERY, execute, operations_of
from cretta.bench.result import BatchRow, Result
from cretta.bench.run import Run
from cretta.bench.store import Store, provenance
from cretta.bench.workshop import Workshop

WAIT = 0.2
"""Seconds between two looks at runs that other processes work on."""


class Listener(Protocol):
    """Hears how a grid goes on."""

    def begins(self, run: Run, images: int) -> None: ...  # noqa: D102
    def batch(self, run: Run, row: BatchRow) -> None: ...  # noqa: D102
    def ends(self, run: Run, result: Result, *, kept: bool) -> None:
        """``kept`` tells a result that was there from one that was computed."""


class Silent:
    """Hears nothing."""

    def begins(self, run: Run, images: int) -> None: ...  # noqa: D102
    def batch(self, run: Run, row: BatchRow) -> None: ...  # noqa: D102
    def ends(self, run: Run, result: Result, *, kept: bool) -> None: ...  # noqa: D102


def product(base: Run, **axes: Iterable[Any]) -> list[Run]:
    """Every combination of the values, over ``base``; names are fields of a run, or options of the method.

    >>> base = Run(data="embedded", domains=("fog/5",), model="wrn-40-2-cifar10")
    >>> [(run.seed, dict(run.options)) for run in product(base, seed=(0, 1), beta=(0.5, 2.0))]
    [(0, {'beta': 0.5}), (0, {'beta': 2.0}), (1, {'beta': 0.5}), (1, {'beta': 2.0})]
    """
    fields = {field.name for field in dataclasses.fields(Run)}
    made = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        run = dataclasses.replace(base, **{name: value for name, value in chosen.items() if name in fields})
        made.append(run.with_options(**{name: value for name, value in chosen.items() if name not in fields}))
    return made


def run_all(
    runs: Sequence[Run],
    store: Store,
    workshop: Workshop,
    listener: Listener | None = None,
    *,
    save_every: float = SAVE_EVERY,
) -> Iterator[tuple[Run, Result]]:
    """Yields every run with its result as it is done; what the store has is not computed again.

    All runs are checked before the first begins. A long run notes every ``save_every`` seconds how far it is. Those
    that other processes work on are waited for at the end.
    """
    heard = listener or Silent()
    waiting = list(dict.fromkeys(runs))
    keys = {run: _checked_key(run, workshop) for run in waiting}
    # Runs on the same images one after another: they are then made once.
    waiting.sort(key=lambda run: (run.data, run.domains, run.images or 0, run.seed))
    while waiting:
        busy: list[Run] = []
        for run in waiting:
            done = _done(run, keys[run], store, workshop, heard, save_every)
            if done is None:
                busy.append(run)
            else:
                yield run, done
        if len(busy) == len(waiting):
            time.sleep(WAIT)
        waiting = busy


def collect(runs: Sequence[Run], store: Store, workshop: Workshop) -> dict[Run, Result]:
    """The results that the store has of these runs; nothing is computed."""
    found = {run: store.get(_checked_key(run, workshop)) for run in dict.fromkeys(runs)}
    return {run: result for run, result in found.items() if result is not None}


def _checked_key(run: Run, workshop: Workshop) -> str:
    workshop.check(run)
    return run.key(workshop.materials(run))


def _done(run: Run, key: str, store: Store, workshop: Workshop, heard: Listener, save_every: float) -> Result | None:
    """The run's result, kept or computed; None while another process works on it."""
    kept = store.get(key)
    if kept is None:
        with store.claim(key) as ours:
            if not ours:
                return None
            # It may have been finished between the look and the claim.
            kept = store.get(key)
            if kept is None:
                result = _computed(run, key, store, workshop, heard, save_every)
                store.put(result)
                heard.ends(run, result, kept=False)
                return result
    store.forget(key)  # a process that was killed after it had saved the result leaves its notes
    heard.ends(run, kept, kept=True)
    return kept


def _computed(run: Run, key: str, store: Store, workshop: Workshop, heard: Listener, save_every: float) -> Result:
    heard.begins(run, workshop.images(run))
    done = execute(
        run,
        workshop,
        progress=lambda row: heard.batch(run, row),
        unfinished=store.unfinished(key),
        save_every=save_every,
    )
    return Result(
        key=key,
        run=run.describe(),
        rows=done.rows,
        clean_after=done.clean_after,
        cost={**operations_of(run, workshop), "peak_megabytes": done.peak_bytes / 2**20},
        provenance=provenance(workshop.materials(run), workshop.device),
    )
