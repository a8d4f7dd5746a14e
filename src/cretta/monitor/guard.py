"""The guard: notice, without labels, that adaptation makes a model worse than it was, and undo it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from cretta.functional import energy
from cretta.options import OptionSet, choice, integer, number

ACTIONS = ("warn", "fallback", "rollback", "reset")
LADDER = {
    "warn": (),
    "fallback": ("pause", "reset and pause"),
    "rollback": ("rollback", "reset", "reset and pause"),
    "reset": ("reset", "reset and pause"),
}
"""What each action does at the first alarm, and at the next ones before a window of images passed without any."""
COUNTERS = ("batches", "images", "failing", "unusable", "level", "fine", "paused", "pause")
HEALTHY = "healthy."
ENOUGH = 16
"""Images, unless the window is smaller, below which nothing is judged."""
LONGEST_PAUSE = 16
"""Windows."""

Snapshot = dict[str, Tensor]


class CollapseWarning(UserWarning):
    """An adapted model looks worse than the model before adaptation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guard(OptionSet):
    """What counts as harm, and what to do then.

    The adapted model θ is compared with the unadapted model φ on up to 48 images of a batch, twice: φ with the
    statistics that θ uses, which shows the effect of learning, and φ with those of training ("running"), which shows
    the effect of statistics that do not fit the batch. An alarm needs the average over the window to fail, or
    ``patience`` consecutive batches that fail on their own.

    - ``warn`` reports, and does nothing.
    - ``fallback`` answers with the unadapted model, running statistics, for as many images as the window has, and
      learns nothing meanwhile; then it tries again.
    - ``rollback`` restores the last state whose own batch passed the check.
    - ``reset`` restores the source model.

    What is restored has to pass the check on the same batch; if it does not, or if the next alarm comes before a
    window of images has passed, the next stronger action follows: rollback, reset, fallback for a pause that doubles.

    ``unusable`` consecutive batches from which nothing can be learned, because ``statistics="auto"`` sees too few
    classes, are reported once; they change nothing, so nothing is restored.
    The defaults come from ``python benchmarks/guard.py``: see docs/monitoring.md.
    """

    action: str = choice("warn", "what to do at an alarm", among=ACTIONS)
    margin: float = number(
        0.3,
        "how far the accuracy of the adapted model may be below that of the unadapted one with running statistics, at "
        "best, if the confidence of that one is right: 2 · confidence − 1 − agreement",
        at_least=0,
        at_most=1,
    )
    flips: float = number(
        0.1,
        "how much accuracy predictions may lose by the probabilities of the unadapted model, mean p(ŷ_φ) − p(ŷ_θ)",
        above=0,
        at_most=1,
    )
    classes: float = number(
        0.8,
        "least effective number of predicted classes, exp H(p̄), as a share of the unadapted model's",
        above=0,
        at_most=1,
    )
    drift: float = number(
        2.5, "most shift of the mean energy, in standard deviations (of at least 1) of the unadapted model's", above=0
    )
    patience: int = integer(2, "consecutive batches that fail on their own until an alarm", at_least=1)
    unusable: int = integer(10, "consecutive batches from which nothing can be learned until an alarm", at_least=1)
    window: int = integer(200, "how many images the averages cover", at_least=1)
    every: int = integer(1, "check one batch in so many", at_least=1)


@dataclasses.dataclass(frozen=True)
class Remedy:
    """One thing to do about an alarm."""

    message: str
    restore: Snapshot
    paused: bool
    """Whether the unadapted model answers."""


class GuardState:
    """Follows the predictions of one adapter on behalf of a :class:`Guard`."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.batches = 0
        self.images = 0
        """In the averages, at most a window."""
        self.failing = 0
        """Consecutive batches that fail on their own."""
        self.unusable = 0
        """Consecutive batches from which nothing can be learned."""
        self.level = 0
        """Of the ladder, for the next alarm."""
        self.fine = 0
        """Images since the last alarm."""
        self.paused = 0
        """Images that the unadapted model still answers."""
        self.pause = guard.window
        """How many it will answer at the next pause."""
        self.averages: Tensor | None = None
        self.healthy: Snapshot | None = None

    @property
    def due(self) -> bool:
        """Whether the next batch is one to check."""
        return self.batches % self.guard.every == 0 and self.paused <= 0

    def check(self, logits: Tensor, same: Tensor, running: Tensor, evaluated: Snapshot) -> str:
        """Return what is wrong with a batch's logits, or an empty string.

        ``same`` and ``running`` are those of the unadapted model, with the statistics in use and those of training.
        ``evaluated`` is the state that the logits come from.
        """
        if not bool(torch.isfinite(logits).all()):
            return "predictions are not finite"
        now = evidence(logits, same, running)
        self.images = min(self.images + len(logits), self.guard.window)
        share = min(1.0, len(logits) / self.images)
        self.averages = now if self.averages is None else torch.lerp(self.averages, now, share)
        alone = self._judge(now) if self._enough(len(logits)) else ""
        self.failing = self.failing + 1 if alone else 0
        trouble = self._judge(self.averages) if self._enough(self.images) else ""
        trouble = trouble or (alone if self.failing >= self.guard.patience else "")
        if not trouble:
            # Only a state whose own batch passes the check is stored as healthy.
            self.healthy = self.healthy if alone else evaluated
            self.fine += len(logits)
            if self.fine >= self.guard.window:
                self.level, self.pause = 0, self.guard.window
        return trouble

    def count_unusable(self, reason: str) -> str:
        """Count a batch from which nothing can be learned for a reason; return what to report about these batches.

        Without a reason, the count begins again.
        """
        self.unusable = self.unusable + 1 if reason else 0
        reported = self.unusable == self.guard.unusable
        return f"nothing was learned from {self.unusable} batches in a row: {reason}" if reported else ""

    def passes(self, logits: Tensor, same: Tensor, running: Tensor) -> bool:
        """Return whether logits of a restored state pass the check, or are too few to judge."""
        fails = self._enough(len(logits)) and self._judge(evidence(logits, same, running))
        return bool(torch.isfinite(logits).all()) and not fails

    def _enough(self, images: int) -> bool:
        return images >= min(ENOUGH, self.guard.window)

    def remedies(self, before: Snapshot, initial: Snapshot) -> Iterator[Remedy]:
        """Yield what to do, each stronger than the one before; the last one always helps."""
        ladder = LADDER[self.guard.action]
        if ladder:
            self.averages, self.images, self.failing, self.fine = None, 0, 0, 0
        while ladder:
            step = ladder[min(self.level, len(ladder) - 1)]
            self.level += 1
            if step == "rollback" and self.healthy is not None:
                # Used only once: if the next alarm comes before a healthy batch, this state was not healthy either.
                restore, self.healthy = self.healthy, None
                yield Remedy("rolled back to the last healthy state", restore, False)
            elif step == "reset":
                yield Remedy("reset to the source model", initial, False)
            elif "pause" in step:
                self.paused, self.pause = self.pause, min(2 * self.pause, LONGEST_PAUSE * self.guard.window)
                message = (
                    f"{'reset, and ' if 'reset' in step else ''}the source model answers the next {self.paused} images"
                )
                yield Remedy(message, initial if "reset" in step else before, True)

    def _judge(self, averages: Tensor) -> str:
        guard, classes = self.guard, (len(averages) - 6) // 2
        mix, reference_mix, rest = averages.split([classes, classes, 6])
        own_energy, mean_energy, square, agreement, confidence, lost = rest.tolist()
        ratio = math.exp(float(_entropy(mix)) - float(_entropy(reference_mix)))
        # Energies are log-densities: a shift of less than one or two nats is small even if the images are alike.
        drift = (own_energy - mean_energy) / math.sqrt(max(square - mean_energy**2, 1.0))
        harm = 2 * confidence - 1 - agreement
        if harm > guard.margin:
            return (
                f"predictions agree with the source model for {agreement:.0%} of the images, at a confidence of "
                f"{confidence:.0%} of that: accuracy is lower by at least {harm:.0%}, more than {guard.margin:.0%}"
            )
        if lost > guard.flips:
            return f"predictions changed by learning lose {lost:.0%} by the source model, more than {guard.flips:.0%}"
        if ratio < guard.classes:
            return f"the effective number of predicted classes fell to {ratio:.0%}, below {guard.classes:.0%}"
        if not abs(drift) <= guard.drift:
            return f"energies drifted by {drift:+.1f} standard deviations, more than {guard.drift:g}"
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
        beginning = GuardState(self.guard)
        for name in COUNTERS:
            setattr(self, name, int(state[name]) if name in state else getattr(beginning, name))
        averages = state.get("averages")
        self.averages = None if averages is None else averages.to(device)
        healthy = {name[len(HEALTHY) :]: value for name, value in state.items() if name.startswith(HEALTHY)}
        self.healthy = healthy or None


def evidence(logits: Tensor, same: Tensor, running: Tensor) -> Tensor:
    """Return what the guard judges, as means over the images, so that averages over batches are the same numbers.

    The mean predictions of θ and φ, the mean energy of θ, mean and mean square of φ's, the share of images for which θ
    and φ with running statistics agree, the confidence of that φ, and mean p(ŷ_φ) − p(ŷ_θ) under φ's probabilities p.
    """
    p, reference, trusted = logits.softmax(-1), same.softmax(-1), running.softmax(-1)
    predicted, energies = logits.argmax(-1), energy(same)
    agrees = (predicted == running.argmax(-1)).to(p.dtype)
    lost = reference.amax(-1) - reference.gather(1, predicted.unsqueeze(1)).squeeze(1)
    numbers = [energy(logits), energies, energies.square(), agrees, trusted.amax(-1), lost]
    return torch.cat([p.mean(0), reference.mean(0), torch.stack([n.mean() for n in numbers])]).double()


def _entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum()
