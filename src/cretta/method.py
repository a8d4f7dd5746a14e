"""What a method states, takes, returns and leaves behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor

from cretta.errors import OptionError
from cretta.monitor.collapse import Guard
from cretta.normalization import STATISTICS
from cretta.options import OptionSet, choice, flag, integer, number, option, texts

OPTIMIZERS = ("adam", "adamw", "sgd")
COMPILE = ("default", "reduce-overhead", "max-autotune")
NOT_MOVED = (
    "no parameter moved: the gradient is zero, or too small for the learning rate. Quantized layers pass no gradient "
    "back, and a loss of zero has none"
)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a method does, for people and tables."""

    updates: Literal["nothing", "norm affine", "all"]
    """Which parameters learn."""
    statistics: str
    """What BatchNorm normalises with unless told otherwise."""
    source_data: bool
    """Whether it touches source images while it adapts."""
    logits: Literal["before", "after"]
    """Whether the logits returned are from before or after the batch's update, unless told otherwise."""
    loss: str = "none"
    """The objective in one line; means over the batch go without saying."""
    forwards: int = 1
    """Passes of a whole batch through a network, for each batch, with default options."""
    backwards: int = 0
    """Passes back, likewise."""

    def __str__(self) -> str:
        source_data = "yes" if self.source_data else "no"
        return (
            f"Updates: {self.updates}. Statistics: {self.statistics}. Source data: {source_data}. "
            f"Logits: from {self.logits} the update. Passes a batch: {self.forwards} forwards, {self.backwards} back."
        )


@dataclasses.dataclass
class Objective:
    """What a method makes of a batch: a loss to descend, the target's logits, and what is worth recording."""

    loss: Tensor | None
    """None where the batch gives nothing to learn from."""
    logits: Tensor
    reason: str = ""
    """Why there is no loss, or what else happened to this batch."""
    notes: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    rest: Callable[[], Tensor] | None = None
    """The part of the loss whose graph is to be made when that of ``loss`` is gone: memory for one is enough."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What a batch did. Numbers are read from the device only when looked at."""

    size: int
    """How many samples the batch had."""
    moved: Tensor | None
    """Whether the update changed a parameter, still on the device; None without an update, or if it was undone."""
    skipped: bool
    """Whether an update was due but left out; ``reason`` says why."""
    note: str = ""
    """The part of ``reason`` that is known without a synchronization."""
    guard: str = ""
    """What the guard noticed and did, if anything."""
    values: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def adapted(self) -> bool:
        """Return whether parameters changed."""
        return self.moved is not None and bool(self.moved)

    @property
    def reason(self) -> str:
        """Say why parameters did not change, or what else happened to this batch."""
        return self.note or (NOT_MOVED if self.moved is not None and not self.adapted else "")

    def __repr__(self) -> str:
        told = [f"size={self.size}", f"adapted={self.adapted}", f"skipped={self.skipped}"]
        told += [f"{name}={text!r}" for name, text in (("reason", self.reason), ("guard", self.guard)) if text]
        told += [f"{name}={float(value):.4g}" for name, value in self.values.items()]
        return f"Record({', '.join(told)})"

    def __getitem__(self, name: str) -> float | None:
        value = self.values.get(name)
        return None if value is None else float(value)

    @property
    def loss(self) -> float | None:
        """The objective's value."""
        return self["loss"]

    @property
    def energy(self) -> float | None:
        """Mean energy of the batch under the logits returned."""
        return self["energy"]

    @property
    def source_energy(self) -> float | None:
        """Mean energy of the source samples under the adapting model."""
        return self["source_energy"]

    @property
    def weight(self) -> float | None:
        """Mean gradient weight w (Eq. 5)."""
        return self["weight"]


def _guard(value: Any) -> Guard | None:
    if value is None or isinstance(value, Guard):
        return value
    try:
        return Guard(action=value)
    except OptionError:
        raise ValueError("None, 'warn', 'rollback', 'reset' or a cretta.Guard") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(OptionSet):
    """What every method can be told."""

    lr: float = number(1e-3, "learning rate", above=0)
    optimizer: str = choice("adam", "which optimiser takes the step", among=OPTIMIZERS)
    momentum: float = number(0.9, "momentum of SGD, first moment of Adam", at_least=0, below=1)
    nesterov: bool = flag(False, "Nesterov momentum, for SGD")
    weight_decay: float = number(0.0, "weight decay", at_least=0)
    steps: int = integer(1, "updates for each batch", at_least=1)
    adapt_every: int = integer(1, "learn from one batch in so many, only predict the others", at_least=1)
    episodic: bool = flag(False, "forget everything before each batch, the place in the buffer too")
    statistics: str | None = choice(None, "what BatchNorm normalises with; None is the method's own", among=STATISTICS)
    batch_weight: float = number(0.1, "the batch's share α in 'mixture' and 'moving'", above=0, at_most=1)
    predict: str | None = choice(
        None, "logits from before or after the (last) update; None is the method's own", among=("before", "after")
    )
    temperature: float = number(1.0, "T of the energy (Eq. 1)", above=0)
    skip: tuple[str, ...] = texts((), "names of layers that do not learn, with all below them")
    channels_last: bool = flag(True, "image batches in channels-last memory, which convolutions prefer")
    fuse: bool = flag(True, "rewrite the network into fewer passes over memory, where it can be followed")
    compile: str | None = choice(None, "torch.compile the network, in this mode, in the place of fuse", among=COMPILE)
    precision: str = choice("full", "bfloat16 runs the network under autocast", among=("full", "bfloat16"))
    guard: Guard | None = option(None, _guard, "what to do when the model collapses")
    busy: str = choice("wait", "a call while another thread is in one waits, or raises", among=("wait", "raise"))
    seed: int = integer(0, "seed of everything random", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.optimizer == "sgd" and self.momentum == 0:
            raise OptionError("nesterov=True needs momentum above 0; given is momentum=0.0.")
