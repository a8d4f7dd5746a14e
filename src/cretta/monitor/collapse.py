"""Detect, without labels, that an adapted model collapses, and decide what to do about it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cretta.functional import energy
from cretta.options import OptionSet, choice, integer, number

ACTIONS = ("warn", "rollback", "reset")
COUNTERS = ("batches", "images", "consecutive_alarms")
HEALTHY = "healthy."

Snapshot = dict[str, Tensor]


class CollapseWarning(UserWarning):
    """An adapted model looks collapsed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guard(OptionSet):
    """What counts as collapse, and what to do then.

    The reference is the unadapted model on the same batches with the same BatchNorm statistics, so that a stream of
    one class, or a hard shift, raises no alarm by itself: only the effect of adaptation does. Each batch that is
    checked costs one more forward pass.
    """

    action: str = choice("warn", "warn, restore the last healthy state, or restore the source model", among=ACTIONS)
    classes: float = number(
        0.8,
        "least effective number of predicted classes, exp H(p̄), as a share of the unadapted model's",
        above=0,
        at_most=1,
    )
    drift: float = number(
        2.5, "most shift of the mean energy, in standard deviations (of at least 1) of the unadapted model's", above=0
    )
    window: int = integer(200, "how many images the averages cover", at_least=1)
    every: int = integer(1, "check one batch in so many", at_least=1)


@dataclasses.dataclass(frozen=True)
class Alarm:
    """A detected collapse: what to report, and the snapshot to restore, if any."""

    message: str
    restore: Snapshot | None


class CollapseMonitor:
    """Follows the predictions of one adapter on behalf of a :class:`Guard`."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.batches = 0
        self.images = 0
        self.consecutive_alarms = 0
        self.averages: Tensor | None = None
        self.healthy: Snapshot | None = None

    @property
    def due(self) -> bool:
        """Whether the next batch is one to check."""
        return self.batches % self.guard.every == 0

    def check(self, logits: Tensor, reference: Tensor, evaluated: Snapshot, initial: Snapshot) -> Alarm | None:
        """Compare a batch's logits with those of the unadapted model.

        ``evaluated`` is the state that the logits come from, ``initial`` that of the source model. The caller counts
        the batch in ``batches`` and restores what the alarm asks for.
        """
        trouble, in_this_batch = self._trouble(logits, reference)
        # The average over the window reacts late. Two consecutive batches that fail the check on their own are
        # enough, if they are large enough to judge.
        conclusive = in_this_batch and 8 * len(logits) >= self.guard.window
        self.consecutive_alarms = self.consecutive_alarms + 1 if conclusive else 0
        trouble = trouble or (in_this_batch if self.consecutive_alarms >= 2 else "")
        if not trouble:
            # Only a state whose own batch passes the check is stored as healthy.
            self.healthy = evaluated if not in_this_batch else self.healthy
            return None
        if self.guard.action == "warn":
            return Alarm(f"{trouble}; nothing done", None)
        self.averages, self.images, self.consecutive_alarms = None, 0, 0
        if self.guard.action == "rollback" and self.healthy is not None:
            # If the next alarm comes before a healthy batch, this state was not healthy either: use it only once.
            restore, self.healthy = self.healthy, None
            return Alarm(f"{trouble}; rolled back to the last healthy state", restore)
        return Alarm(f"{trouble}; reset to the source model", initial)

    def _trouble(self, logits: Tensor, reference: Tensor) -> tuple[str, str]:
        """Return what fails over the window, and in this batch on its own."""
        if not bool(torch.isfinite(logits).all()):
            return "predictions are not finite", "predictions are not finite"
        energies, references = energy(logits), energy(reference)
        moments = torch.stack([energies.mean(), references.mean(), references.square().mean()])
        now = torch.cat([logits.softmax(-1).mean(0), reference.softmax(-1).mean(0), moments]).double()
        self.images = min(self.images + len(logits), self.guard.window)
        share = min(1.0, len(logits) / self.images)
        self.averages = now if self.averages is None else torch.lerp(self.averages, now, share)
        return self._judge(self.averages), self._judge(now)

    def _judge(self, averages: Tensor) -> str:
        classes = (len(averages) - 3) // 2
        mix, reference_mix, moments = averages.split([classes, classes, 3])
        ratio = math.exp(float(_entropy(mix)) - float(_entropy(reference_mix)))
        # Energies are log-densities: a shift of less than one or two nats is small even if the images are alike.
        spread = math.sqrt(max(float(moments[2] - moments[1].square()), 1.0))
        drift = float(moments[0] - moments[1]) / spread
        if ratio < self.guard.classes:
            return f"the effective number of predicted classes fell to {ratio:.0%}, below {self.guard.classes:.0%}"
        if not abs(drift) <= self.guard.drift:
            return f"energies drifted by {drift:+.1f} standard deviations, more than {self.guard.drift:g}"
        return ""

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that rolls back to this moment."""
        now = dict(vars(self))
        return lambda: vars(self).update(now)

    def snapshot(self) -> Snapshot:
        """Return everything that evolves, as tensors."""
        state = {name: torch.tensor(getattr(self, name)) for name in COUNTERS}
        if self.averages is not None:
            state["averages"] = self.averages
        return state | {f"{HEALTHY}{name}": value for name, value in (self.healthy or {}).items()}

    def restore(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Restore what :meth:`snapshot` returned; nothing at all is the beginning."""
        for name in COUNTERS:
            setattr(self, name, int(state.get(name, torch.tensor(0))))
        averages = state.get("averages")
        self.averages = None if averages is None else averages.to(device)
        healthy = {name[len(HEALTHY) :]: value for name, value in state.items() if name.startswith(HEALTHY)}
        self.healthy = healthy or None


def _entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum()
