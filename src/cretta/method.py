"""What a method states, takes, returns and records: facts, options, objective, record."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, get_type_hints

from torch import Tensor

from cretta.errors import OptionError
from cretta.monitor.guard import Guard
from cretta.normalization import STATISTICS, Statistics
from cretta.options import OptionSet, choice, flag, integer, known, number, option, texts

OPTIMIZERS = ("adam", "sgd")
COMPILE = ("default",)
NOT_MOVED = (
    "no parameter moved: the gradient is zero, or too small for the learning rate. Quantized layers have no gradient, "
    "nor has a loss of zero"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a method does, for people, tables and the checks of the base class."""

    updates: Literal["nothing", "norm affine", "all"]
    """Which parameters learn: none, γ and β of the normalization layers, or all."""
    statistics: Statistics
    """What BatchNorm normalizes with, unless the option ``statistics`` says otherwise."""
    logits: Literal["before", "after"]
    """Whether the logits returned are from before or after the batch's update, unless ``predict`` says otherwise."""
    source_data: Literal["none", "required"] = "none"
    """Whether it reads source samples while it adapts."""
    forwards: int = 1
    """Forward passes of a full batch, of θ and φ together, per batch of the stream, with default options."""
    backwards: int = -1
    """Backward passes, likewise; by default one if anything is updated, else none."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Facts).items():
            allowed = get_args(hint)
            if allowed:
                known(f"value of Facts.{name}", getattr(self, name), allowed)
        if self.backwards < 0:
            object.__setattr__(self, "backwards", int(self.updates != "nothing"))

    @property
    def cost(self) -> float:
        """Forward passes that take as long as a step; a backward pass for γ and β takes as long as 1.4."""
        return self.forwards + 1.4 * self.backwards

    def __str__(self) -> str:
        return (
            f"Updates: {self.updates}. Statistics: {self.statistics}. Source data: {self.source_data}. "
            f"Logits: from {self.logits} the update. Passes per batch: {self.forwards} forward, {self.backwards} "
            "backward."
        )


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a method computes from a batch: the loss to minimize, and the batch's logits.

    The loss may be a sequence of terms, which are added. Each is a scalar. A term that is a function is called after
    the backward pass of the terms before it, so that memory for one graph is enough.
    """

    loss: Tensor | Sequence[Tensor | Callable[[], Tensor]] | None
    """None only in methods that update nothing; others raise :class:`cretta.SkipStep`."""
    logits: Tensor

    @property
    def terms(self) -> Sequence[Tensor | Callable[[], Tensor]]:
        """The terms of the loss."""
        return (self.loss,) if isinstance(self.loss, Tensor) else self.loss or ()


@dataclasses.dataclass(frozen=True)
class Record:
    """What one batch did. Numbers are read from the device only when they are accessed."""

    size: int
    """How many samples the batch had."""
    moved: Tensor | None
    """Whether the update changed a parameter, on the device; None without an update, or if it was undone."""
    skipped: bool
    """Whether an update was due but skipped; ``reason`` says why."""
    note: str = ""
    """The part of ``reason`` that is known without a synchronization."""
    guard: str = ""
    """What the guard detected and did, if anything."""
    values: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    logits: Tensor | None = dataclasses.field(default=None, repr=False, compare=False)
    """What the adapter returned, on the device, before ``calibrate`` divided it by ``temperature``."""
    source_logits: Tensor | None = dataclasses.field(default=None, repr=False, compare=False)
    """Logits of the source model with running statistics, if method, statistics or guard needed them."""
    compared: Tensor | None = dataclasses.field(default=None, repr=False, compare=False)
    """Indices of the images that ``source_logits`` belong to; None for all."""

    @property
    def adapted(self) -> bool:
        """Whether parameters changed."""
        return self.moved is not None and bool(self.moved)

    @property
    def reason(self) -> str:
        """Why parameters did not change, or what else happened to this batch."""
        return self.note or (NOT_MOVED if self.moved is not None and not self.adapted else "")

    def __repr__(self) -> str:
        fields = [f"size={self.size}", f"adapted={self.adapted}", f"skipped={self.skipped}"]
        fields += [f"{name}={text!r}" for name, text in (("reason", self.reason), ("guard", self.guard)) if text]
        fields += [f"{name}={float(value):.4g}" for name, value in self.values.items()]
        return f"Record({', '.join(fields)})"

    def __getitem__(self, name: str) -> float | None:
        value = self.values.get(name)
        return None if value is None else float(value)

    @property
    def loss(self) -> float | None:
        """The value of the objective."""
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
        raise ValueError("one of 'warn', 'fallback', 'rollback', 'reset', a cretta.Guard or None") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(OptionSet):
    """Options of every method."""

    lr: float = number(1e-3, "learning rate", above=0)
    optimizer: str = choice("adam", "which optimizer takes the step", among=OPTIMIZERS)
    momentum: float = number(0.9, "momentum of SGD, first moment of Adam", at_least=0, below=1)
    nesterov: bool = flag(False, "Nesterov momentum, for SGD")
    weight_decay: float = number(0.0, "weight decay", at_least=0)
    steps: int = integer(1, "updates per batch", at_least=1)
    adapt_every: int = integer(1, "learn from one batch in so many, only predict the others", at_least=1)
    episodic: bool = flag(False, "reset before each batch, the position in the buffer too")
    statistics: str | None = choice(
        None, "what BatchNorm normalizes with; None is the method's default", among=STATISTICS
    )
    batch_weight: float = number(0.1, "the batch's share α in 'mixture' and 'moving'", above=0, at_most=1)
    predict: str | None = choice(
        None, "logits from before or after the (last) update; None is the method's default", among=("before", "after")
    )
    temperature: float = number(1.0, "T of the energy (Eq. 1)", above=0)
    skip: tuple[str, ...] = texts((), "names of layers that do not learn, with all layers inside them")
    channels_last: bool = flag(True, "image batches in channels-last memory, in which convolutions are faster")
    fuse: bool = flag(True, "rewrite the network into fewer passes over memory, where it can be traced")
    compile: str | None = choice(None, "torch.compile the network, in this mode, instead of fuse", among=COMPILE)
    precision: str = choice(
        "full",
        "bfloat16 runs the network under autocast; bfloat16_no_grad does so in passes without a gradient (source model "
        "and predictions), where that is faster",
        among=("full", "bfloat16", "bfloat16_no_grad"),
    )
    guard: Guard | None = option(None, _guard, "what to do when adaptation does harm")
    calibrate: str | None = choice(
        None,
        "divide the logits returned by a temperature: from the labeled buffer, from mixed pairs of the batch, or, if "
        "both show that the model is underconfident, the one nearer to 1",
        among=("source", "pseudocal", "auto"),
    )
    calibrate_every: int = integer(10, "batches from one temperature to the next", at_least=1)
    reset_every: int = integer(0, "restore the source model after so many batches; 0 is never", at_least=0)
    busy: str = choice("wait", "a call while another thread is in one waits, or raises", among=("wait", "raise"))
    seed: int = integer(0, "seed of everything random", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.optimizer == "sgd" and self.momentum == 0:
            raise OptionError("expected momentum above 0 with nesterov=True, got momentum=0.0.")
