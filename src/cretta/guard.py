"""Notices, without labels, that an adapted model collapses, and does something about it."""

from __future__ import annotations

import dataclasses
import math
import warnings
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
    entropy: float = number(
        0.5,
        "least entropy of the predicted class mix, as a fraction of the unadapted model's",
        above=0,
        at_most=1,
    )
    drift: float = number(
        5.0,
        "most shift of the mean energy, in standard deviations of the unadapted model's energies",
        above=0,
    )
    window: int = integer(200, "how many images the averages reach back", at_least=1)
    every: int = integer(1, "look at one batch in so many", at_least=1)


class Watch:
    """Follows one adapter on behalf of a :class:`Guard`."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.batches = 0
        self.averages: Tensor | None = None
        self.healthy: dict[str, Tensor] | None = None

    def over(self, adapter: Adapter[Any], x: Tensor, logits: Tensor) -> tuple[Tensor, str]:
        """Looks at a batch just adapted to; returns the logits to answer with and what was noticed."""
        self.batches += 1
        if (self.batches - 1) % self.guard.every:
            return logits, ""
        trouble = self._trouble(logits, adapter.unadapted(x))
        if not trouble:
            self.healthy = adapter.state()
            return logits, ""
        done = self._act(adapter)
        if self.guard.action != "warn":
            self.averages = None
            logits = adapter.answer(x)
        message = f"{trouble}; {done}"
        warnings.warn(f"batch {self.batches}: {message}", CollapseWarning, stacklevel=3)
        return logits, message

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

    def _trouble(self, logits: Tensor, reference: Tensor) -> str:
        if not bool(torch.isfinite(logits).all()):
            return "predictions are not finite"
        mix, reference_mix = logits.softmax(-1).mean(0), reference.softmax(-1).mean(0)
        energies, references = energy(logits), energy(reference)
        moments = torch.stack([energies.mean(), references.mean(), references.square().mean()])
        now = torch.cat([mix, reference_mix, moments]).double()
        share = min(1.0, len(logits) / self.guard.window)
        self.averages = now if self.averages is None else torch.lerp(self.averages, now, share)
        classes = logits.shape[1]
        mix, reference_mix, moments = self.averages.split([classes, classes, 3])
        spread = math.sqrt(max(float(moments[2] - moments[1].square()), 1e-12))
        drift = float(moments[0] - moments[1]) / spread
        kept = float(_entropy(mix)) / max(float(_entropy(reference_mix)), 1e-12)
        if kept < self.guard.entropy:
            return f"the predicted classes kept {kept:.0%} of their entropy, less than {self.guard.entropy:.0%}"
        if not abs(drift) <= self.guard.drift:
            return f"energies drifted by {drift:+.1f} standard deviations, more than {self.guard.drift:g}"
        return ""

    def state(self) -> dict[str, Tensor]:
        """Everything that evolves, as tensors."""
        state = {"batches": torch.tensor(self.batches)}
        if self.averages is not None:
            state["averages"] = self.averages
        for name, value in (self.healthy or {}).items():
            state[f"healthy.{name}"] = value
        return state

    def load(self, state: dict[str, Tensor]) -> None:
        """Takes up what :meth:`state` gave."""
        prefix = "healthy."
        self.batches = int(state.get("batches", torch.tensor(0)))
        self.averages = state.get("averages")
        healthy = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
        self.healthy = healthy or None


def _entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum()
