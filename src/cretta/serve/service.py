"""The service: adapter, queue, writer, snapshots, metrics and page behind one object."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cretta.data.dataset import count_workers
from cretta.errors import StateError
from cretta.monitor import Monitor
from cretta.serve import observe
from cretta.serve.decode import ImageFormat
from cretta.serve.live import Live
from cretta.serve.metrics import Metrics
from cretta.serve.observe import Observation
from cretta.serve.queue import ImageQueue
from cretta.serve.refusal import Refusal
from cretta.serve.requests import Image, Item, Prediction, Request, resolve
from cretta.serve.settings import Settings
from cretta.serve.snapshots import Snapshot, Snapshots
from cretta.serve.writer import Writer

if TYPE_CHECKING:
    from cretta.adapter import Adapter

logger = logging.getLogger(__name__)
Value = TypeVar("Value")
RETRY_SNAPSHOT = 10
"""Steps until the next try after a snapshot that could not be written."""
SNAPSHOT_SECONDS = 10.0
"""For the last batch and snapshot, at least."""


class Service:
    """Serves one adapter. Everything that changes the adapter runs in the writer's thread."""

    def __init__(
        self,
        adapter: Adapter[Any],
        images: ImageFormat,
        *,
        folder: str | Path,
        settings: Settings,
        name: str = "cretta",
        labels: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.adapter = adapter
        self.images = images
        self.settings = settings
        self.name = name
        self.labels = tuple(labels)
        self.run = secrets.token_hex(4)
        """Names this process in answers: sequence numbers start at 0 in each."""
        self.outputs = 0
        """Classes of the model."""
        self.reference: dict[str, float] = {}
        self.snapshots = Snapshots(Path(folder), settings.snapshots)
        self.queue = ImageQueue(settings.queue, int(settings.when_full))
        self.metrics = Metrics(lambda: len(self.queue))
        self.live = Live(settings.recent)
        self.writer = Writer(
            adapter,
            self.queue,
            batch_size=settings.batch_size,
            wait=settings.wait_ms / 1000,
            after=self._after,
            waited=self.metrics.queue_seconds.observe,
            clock=clock,
        )
        self.stopping = False
        """Whether readiness is withdrawn."""
        self._deadline: float | None = None
        """When accepted requests have to be answered, once the service drains."""
        self._gave_up = False
        """Whether requests were left without an answer then."""
        self.snapshot_error = ""
        self._monitor: Monitor | None = None
        self._saved_step = 0
        self._started = False
        self.clean: bool | None = None
        """Whether the service ended with all requests answered and the state saved; None before."""
        self._pool = ThreadPoolExecutor(count_workers(None), thread_name_prefix="cretta-decode")
        self._stack = ExitStack()

    # Life.

    def start(self) -> None:
        """Lock the folder, restore the newest good snapshot, and start the writer, unless that was done before."""
        if self._started:
            return
        self._stack.enter_context(self.snapshots.opened(self.adapter))
        try:
            source, self.outputs = observe.probe(self.adapter, self.images.size)
            self.reference = observe.reference_values(source)
            self._monitor = Monitor(self.adapter, source=source, window=self.settings.window)
            restored = self.snapshots.restore_newest(self.adapter)
        except BaseException:
            self._stack.close()
            raise
        if restored is not None:
            self.writer.batch, self.writer.step = restored.batch, restored.step
            self._saved_step = restored.step
            self.live.event("restored", f"started from {restored.name}")
        self.writer.start()
        self._started = True
        facts = {"run": self.run, "snapshot": restored.name if restored else None, "step": self.writer.step}
        logger.info("ready", extra={"facts": facts})

    def withdraw(self) -> None:
        """Report that the service is not ready any more; requests are still served."""
        if not self.stopping:
            logger.info("stopping", extra={"facts": {"waiting": len(self.queue)}})
        self.stopping = True

    def drain(self) -> None:
        """Accept no requests from now on; those that were accepted have ``drain`` seconds."""
        self.queue.drain()
        if self._deadline is None:
            self._deadline = time.monotonic() + self.settings.drain

    def give_up(self) -> None:
        """Refuse what is still waiting at the end of that time."""
        waiting = self.queue.clear()
        self._gave_up = self._gave_up or bool(waiting)
        resolve(waiting, Refusal(503, "the service stopped before it could answer.", retry_after=5))

    def stop(self) -> bool:
        """Answer what was accepted, save a snapshot and end; return whether all was done within the time."""
        if not self._started or self.clean is not None:
            return self.clean is not False
        self.withdraw()
        self.drain()
        assert self._deadline is not None
        saved: list[Snapshot | None] = []
        # In the writer's thread, which no signal and no cancellation interrupts.
        left = max(SNAPSHOT_SECONDS, self._deadline - time.monotonic())
        done = self.writer.stop(left, lambda: saved.append(self._save("shutdown")))
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._stack.close()
        self.clean = done and not self._gave_up and len(saved) == 1 and saved[0] is not None
        counts = {"accepted": self.queue.sequence, "batches": self.writer.batch, "step": self.writer.step}
        logger.info("stopped", extra={"facts": {**counts, "clean": self.clean}})
        return self.clean

    @property
    def alive(self) -> bool:
        """Whether the writer's loop shows signs of life."""
        return self.writer.silence() <= self.settings.stuck

    @property
    def ready(self) -> bool:
        """Whether requests are accepted."""
        return self._started and self.alive and not self.stopping

    # Requests.

    async def decode(self, work: Callable[[], Value]) -> Value:
        """Run ``work`` in the threads that decode images."""
        decoding = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.wait_for(decoding, self.settings.timeout)
        except TimeoutError:
            raise Refusal(504, "the images waited too long to be decoded; try again later.", retry_after=1) from None

    async def predict(
        self, images: Sequence[Image], *, adapt: bool, gone: Callable[[], Awaitable[object]]
    ) -> list[Prediction]:
        """Return the predictions of one request's images; ``gone`` returns when its client has gone."""
        if not self._started:
            raise Refusal(503, "the service has not started: its lifespan was not run.")
        request = Request(images, adapt=adapt)
        self.queue.put(request)
        leaving = asyncio.ensure_future(gone())
        try:
            futures: set[asyncio.Future[Any]] = {request.future, leaving}
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait(futures, timeout=self.settings.timeout, return_when=first)
            if not request.future.done() and not leaving.done() and not self.queue.drop(request):
                # All images are in a batch already: the answer is on its way.
                await asyncio.wait(futures, timeout=self.settings.stuck, return_when=first)
            if request.future.done():
                return request.future.result()
            if leaving.done():
                raise Refusal(499, "the client has gone.")
            raise Refusal(504, "the request waited too long for its batch; try again later.", retry_after=1)
        finally:
            left = leaving.done()
            leaving.cancel()
            if not request.future.done() or request.future.cancelled() or request.future.exception() is not None:
                dropped = self.queue.drop(request)
                if left:
                    self.metrics.dropped.inc(dropped)
                request.future.cancel()

    def _after(self, seen: Observation, items: Sequence[Item], predictions: Sequence[Prediction]) -> None:
        """Publish a batch and, if one is due, save a snapshot; in the writer's thread."""
        if self._monitor is not None and seen.batch % self.settings.monitor_every == 0:
            known = self._monitor.summary()
            if known.window >= min(self.settings.monitor_after, self.settings.window):
                seen = dataclasses.replace(
                    seen, accuracy=known.estimates, source_accuracy=known.source_estimates, drift=known.input_drift
                )
        self.metrics.observe(seen)
        self.live.add(seen, items, predictions)
        if seen.guard:
            logger.warning("guard", extra={"facts": {"batch": seen.batch, "message": seen.guard}})
        every = self.settings.snapshot_every
        if every and self.writer.step - self._saved_step >= every:
            self._save("periodic")

    # Commands, in the writer's thread.

    async def command(self, name: str, snapshot: str | None = None) -> dict[str, Any]:
        """Let the writer save a snapshot, roll back or reset; return the state afterwards."""
        commands: dict[str, Callable[[], None]] = {
            "snapshot": self._snapshot,
            "rollback": lambda: self._rollback(snapshot),
            "reset": self._reset,
        }
        future = asyncio.wrap_future(self.writer.submit(commands[name]))
        try:
            await asyncio.wait_for(asyncio.shield(future), self.settings.stuck)
        except TimeoutError:
            raise Refusal(504, f"the model is busy; {name} is done after its batch.") from None
        if name != "snapshot":  # which is logged where it is saved
            logger.info(name, extra={"facts": {"batch": self.writer.batch, "step": self.writer.step}})
        return self.state()

    def _snapshot(self) -> None:
        if self._save("request") is None:
            raise Refusal(507, f"the snapshot was not written: {self.snapshot_error}")

    def _rollback(self, name: str | None) -> None:
        stored = self.snapshots.all()
        if not stored:
            raise Refusal(409, "there is no snapshot to roll back to; POST /state/snapshot saves one.")
        chosen = next((item for item in stored if name in (None, item.name)), None)
        if chosen is None:
            names = ", ".join(item.name for item in stored)
            raise Refusal(409, f"expected the name of a snapshot, got {name!r}; there are: {names}.")
        try:
            self.snapshots.restore(self.adapter, chosen)
        except StateError as error:
            raise Refusal(409, f"{error} The model is unchanged.") from None
        self.live.event("rollback", f"rolled back to {chosen.name}", batch=self.writer.batch)
        if chosen is not stored[0]:  # so that a restart does not begin with a newer one
            self._save_after("rollback")

    def _reset(self) -> None:
        self.adapter.reset()
        self.live.event("reset", "reset to the source model", batch=self.writer.batch)
        self._save_after("reset")

    def _save_after(self, command: str) -> None:
        if self._save(command) is None:
            message = f"the {command} is done, but not saved: {self.snapshot_error}"
            raise Refusal(507, f"{message} After a restart the model may be as it was before.")

    def _save(self, reason: str) -> Snapshot | None:
        """Save a snapshot; a failure is reported, and serving continues."""
        try:
            snapshot = self.snapshots.save(self.adapter, self.writer.batch, self.writer.step)
        except Exception as error:  # a full disk, too little memory: the model answers all the same
            self.snapshot_error = str(error) or type(error).__name__
            self.metrics.snapshots.labels("failed").inc()
            self._saved_step = self.writer.step - self.settings.snapshot_every + RETRY_SNAPSHOT
            self.live.event("error", f"snapshot not written: {error}", batch=self.writer.batch)
            logger.error("snapshot not written", extra={"facts": {"error": str(error), "reason": reason}})
            return None
        self.snapshot_error = ""
        self._saved_step = self.writer.step
        self.metrics.snapshots.labels("written").inc()
        self.live.event("snapshot", f"saved {snapshot.name} ({reason})")  # which names the batch
        logger.info("snapshot", extra={"facts": {"snapshot": snapshot.name, "reason": reason}})
        return snapshot

    def state(self) -> dict[str, Any]:
        """Return what an operator asks first."""
        last = self.live.batches[-1][1] if self.live.batches else None
        return {
            "model": self.name,
            "run": self.run,
            "method": self.adapter.name,
            "guard": str(self.adapter.options.guard.action) if self.adapter.options.guard else "off",
            "statistics": self.adapter.statistics,
            "status": "ready" if self.ready else "stopping" if self.stopping else "stuck",
            "batches": self.writer.batch,
            "step": self.writer.step,
            "waiting": len(self.queue),
            "accepted": self.queue.sequence,
            "labels": list(self.labels),
            "reference": self.reference,
            "snapshots": [item.name for item in self.snapshots.all()],
            "snapshot_error": self.snapshot_error,
            "last": last,
        }
