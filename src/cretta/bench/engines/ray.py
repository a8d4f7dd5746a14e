"""Workers that are tasks on a Ray cluster, an existing one or one of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from queue import SimpleQueue
from tempfile import gettempdir
from threading import Thread
from typing import Any, Self

from cretta.bench.context import RunContext
from cretta.bench.engines.worker import Ended, Event, Lost, Task, Work
from cretta.errors import OptionError, StateError

OBJECTS = 100 * 2**20
"""Bytes of Ray's object store on this machine: results are small."""
PROCESS = 2**30
"""Bytes of a process with PyTorch and some images, without a model."""
COPIES = 4
"""How often the weights of a model are in memory: itself, θ, φ, and weights in the layout of the kernels."""
LOOPBACK = "127.0.0.1"
STARTS = 3
SLOW = "timed out during startup"
"""What Ray raises when a node does not start in time, on a machine that is busy with other work; it is then started
again, so often."""
SECONDS = "100"
"""How long Ray waits for the control process of its cluster, in place of 30 s; as long if that process has died."""
MANY = 1000
"""Runs that are submitted at most; the cluster starts as many as it has room for."""


class RayWorkers:
    """Runs as Ray tasks, each with the resources that its model needs."""

    def __init__(self, work: Work, context: RunContext, count: int | None, address: str | None) -> None:
        self.capacity = count or MANY
        self._work = work
        self._context = context
        self._count = count
        self._address = address or os.environ.get("RAY_ADDRESS")
        self._tasks: dict[Any, Task] = {}
        self._memory = cache(self._memory_of)

    def __enter__(self) -> Self:
        try:
            import ray
        except ImportError as error:
            raise OptionError("engine='ray' needs Ray, which is not installed: pip install 'cretta[ray]'.") from error
        self._ray = ray
        try:
            self._connect(ray.init)
        except Exception as error:  # Ray raises a bare Exception, too
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            if self._address is None:
                raise StateError(
                    f"a Ray cluster cannot be started on this machine: {reason.rstrip('.')}. Ray's logs may say why: "
                    f"session_latest/logs in the folder ray of {gettempdir()}, or of RAY_TMPDIR."
                ) from error
            raise StateError(
                f"address={self._address!r}: a Ray cluster cannot be reached there ({reason}); start one by `ray start "
                "--head`, set RAY_AUTH_MODE=token if it asks for a token, or leave the address out to use this machine."
            ) from error
        self._execute = ray.remote(_execute)  # sent to the workers once, not with every run
        return self

    def _connect(self, init: Callable[..., object]) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
        if self._address is not None:
            init(self._address, **quiet)
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", SECONDS)
        cores = (self._count or os.cpu_count() or 1) * self._work.threads
        own: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": OBJECTS}
        own["_node_ip_address"] = LOOPBACK  # one machine: nothing depends on the name or network of it
        for attempt in range(1, STARTS + 1):
            try:
                init("local", **own, **quiet)
                return
            except Exception as error:
                if attempt == STARTS or SLOW not in str(error):
                    raise

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def submit(self, task: Task) -> None:
        """Start a task. It is not retried by Ray: the caller does, and counts how often."""
        options = {
            "num_cpus": self._work.threads,
            "num_gpus": int(self._work.device.startswith("cuda")),
            "memory": self._memory(task.run.model),
            "max_retries": 0,
            "num_returns": "streaming",
            "name": f"{task.run.method} {task.run.domains[0]}",
        }
        self._tasks[self._execute.options(**options).remote(self._work, task)] = task

    def event(self) -> tuple[Task, Event]:
        """Wait for the next report of a task, or its end."""
        exceptions = self._ray.exceptions
        (reports, *_), _ = self._ray.wait(list(self._tasks), num_returns=1, fetch_local=False)
        task = self._tasks.pop(reports)
        try:
            event: Event = self._ray.get(next(reports))
        except exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except (exceptions.RayError, StopIteration) as error:
            return task, Lost(str(error).strip().split("\n")[0] or type(error).__name__)
        if not isinstance(event, Ended):
            self._tasks[reports] = task  # at the end: others come first
        return task, event

    def _memory_of(self, model: str) -> int:
        weights = self._context.model(model).state_dict().values()
        return PROCESS + COPIES * sum(int(value.nbytes) for value in weights if hasattr(value, "nbytes"))


def _execute(work: Work, task: Task) -> Iterator[Event]:
    """Execute a run in another thread, and yield its reports when they come."""
    reports: SimpleQueue[Event | BaseException | None] = SimpleQueue()

    def execute() -> None:
        try:
            work.execute(task, reports.put)
            reports.put(None)
        except BaseException as error:
            reports.put(error)

    Thread(target=execute, daemon=True).start()
    while (report := reports.get()) is not None:
        if isinstance(report, BaseException):
            raise report
        yield report
