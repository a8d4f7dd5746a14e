"""The writer: the one thread that uses the adapter. It forms batches, answers them, and lets the model learn."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from cretta.functional import energy
from cretta.serve.decode import to_batch
from cretta.serve.observe import Observation
from cretta.serve.queue import ImageQueue
from cretta.serve.refusal import Refusal
from cretta.serve.requests import Item, Prediction, resolve

if TYPE_CHECKING:
    from cretta.adapter import Adapter

logger = logging.getLogger(__name__)
TICK = 0.5
"""Seconds after which an idle writer shows that it is alive."""
Value = TypeVar("Value")


class Writer:
    """Takes batches from a queue until it is stopped; no exception ends it.

    ``after`` is called with each observation, and the images and predictions of the batch, after the batch is done.
    """

    def __init__(
        self,
        adapter: Adapter[Any],
        queue: ImageQueue,
        *,
        batch_size: int,
        wait: float,
        after: Callable[[Observation, Sequence[Item], Sequence[Prediction]], None],
        waited: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.adapter = adapter
        self.queue = queue
        self.batch_size = batch_size
        self.wait = wait
        self.after = after
        self.waited = waited
        self.clock = clock
        self.ticked = clock()
        """When the loop was last seen alive."""
        self.batch = 0
        """Batches so far."""
        self.step = 0
        """Updates so far; a rollback does not lower it."""
        self._commands: deque[tuple[Callable[[], Any], concurrent.futures.Future[Any]]] = deque()
        self._stop = threading.Event()
        self._last: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="cretta-writer", daemon=True)

    def start(self) -> None:
        """Begin to take batches."""
        self._thread.start()

    def stop(self, timeout: float, last: Callable[[], object] = lambda: None) -> bool:
        """Answer all that is in the queue, call ``last``, and end; return whether that was done within the time."""
        self.queue.drain()
        self._last = last
        self._stop.set()
        self.queue.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        resolve(self.queue.clear(), Refusal(503, "the service stopped before it could answer."))
        return not self.running

    @property
    def running(self) -> bool:
        """Whether its thread has begun and not ended."""
        return self._thread.is_alive()

    def submit(self, command: Callable[[], Value]) -> concurrent.futures.Future[Value]:
        """Let the writer's thread call ``command`` before its next batch."""
        future: concurrent.futures.Future[Value] = concurrent.futures.Future()
        self._commands.append((command, future))
        self.queue.notify()
        return future

    def silence(self) -> float:
        """Return the seconds since the loop was last seen alive."""
        return self.clock() - self.ticked

    def _run(self) -> None:
        while not (self._stop.is_set() and not len(self.queue) and not self._commands):
            try:
                self.ticked = self.clock()
                self._run_commands()
                items = self.queue.take(
                    self.batch_size, self.wait, 0 if self._stop.is_set() or self._commands else TICK
                )
                for part in parts(items):
                    self._process(part)
                    self.ticked = self.clock()
            except BaseException:
                logger.exception("the writer continues after an error")
        try:
            self._last()
        except BaseException:
            logger.exception("the last command failed")

    def _process(self, items: Sequence[Item]) -> None:
        try:
            self.process(items)
        except BaseException as error:
            logger.exception("a batch failed", extra={"facts": {"batch": self.batch, "images": len(items)}})
            message = f"the batch failed ({type(error).__name__}); the log has the cause."
            resolve(dict.fromkeys(item.request for item in items), Refusal(500, message))  # those without an answer

    def _run_commands(self) -> None:
        while self._commands:
            command, future = self._commands.popleft()
            try:
                future.set_result(command())
            except BaseException as error:
                future.set_exception(error)

    def process(self, items: Sequence[Item]) -> None:
        """Predict one batch, answer it, and learn from it."""
        begun = time.monotonic()
        for item in items:
            self.waited(begun - item.arrived)
        predictions: list[Prediction] = []
        answered = begun
        logits, sent = torch.empty(0), False

        def answer(computed: Tensor) -> None:
            nonlocal answered, logits, sent
            logits = computed
            predictions.extend(self._predictions(items, logits))
            pairs = zip(items, predictions, strict=True)
            resolve([item.request for item, prediction in pairs if item.request.add(item.position, prediction)])
            sent = True
            answered = time.monotonic()

        outcome, record = "predicted", None
        batch = to_batch([item.image for item in items], self.adapter.device)
        try:
            if items[0].request.adapt:
                answer_and_adapt(self.adapter, batch, answer)
                record = self.adapter.last
                outcome = "adapted" if record.adapted else "skipped"
            else:
                answer(self.adapter.predict(batch))
        except BaseException:
            if not sent:
                raise
            # The answers were sent before; the adapter has undone the update.
            logger.exception("an update failed", extra={"facts": {"batch": self.batch, "images": len(items)}})
            outcome = "failed"
        finally:
            self.batch += 1
        self.step += outcome == "adapted"
        try:
            seen = Observation(
                batch=self.batch - 1,
                step=self.step,
                images=len(items),
                outcome=outcome,
                predict_seconds=answered - begun,
                adapt_seconds=time.monotonic() - answered,
                energy=sum(prediction.energy for prediction in predictions) / len(predictions),
                confidence=float(logits.softmax(-1).amax(-1).mean()),
                classes=tuple(torch.bincount(logits.argmax(-1), minlength=logits.shape[1]).tolist()),
                reason=record.reason if record is not None else "",
                guard=record.guard if record is not None else "",
            )
            self.after(seen, items, predictions)
        except BaseException:
            # The answers were sent: requests with images in later batches still get theirs.
            logger.exception("a batch was not reported", extra={"facts": {"batch": self.batch - 1}})

    def _predictions(self, items: Sequence[Item], logits: Tensor) -> Iterator[Prediction]:
        probabilities = logits.softmax(-1).float().cpu().numpy()
        indices = logits.argmax(-1).tolist()
        energies = energy(logits, self.adapter.options.temperature).tolist()
        for item, row, index, value in zip(items, probabilities, indices, energies, strict=True):
            yield Prediction(row, index, value, item.sequence, self.batch, self.step)


def answer_and_adapt(adapter: Adapter[Any], batch: Tensor, answer: Callable[[Tensor], None]) -> None:
    """Call ``answer`` with the logits of a batch, with ``predict="before"`` ahead of the update, and learn from it."""
    end = adapter.on_logits(answer)
    try:
        adapter(batch)
    finally:
        end()


def parts(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Split a batch into images that the model learns from, and images that it only predicts."""
    for adapts in (True, False):
        part = [item for item in items if item.request.adapt is adapts]
        if part:
            yield part
