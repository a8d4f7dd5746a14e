"""Components of an adapter, which take part in each batch beside the step: source comparison, guard, calibration."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cretta.errors import SkipStep
from cretta.method import Record
from cretta.monitor.calibration import fit_temperature, mixed_pairs
from cretta.monitor.guard import ENOUGH, CollapseWarning, Guard, GuardState
from cretta.network import Network
from cretta.normalization import has_batch_norm, has_running_statistics, prior_weight
from cretta.state import Snapshot

if TYPE_CHECKING:
    from cretta.adapter import Adapter

COMPARED = 48
"""Images of a batch that are compared with the source model, unless the method needs its logits of all."""
CACHED = 64
"""Images per forward pass of the source model on the CPU."""
SAMPLES_AT_ONCE = 200
"""Labeled source images per forward pass: as many as a usual batch, whose statistics they then have."""
TOO_FEW = "too few images or classes to learn from"
TEMPERATURE, AGE = "calibration.temperature", "calibration.age"
"""Entries of the adapter's memory: the temperature, and how many batches ago it was computed."""


@dataclasses.dataclass
class Outcome:
    """What became of a batch."""

    logits: Tensor
    loss: Tensor | None = None
    updates: int = 0
    skipped: SkipStep | None = None
    """Why an update was skipped."""
    far: bool = False
    """Whether the batch is far outside the range of earlier ones: it changes nothing that evolves."""
    guard: str = ""
    """What the guard detected and did."""
    undone: bool = False
    """Whether the guard restored an earlier state."""


class Component:
    """Takes part in each batch of an adapter; override the hooks of interest."""

    paused: int = 0
    """Images that the source model still answers, without learning from them."""

    def __init__(self, adapter: Adapter[Any]) -> None:
        self.adapter = adapter

    def begin(self, x: Tensor) -> None:
        """Prepare for a batch, before anything else is computed from it."""

    def end(self, x: Tensor, outcome: Outcome) -> None:
        """Look at what became of the batch, and change that where needed."""


class SourceComparison(Component):
    """The source model φ, on images of a batch and of the buffer; method, statistics, guard and monitor share it."""

    def __init__(self, adapter: Adapter[Any]) -> None:
        super().__init__(adapter)
        self.reference = "running" if has_running_statistics(adapter.net) else adapter.statistics
        """The statistics of φ: those of training, if it has any."""
        self._has_batch_norm = has_batch_norm(adapter.net)
        self._chooses_weight = adapter.statistics == "auto" and self._has_batch_norm
        self._compared: tuple[Tensor, Tensor | None, Tensor] | None = None

    def begin(self, x: Tensor) -> None:
        """Let the batch decide what share it has in its statistics."""
        if self._chooses_weight:
            self.adapter.state.average.batch_weight = prior_weight(len(x), self.logits(x)[1])

    @property
    def too_few(self) -> bool:
        """Whether "auto" uses the statistics of training alone: such a batch says too little to learn from it."""
        return self._chooses_weight and self.adapter.state.average.batch_weight == 0

    def logits(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return which images of a batch are compared with φ (None: all), and φ's logits of them."""
        if self._compared is None or self._compared[0] is not x:
            index = None if self.adapter.compares_all else spread_indices(len(x), COMPARED, x.device)
            chosen = x if index is None else x[index]
            network = self.adapter.frozen(self.reference)
            # On the CPU in parts that fit its cache, where samples are independent. Without a buffer in one piece: the
            # network may take batches of one size only.
            independent = self.adapter.reads_buffer and self.reference == "running" and x.device.type == "cpu"
            parts = chosen.chunk(-(-len(chosen) // CACHED)) if independent else (chosen,)
            with torch.no_grad():
                logits = torch.cat([network.probe(part) for part in parts])
            self._compared = (x, index, logits)
        return self._compared[1:]

    def answer(self, x: Tensor) -> Tensor:
        """Return φ's logits of all images of a batch."""
        with torch.no_grad():
            return self.adapter.frozen(self.reference).probe(x)

    def references(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what images the guard takes, and φ's logits of them: with the statistics in use, with training's."""
        known, running = self.logits(x)
        index = spread_indices(len(x), COMPARED, x.device)
        if index is None:
            index = torch.arange(len(x), device=x.device)
        elif known is None:
            running = running[index]
        statistics = self.adapter.statistics
        if statistics == self.reference:
            return index, running, running
        with torch.no_grad():
            return index, self.adapter.frozen(statistics).probe(x if len(index) == len(x) else x[index]), running

    def take(self) -> tuple[Tensor | None, Tensor | None]:
        """Return what :meth:`logits` computed for the batch, if anything, and forget it."""
        compared, self._compared = self._compared, None
        return (None, None) if compared is None else compared[1:]

    def warn_of_harm(self, record: Record) -> bool:
        """Warn of a batch whose own statistics remove what distinguishes classes; return whether it is one."""
        if self.adapter.statistics != "batch" or not self._has_batch_norm:
            return False
        reason = "it has one image" if record.size == 1 else ""
        if not reason and record.source_logits is not None and record.size >= ENOUGH:
            predicted = record.source_logits.argmax(-1)
            if bool((predicted == predicted[0]).all()):
                reason = f"the source model predicts one class for all {record.size} images"
        if reason:
            warnings.warn(
                f"a batch is normalized with its own statistics, which often does harm here: {reason}. Use "
                "statistics='auto', or notice it by guard='rollback'.",
                stacklevel=5,
            )
        return bool(reason)

    def samples(self, count: int, network: Network) -> tuple[Tensor, Tensor] | None:
        """Return a network's logits of up to ``count`` images of a labeled buffer, and their labels."""
        buffer = self.adapter.buffer
        if buffer is None or buffer.labels is None:
            return None
        plain, count = buffer.with_augment("none"), min(count, len(buffer))
        like = next((p for p in self.adapter.net.parameters() if p.is_floating_point()), torch.empty(0))
        images = plain.batch(0, count).to(like.device, like.dtype)
        if images.dim() == 4 and self.adapter.options.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            logits = torch.cat([network.source(part) for part in images.chunk(-(-count // SAMPLES_AT_ONCE))])
        return logits, buffer.labels[:count].to(logits.device)


class AdapterGuard(Component, GuardState):
    """Compares the adapter with its source model, and restores an earlier state if it does harm."""

    def __init__(self, adapter: Adapter[Any], guard: Guard) -> None:
        Component.__init__(self, adapter)
        GuardState.__init__(self, guard)
        self._before: Snapshot | None = None

    def begin(self, x: Tensor) -> None:
        """Copy the state, if the batch is one to check."""
        self._before = self.adapter.state.snapshot() if self.due else None

    def end(self, x: Tensor, outcome: Outcome) -> None:
        """Check the batch, and do what that asks for."""
        adapter, state = self.adapter, self.adapter.state
        before, self._before = self._before, None
        self._report_unusable(x, outcome)
        if self.paused > 0:
            self.paused -= len(x)
            adapter.note("answered by the source model after an alarm")
        elif outcome.far:
            return
        references = adapter.comparison.references(x) if before is not None else None
        state.average.commit()
        self.batches += 1
        if before is None or references is None:
            return
        index, same, running = references
        # Logits from before the update belong to the state before it.
        is_after = outcome.updates > 0 and outcome.skipped is None and adapter.logits_from == "after"
        trouble = self.check(outcome.logits[index], same, running, state.snapshot() if is_after else before)
        if not trouble:
            return
        done = "nothing done"
        for remedy in self.remedies(before, adapter.initial):
            outcome.undone, done = True, remedy.message
            state.restore(remedy.restore)
            outcome.logits = adapter.comparison.answer(x) if remedy.paused else adapter.infer(x)
            state.average.seen = {}
            if remedy.paused or self.passes(outcome.logits[index], same, running):
                break
        outcome.guard = f"{trouble}; {done}"
        warnings.warn(f"batch {self.batches}: {outcome.guard}", CollapseWarning, stacklevel=6)

    def _report_unusable(self, x: Tensor, outcome: Outcome) -> None:
        """Report batches in a row from which nothing can be learned; small ones are expected to be so."""
        if outcome.far:  # changes nothing, not even the count; there is a warning of its own
            return
        if report := self.count_unusable(TOO_FEW if self.adapter.comparison.too_few and len(x) >= ENOUGH else ""):
            outcome.guard = report
            warnings.warn(f"batch {self.batches + 1}: {report}", CollapseWarning, stacklevel=7)


class Temperature(Component):
    """Fits a temperature every few batches, as the option ``calibrate`` says; without it, logits stay as they are."""

    def __init__(self, adapter: Adapter[Any]) -> None:
        super().__init__(adapter)
        self._kind: str | None = adapter.options.calibrate
        if self._kind is not None:
            adapter.memory[TEMPERATURE] = torch.tensor(1.0, dtype=torch.float64)
            adapter.memory[AGE] = torch.tensor(0)

    def end(self, x: Tensor, outcome: Outcome) -> None:
        """Compute the temperature again, if that is due, and record it."""
        if self._kind is None:
            return
        memory = self.adapter.memory
        if not outcome.far:
            age = int(memory[AGE])
            if age == 0:
                memory[TEMPERATURE] = torch.tensor(self._fitted(x, outcome.logits), dtype=torch.float64)
            memory[AGE] = torch.tensor((age + 1) % self.adapter.options.calibrate_every)
        self.adapter.note(temperature=memory[TEMPERATURE])

    def divide(self, logits: Tensor) -> Tensor:
        """Return the logits divided by the temperature."""
        return logits if self._kind is None else logits / self._temperature

    def _fitted(self, x: Tensor, logits: Tensor) -> float:
        if self._kind == "pseudocal":
            return self._of_pairs(x, logits)
        temperature = self._of_buffer()
        if self._kind == "auto":
            # Training images in the buffer look underconfident in any network that has learned them: the stream has to
            # look so, too.
            return 1.0 if temperature >= 1 else min(1.0, max(temperature, self._of_pairs(x, logits)))
        return temperature

    def _of_pairs(self, x: Tensor, logits: Tensor) -> float:
        """Return the temperature that mixed pairs of the batch show; the present one if there are none."""
        mixed, labels = mixed_pairs(x, logits.argmax(-1))
        if len(labels) < 2:
            return self._temperature
        with torch.no_grad():
            return fit_temperature(self.adapter.model.probe(mixed), labels)

    def _of_buffer(self) -> float:
        """Return the temperature that the labeled buffer shows; the present one without labels."""
        labeled = self.adapter.comparison.samples(SAMPLES_AT_ONCE, self.adapter.model)
        return self._temperature if labeled is None else fit_temperature(*labeled)

    @property
    def _temperature(self) -> float:
        return float(self.adapter.memory[TEMPERATURE])


def spread_indices(count: int, most: int, device: torch.device) -> Tensor | None:
    """Return ``most`` indices spread evenly over ``count``; None if that is all of them."""
    return None if count <= most else torch.arange(most, device=device) * count // most
