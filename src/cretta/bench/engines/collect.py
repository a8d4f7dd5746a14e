"""Engines by name, and the loop that hands runs to workers and collects their results."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from cretta.bench.context import RunContext
from cretta.bench.engines.worker import Ended, Event, Lost, Task, Work
from cretta.bench.estimate import passes
from cretta.bench.grid import WAIT, Listener, run_all, sorted_keys
from cretta.bench.result import Result
from cretta.bench.run import Run
from cretta.bench.store import Store
from cretta.errors import DistributedError, OptionError
from cretta.options import unknown

ENGINES = ("serial", "local", "ray")
LOSSES = 3
"""How often a run is started again after its worker was lost."""


class Workers(Protocol):
    """Processes that execute runs."""

    capacity: int
    """How many runs may be under way."""

    def submit(self, task: Task) -> None:
        """Start a run."""

    def event(self) -> tuple[Task, Event]:
        """Wait until something happens to a run that is under way; raise what a run raises."""


@dataclasses.dataclass(frozen=True)
class Engine:
    """How runs are executed: by which kind of workers, how many, and with how many threads each."""

    name: str
    workers: int | None
    """None is as many as fit the cluster."""
    threads: int
    address: str | None

    def run_all(
        self, runs: Sequence[Run], store: Store, context: RunContext, listener: Listener | None = None
    ) -> Iterator[tuple[Run, Result]]:
        """Do what :func:`cretta.bench.run_all` does, by these workers; the results are the same, bit for bit."""
        if self.name == "serial":
            torch.set_num_threads(self.threads)
            yield from run_all(runs, store, context, listener)
            return
        listener = listener or Listener()
        keys = sorted_keys(runs, context)
        missing: list[Task] = []
        for run, key in keys.items():
            result = store.get(key)
            if result is None:
                missing.append(Task(run, key))
            else:
                listener.ends(run, result, stored=True)
                yield run, result
        if missing:
            # The longest first: with a long one at the end, most workers would wait for it.
            due = deque(sorted(missing, key=lambda task: -passes(task.run) * context.images(task.run)))
            work = Work.on(store, context, self.threads)
            with self._start(work, context) as workers:
                yield from collect(due, workers, store, listener)

    def _start(self, work: Work, context: RunContext) -> AbstractContextManager[Workers]:
        if self.name == "ray":
            from cretta.bench.engines.ray import RayWorkers

            return RayWorkers(work, context, self.workers, self.address)
        from cretta.bench.engines.local import LocalWorkers

        return LocalWorkers(work, self.workers or 1)


def engine(
    name: str = "serial", *, workers: int | None = None, threads: int | None = None, address: str | None = None
) -> Engine:
    """Return an engine by its name; raise, before any work, if options do not fit together.

    ``threads`` are those of each worker: by default one, and with "serial" as many as PyTorch takes. ``workers`` are by
    default as many as there are cores, or as fit the cluster.
    """
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if workers is not None and name == "serial":
        raise OptionError(f"workers={workers}: engine='serial' works in one process; use engine='local' or 'ray'.")
    if address is not None and name != "ray":
        raise OptionError(f"address={address!r} is that of a Ray cluster; use engine='ray' with it.")
    if name != "ray":
        workers = 1 if name == "serial" else workers or os.cpu_count() or 1
    return Engine(name, workers, threads or (torch.get_num_threads() if name == "serial" else 1), address)


def collect(due: deque[Task], workers: Workers, store: Store, listener: Listener) -> Iterator[tuple[Run, Result]]:
    """Keep the workers busy until all runs are done."""
    under_way, losses, busy = 0, Counter[Task](), set[Task]()
    while due or under_way:
        while due and under_way < workers.capacity:
            if due[0] in busy:  # all that are left are worked on by other processes
                time.sleep(WAIT)
                busy.clear()
            workers.submit(due.popleft())
            under_way += 1
        task, event = workers.event()
        if isinstance(event, int):
            listener.begins(task.run, event)
        elif isinstance(event, Lost):
            under_way -= 1
            losses[task] += 1
            if losses[task] > LOSSES:
                raise DistributedError(
                    f"{task.run.method} on {task.run.domains[0]}: {losses[task]} workers were lost while they executed "
                    f"it, the last one because {event.reason}. It may need more memory than a worker has."
                )
            due.appendleft(task)
        elif not isinstance(event, Ended):
            listener.batch(task.run, event)
        elif event.result is None:
            under_way -= 1
            busy.add(task)
            due.append(task)
        else:
            under_way -= 1
            busy.clear()
            if store.get(task.key) is None:  # the worker cannot write to the folder of this store
                store.put(event.result)
            listener.ends(task.run, event.result, stored=event.stored)
            yield task.run, event.result
