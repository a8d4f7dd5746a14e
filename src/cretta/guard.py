"""Notices, without labels, that an adapted model collapses, and does something about it."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cretta.functional import energy
from cretta.options import OptionSet, choice, integer, number

if TYPE_CHECKING:
    from cretta.adapter import Adapter

ACTIONS = ("warn", "rollback", "reset")


class CollapseWarning(UserWarning):
    """An adapted model looks collapsed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guard(OptionSet):
    """What counts as collapse, and what to do then.

    The yardstick is the unadapted model on the same batches with the same BatchNorm statistics, so that a
    stream of one class, or a hard shift, is no alarm by itself: what is noticed is what adaptation did.
    It costs one more forward for each batch looked at.
    """

    action: str = choice("warn", "what to do: warn, go back to the last healthy state, or to the source", among=ACTIONS)
    classes: float = number(
        0.8,
        "least effective number of predicted classes, exp H(p̄), as a share of the unadapted model's",
        above=0,
        at_most=1,
    )
    drift: float = number(
        2.5, "most shift of the mean energy, in standard deviations (of at least 1) of the unadapted model's", above=0
    )
    window: int = integer(200, "how many images the averages reach back", at_least=1)
    every: int = integer(1, "look at one batch in so many", at_least=1)


class Watch:
    """Follows one adapter on behalf of a :class:`Guard`."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.batches = 0
        self.images = 0
        self.ill = 0
        self.averages: Tensor | None = None
        self.healthy: dict[str, Tensor] | None = None

    @property
    def due(self) -> bool:
        """Whether the next batch is one to look at."""
        return self.batches % self.guard.every == 0

    def over(
        self,
        adapter: Adapter[Any],
        x: Tensor,
        logits: Tensor,
        reference: Tensor | None,
        judged: dict[str, Tensor] | None,
    ) -> tuple[Tensor, str, bool]:
        """Looks at a batch just adapted to, by its logits, those of the unadapted model, and the state they are of.

        Returns the logits to answer with, what was noticed, and whether the adapter was moved.
        """
        self.batches += 1
        if reference is None or judged is None:
            return logits, "", False
        trouble, by_itself = self._trouble(logits, reference)
        # The window's average notices late. Two batches in a row that are ill by themselves are enough, if they are
        # large enough to tell.
        telling = by_itself and 8 * len(logits) >= self.guard.window
        self.ill = self.ill + 1 if telling else 0
        trouble = trouble or (by_itself if self.ill >= 2 else "")
        if not trouble:
            # What is kept must look healthy by itself.
            self.healthy = judged if not by_itself else self.healthy
            return logits, "", False
        done, moved = self._act(adapter), self.guard.action != "warn"
        if moved:
            self.averages, self.images, self.ill = None, 0, 0
            logits = adapter.answer(x)
            adapter.average.seen = {}
        message = f"{trouble}; {done}"
        warnings.warn(f"batch {self.batches}: {message}", CollapseWarning, stacklevel=4)
        return logits, message, moved

    def _act(self, adapter: Adapter[Any]) -> str:
        if self.guard.action == "warn":
            return "nothing done"
        if self.guard.action == "rollback" and self.healthy is not None:
            adapter.load(self.healthy)
            # A second alarm before the next healthy batch means that state was ill too.
            self.healthy = None
            return "rolled back to the last healthy state"
        adapter.load(adapter.initial)
        return "reset to the source model"

    def _trouble(self, logits: Tensor, reference: Tensor) -> tuple[str, str]:
        """What is wrong over the window, and in this batch by itself."""
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
        kept = math.exp(float(_entropy(mix)) - float(_entropy(reference_mix)))
        # Energies are log-densities: however alike the images are, a shift of less than a nat or two is none.
        spread = math.sqrt(max(float(moments[2] - moments[1].square()), 1.0))
        drift = float(moments[0] - moments[1]) / spread
        if kept < self.guard.classes:
            return f"the effective number of predicted classes fell to {kept:.0%}, below {self.guard.classes:.0%}"
        if not abs(drift) <= self.guard.drift:
            return f"energies drifted by {drift:+.1f} standard deviations, more than {self.guard.drift:g}"
        return ""

    def mark(self) -> Callable[[], None]:
        """Remembers how things stand and returns the way back."""
        kept = dict(vars(self))
        return lambda: vars(self).update(kept)

    def state(self) -> dict[str, Tensor]:
        """Everything that evolves, as tensors."""
        state = {name: torch.tensor(getattr(self, name)) for name in ("batches", "images", "ill")}
        if self.averages is not None:
            state["averages"] = self.averages
        for name, value in (self.healthy or {}).items():
            state[f"healthy.{name}"] = value
        return state

    def load(self, state: dict[str, Tensor], device: torch.device) -> None:
        """Takes up what :meth:`state` gave."""
        prefix = "healthy."
        self.batches = int(state.get("batches", torch.tensor(0)))
        self.images = int(state.get("images", torch.tensor(0)))
        self.ill = int(state.get("ill", torch.tensor(0)))
        averages = state.get("averages")
        self.averages = None if averages is None else averages.to(device)
        healthy = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
        self.healthy = healthy or None


def _entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum()
