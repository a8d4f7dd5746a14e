"""What a worker does: it executes runs, and reports what happens."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from cretta.accelerate import kernel_setting
from cretta.bench.context import RunContext
from cretta.bench.execute import execute
from cretta.bench.grid import Listener, result_of
from cretta.bench.result import BatchRow, Result
from cretta.bench.run import Run
from cretta.bench.store import Store
from cretta.errors import StateError
from cretta.storage import atomic_write

IDENTITY = ".identity"
"""A file by which a worker on another machine knows whether it sees the folder of the store."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A run to execute, and the key of its result."""

    run: Run
    key: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run is finished; ``result`` is None if another process works on it."""

    result: Result | None
    stored: bool


@dataclasses.dataclass(frozen=True)
class Lost:
    """The worker of a run has ended before the run."""

    reason: str


Event = int | BatchRow | Ended | Lost
"""A run of so many images has begun; a batch is finished; the run is finished; its worker is lost."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What all runs of a grid share."""

    store: Path
    identity: str
    """A worker that reads the same in the store claims and stores its runs itself, as every process on a store."""
    root: Path | None
    device: str
    threads: int
    kernels: str
    """The setting of the custom CPU kernels where the command was started: a Ray node does not inherit it."""
    folder: str
    """The folder that relative paths start from."""
    path: tuple[str, ...]
    """Where Python looks for modules, such as that of the user's own network."""

    @classmethod
    def on(cls, store: Store, context: RunContext, threads: int) -> Work:
        """Return the work on a store; its identity is written if it has none yet."""
        folder = store.folder.absolute()
        identity = folder / IDENTITY
        if not identity.exists():
            with atomic_write(identity) as temporary:
                temporary.write_text(uuid.uuid4().hex)
        root = None if context.root is None else context.root.absolute()
        path = tuple(entry for entry in sys.path if entry)
        device = str(context.device)
        return cls(folder, identity.read_text(), root, device, threads, kernel_setting(), os.getcwd(), path)

    def execute(self, task: Task, report: Callable[[Event], None]) -> None:
        """Execute a run in this process, and report what happens."""
        torch.set_num_threads(self.threads)
        context = _context(self)
        key = context.key(task.run)
        if key != task.key:
            raise StateError(
                f"{platform.node()}: the model or the images of {task.run.method} on {task.run.domains[0]} differ from "
                "those where the command was started; install the same files on all machines."
            )
        listener = _Reports(report)
        identity = self.store / IDENTITY
        if identity.is_file() and identity.read_text() == self.identity:
            result = result_of(task.run, key, Store(self.store), context, listener)
            if result is None:
                report(Ended(None, stored=False))
            return
        listener.begins(task.run, context.images(task.run))
        result = execute(task.run, context, progress=report)
        listener.ends(task.run, result, stored=False)


class _Reports(Listener):
    def __init__(self, report: Callable[[Event], None]) -> None:
        self._report = report

    def begins(self, run: Run, images: int) -> None:
        self._report(images)

    def batch(self, run: Run, row: BatchRow) -> None:
        self._report(row)

    def ends(self, run: Run, result: Result, *, stored: bool) -> None:
        self._report(Ended(result, stored))


@cache
def _context(work: Work) -> RunContext:
    """Return what the runs of this process share: networks, images and adapters are opened once."""
    sys.path.extend(entry for entry in work.path if entry not in sys.path and os.path.exists(entry))
    if os.path.isdir(work.folder):
        os.chdir(work.folder)
    os.environ["CRETTA_KERNELS"] = work.kernels
    return RunContext(work.root, work.device)
