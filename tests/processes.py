"""Processes that are stopped at a point of their work, never at a point in time: no result depends on speed."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

LONG = 1800.0
"""Seconds after which a wait counts as a hang. Nothing that works takes so long, however busy the machine is."""
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])),
}
"""For a process that imports this module."""

Stop = tuple[str, int, int]
"""A function as "module:Class.method", the number of its call, and the signal sent there."""


def command(*arguments: object, stop: Stop | None = None) -> list[str]:
    """Return the command line of cretta in a new process, which sends itself a signal where ``stop`` says."""
    code = "from cretta.cli import app; app()"
    if stop is not None:
        function, call, how = stop
        code = f"import processes; processes.signal_in({function!r}, {call}, {int(how)}); {code}"
    return [sys.executable, "-c", code, *map(str, arguments)]


def run(
    command: Sequence[object], *, env: dict[str, str] | None = None, cwd: str | Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a new interpreter, to its end; `forks.run` does the same without importing PyTorch again."""
    arguments = list(map(str, command))
    return subprocess.run(arguments, env=env, cwd=cwd, capture_output=True, text=True, timeout=LONG, check=False)


def signal_at(call: int, how: int) -> Callable[..., None]:
    """Return a function that sends this process the signal ``how`` when it is called for the ``call``-th time."""
    calls, lock = itertools.count(1), threading.Lock()

    def count(*_: object) -> None:
        with lock:  # no other thread passes while the signal is sent
            if next(calls) == call:
                os.kill(os.getpid(), how)

    return count


def signal_in(function: str, call: int, how: int) -> None:
    """Send this process the signal ``how`` when the ``call``-th call of ``function`` begins."""
    module, _, path = function.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    original, count = getattr(owner, name), signal_at(call, how)

    @functools.wraps(original)
    def counted(*arguments: Any, **options: Any) -> Any:
        count()
        return original(*arguments, **options)

    setattr(owner, name, counted)
    if how == signal.SIGINT:  # which a process ignores that a shell has started in the background
        signal.signal(how, signal.default_int_handler)


def on_every_call(count: Callable[[], object]) -> None:
    """Call ``count`` at each function call of this thread from now on: a clock that runs with the work."""

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            count()

    sys.setprofile(profile)
