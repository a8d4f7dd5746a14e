"""Workers that are processes of this machine."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Self, cast

from cretta.bench.engines.worker import Ended, Event, Lost, Task, Work
from cretta.errors import StateError


class LocalWorkers:
    """Processes that each have a pipe of their own: one that is killed leaves no lock behind."""

    def __init__(self, work: Work, count: int) -> None:
        self.capacity = count
        self._work = work
        self._processes: dict[Connection, SpawnProcess] = {}
        self._tasks: dict[Connection, Task] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in self._processes.items():
            pipe.close()
            process.kill()  # what it has not stored is executed again, or resumed, by the next process
            process.join()

    def submit(self, task: Task) -> None:
        """Start a run in a process that has none, or in a new one."""
        pipe = next((pipe for pipe in self._processes if pipe not in self._tasks), None) or self._start()
        self._tasks[pipe] = task
        with suppress(OSError):  # its process has ended: event() reports the task as lost
            pipe.send(task)

    def event(self) -> tuple[Task, Event]:
        """Wait for a message, or for the end of a process."""
        pipe = cast(Connection, wait(self._tasks)[0])
        task = self._tasks[pipe]
        try:
            event = pipe.recv()
        except (EOFError, OSError):
            process = self._processes.pop(pipe)
            process.join()
            event = Lost(f"its process ended with code {process.exitcode}")
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Ended | Lost):
            del self._tasks[pipe]
        return task, event

    def _start(self) -> Connection:
        spawning = multiprocessing.get_context("spawn")
        pipe, other = spawning.Pipe()
        process = spawning.Process(target=_serve, args=(other, self._work), daemon=True)
        process.start()
        other.close()  # the worker has the only one, so that its end is noticed
        self._processes[pipe] = process
        return pipe


def _portable(error: Exception) -> Exception:
    """Return the error, or one with its text, if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return StateError(f"{type(error).__name__}: {error}")
    return error


def _serve(pipe: Connection, work: Work) -> None:
    """Execute the runs that come through the pipe, until the process at its other end closes it or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends its workers
    try:
        while True:
            task = pipe.recv()
            try:
                work.execute(task, pipe.send)
            except (BrokenPipeError, ConnectionError):
                return
            except Exception as error:
                pipe.send(_portable(error))
    except (EOFError, OSError):
        return
