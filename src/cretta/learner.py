"""Learning from a batch: what a method overrides and uses, and the steps, which are checked and rolled back."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from cretta.checks import NO_LOGITS, NOT_FINITE, StepCheck, raise_if_not_finite
from cretta.components import Outcome, Temperature
from cretta.distributed import Shard
from cretta.errors import ModelError, NonFiniteStep, SkipStep
from cretta.method import Objective, Record
from cretta.module import StatefulModule
from cretta.parameters import FlatParameters
from cretta.state import Checkpoint, Snapshot


class Learner(StatefulModule):
    """A module that takes optimizer steps on the objective of a method."""

    logits_from: str
    """Whether the logits returned are from "before" or "after" the update."""
    _step: StepCheck
    """What the current step computes."""
    _temperature: Temperature

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: list[Callable[[Record], object]] = []
        self._early: list[Callable[[Tensor], object]] = []
        self._announced = False

    # What a method may define. Only `objective` is required.

    def begin(self) -> None:
        """Set up what the method needs, and the first entries of ``memory``; called before the first batch."""

    def objective(self, x: Tensor) -> Objective:
        """Compute the loss and the logits of a batch; called once per update, with gradients enabled."""
        return Objective(loss=None, logits=self.model(x))

    def update(self, x: Tensor, objective: Objective) -> None:
        """Take one optimizer step on the objective, or raise :class:`SkipStep`."""
        self.backward(*objective.terms)
        self.step()

    @property
    def reads_buffer(self) -> bool:
        """Whether the method, with these options, reads source samples from the buffer."""
        return self.facts.source_data == "required"

    without_buffer: ClassVar[str] = ""
    """What else can be done if there is no buffer, for the message of :class:`BufferRequired`."""

    @property
    def compares_all(self) -> bool:
        """Whether the method itself reads φ's logits, with running statistics, of every image of a batch."""
        return False

    # What a method may use.

    @property
    def learnable(self) -> FlatParameters:
        """The parameters that learn, in one tensor per device and dtype."""
        return self.state.learnable

    @property
    def memory(self) -> Snapshot:
        """The method's entries of the state. Replace them; see :meth:`on_rollback` for those too large."""
        return self.state.memory

    @property
    def generator(self) -> torch.Generator:
        """The source of random numbers."""
        return self.state.generator

    @property
    def source_parameters(self) -> list[Tensor]:
        """The parameters that learn, as they are in the source model, in the layout of ``learnable.flat``."""
        return [self.initial[f"parameters.{index}"] for index in range(len(self.learnable.flat))]

    def backward(self, *terms: Tensor | Callable[[], Tensor]) -> None:
        """Set the gradients of the parameters to that of the sum of ``terms``, computed one after the other."""
        self.learnable.zero_grad()
        self._step.loss = None
        for term in terms:
            loss = term if isinstance(term, Tensor) else term()
            if not loss.requires_grad:
                raise ModelError(
                    "the logits carry no gradient, so nothing can learn: the network's forward detaches them or runs "
                    "under torch.no_grad(). Remove that, or use 'source' or 'bn_adapt'. In a method of your own, every "
                    "term of the loss has to depend on logits of self.model."
                )
            if loss.numel() != 1:
                raise ModelError(
                    f"expected every term of the loss of {self.name} to be a scalar, got shape {tuple(loss.shape)}; "
                    "take its mean."
                )
            self._step.add_backward(loss)
            with torch.autocast(loss.device.type, enabled=False):
                loss.backward()
        if self.group is not None:
            self.group.average_gradients(self.learnable.gradients())

    def step(self) -> None:
        """Let the optimizer move the parameters; raise :class:`NonFiniteStep` if loss or gradients are not finite."""
        if not self._step.postponed and not self._step.passed():
            raise NonFiniteStep(NOT_FINITE)
        assert self.state.optimizer is not None
        self.state.optimizer.step()
        torch.clear_autocast_cache()  # it may hold copies of the old parameters

    def note(self, reason: str = "", **values: Tensor) -> None:
        """Record in ``model.last`` what happened to the batch, and numbers, still on the device."""
        self._step.reason = reason or self._step.reason
        self._step.notes |= {name: value.detach() for name, value in values.items()}

    def restart(self, reason: str) -> None:
        """Restore the source model within a batch, and record why."""
        self.state.restore(self.initial)
        self.note(reason)

    def on_rollback(self, undo: Callable[[], object]) -> None:
        """Register how to undo an in-place change of a ``memory`` entry if the step is skipped."""
        self.state.on_rollback(undo)

    # Callbacks.

    def on_step(self, callback: Callable[[Record], object]) -> Callable[[], None]:
        """Call ``callback`` with the record of each batch, after it; return a function that ends this.

        Callbacks run in the caller's thread and may use the adapter. Copies of the adapter do not have them.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def on_logits(self, callback: Callable[[Tensor], object]) -> Callable[[], None]:
        """Call ``callback`` with the logits of each batch as soon as they are known; return a function that ends this.

        With ``predict="before"`` that is ahead of the update, so that an answer does not wait for it: what the guard
        does about the batch comes later, and begins to count with the next one. Otherwise it is after the batch.
        """
        self._early.append(callback)
        return lambda: self._early.remove(callback)

    def _announce(self, x: Tensor, logits: Tensor) -> None:
        if self._early and not self._announced and bool(torch.isfinite(logits).all()):
            self._announced = True
            for callback in tuple(self._early):
                callback(x.own(logits) if isinstance(x, Shard) else logits)

    # Steps.

    def infer(self, x: Tensor) -> Tensor:
        """Return the logits of the model in its current state, without gradients."""
        with torch.no_grad():
            return self.model(x)

    def _only_predict(self, x: Tensor, predict: Callable[[], Tensor]) -> Outcome:
        self._step = StepCheck(self.learnable, x, self._inputs.limit)
        logits = predict()
        self._step.add(logits)
        failure = self._failure(x, logits)
        return Outcome(logits, skipped=failure, far=self._step.out_of_range)

    def _learn(self, x: Tensor, start: Checkpoint) -> Outcome:
        """Take the steps that a batch is due; stop at the first one that is skipped, and roll it back."""
        steps = self.options.steps
        for step in range(steps):
            if step > 0:
                start = self.state.checkpoint()
            outcome = self._take_step(x, start, first=step == 0, final=step == steps - 1)
            if outcome.skipped is not None:
                outcome.updates = step
                return outcome
        outcome.updates = steps
        return outcome

    def _take_step(self, x: Tensor, start: Checkpoint, *, first: bool, final: bool) -> Outcome:
        predicts_after = final and self.logits_from == "after"
        batch = x if first else None
        self._step = check = StepCheck(self.learnable, batch, self._inputs.limit, postponed=predicts_after)
        loss = logits = after = skipped = None
        try:
            with torch.enable_grad():
                objective = self.objective(x)
                if not isinstance(objective, Objective):
                    raise TypeError(
                        f"expected {type(self).__name__}.objective to return Objective(loss, logits), got "
                        f"{type(objective).__name__}."
                    )
                loss, logits = objective.loss, objective.logits.detach()
                check.add(logits)
                if final and not predicts_after:
                    self._announce(x, self._temperature.divide(logits))
                if loss is None:
                    raise SkipStep("the batch gave nothing to learn from")
                self.update(x, objective)
            if predicts_after:
                after = self.infer(x)
                check.add(after)
        except SkipStep as error:
            skipped = error
            if logits is None:
                logits = error.logits.detach() if error.logits is not None else self.infer(x)
                check.add(logits)
        failure = self._failure(x, logits, skipped)
        if failure is not None:
            # Keep the moving statistics of a skipped step, unless it failed with values that are not finite.
            seen = {} if isinstance(failure, NonFiniteStep) else self.state.average.seen
            self.state.rollback(start)
            self.state.average.seen = seen
        # A method that skips the batch may have computed other gradients first; their loss is not the objective's.
        value = loss.detach() if isinstance(loss, Tensor) else check.loss if loss is not None else None
        answer = logits if failure is not None or after is None else after
        return Outcome(answer, value, skipped=failure, far=check.out_of_range)

    def _failure(self, x: Tensor, logits: Tensor, skipped: SkipStep | None = None) -> SkipStep | None:
        """Return why not to learn from the batch: its numbers fail the check, or the method skipped it."""
        if self._step.passed() and not isinstance(skipped, NonFiniteStep):
            return skipped
        raise_if_not_finite(x)
        if not bool(torch.isfinite(logits).all()):
            return NonFiniteStep(NO_LOGITS)
        return SkipStep(self._inputs.reason) if self._step.out_of_range else NonFiniteStep(NOT_FINITE)
