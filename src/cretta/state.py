"""Everything that evolves while a model adapts: parameters, optimizer, statistics, memory and random numbers."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cretta.accelerate import pin_choices
from cretta.errors import StateError
from cretta.method import Options
from cretta.normalization import StreamAverage
from cretta.optimizers import SGD, Adam
from cretta.parameters import FlatParameters
from cretta.storage import tensorfile

KIND = "state of an adapter"
OPTIMIZER_STATE = {"adam": ("step", "exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""What each optimizer stores per parameter after its first step."""
FUSED_ON = ("cpu", "cuda")
"""Devices on which PyTorch's optimizers run as one kernel."""
MUST_MATCH = {"method": "the method", "weights": "the source model", "buffer": "the buffer"}
"""Entries of a state's description that must be the same where it is loaded."""
OPTIONS_MUST_MATCH = ("optimizer", "statistics", "skip", "calibrate")
"""Options that decide what a state consists of, or what its tensors mean."""

Snapshot = dict[str, Tensor]


def make_optimizer(options: Options, learnable: FlatParameters) -> torch.optim.Optimizer:
    """Return the optimizer that ``options`` name."""
    o, flat = options, learnable.flat
    # All parameters of a device are in one tensor: one kernel does the step.
    fused = all(parameter.device.type in FUSED_ON for parameter in flat)
    if o.optimizer == "sgd":
        return SGD(flat, lr=o.lr, momentum=o.momentum, nesterov=o.nesterov, weight_decay=o.weight_decay, fused=fused)
    return Adam(flat, lr=o.lr, betas=(o.momentum, 0.999), weight_decay=o.weight_decay, fused=fused)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A moment to roll back to, in memory. Cheaper than a snapshot: what is replaced, not overwritten, is shared."""

    parameters: list[Tensor]
    moments: list[Snapshot]
    memory: Snapshot
    statistics: dict[str, tuple[Tensor, Tensor]]
    generator: Tensor
    cycle: int
    batches: int
    undo: int


class AdaptationState:
    """The state of one adapter.

    A *snapshot* is a copy of everything, by name, for :meth:`restore` and for files. A *checkpoint* is for a rollback
    within a batch.
    """

    def __init__(
        self, options: Options, learnable: FlatParameters, average: StreamAverage, device: torch.device
    ) -> None:
        self.learnable = learnable
        self.optimizer = make_optimizer(options, learnable) if learnable.flat else None
        self.average = average
        self.generator = torch.Generator(device).manual_seed(options.seed)
        self.memory: Snapshot = {}
        """Entries of the method, by names of its choice."""
        self.cycle = 0
        """Position in the cycle of ``adapt_every`` batches, of which the first is learned from."""
        self.batches = 0
        """Batches since the last of the resets that ``reset_every`` asks for."""
        self._undo: list[Callable[[], object]] = []
        self._moment_names = OPTIMIZER_STATE[options.optimizer]

    @property
    def device(self) -> torch.device:
        """The device of the model's first parameter."""
        return self.generator.device

    def snapshot(self) -> Snapshot:
        """Return a copy of everything that evolves, by name."""
        state = {"generator": self.generator.get_state(), "cycle": torch.tensor(self.cycle)}
        state["batches"] = torch.tensor(self.batches)
        for index, flat in enumerate(self.learnable.flat):
            state[f"parameters.{index}"] = flat.detach()
            for name, value in self._moments(index).items():
                state[f"optimizer.{index}.{name}"] = value
        for layer, (mean, variance) in self.average.values.items():
            state[f"statistics.mean.{layer}"], state[f"statistics.variance.{layer}"] = mean, variance
        state |= {f"memory.{name}": value for name, value in self.memory.items()}
        return {name: value.clone() for name, value in state.items()}

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`snapshot` returned."""
        self.learnable.move_to([snapshot[f"parameters.{index}"] for index in range(len(self.learnable.flat))])
        for index, flat in enumerate(self.learnable.flat):
            moments = {name: value.clone() for name, value in parts(f"optimizer.{index}.", snapshot)}
            # A fused optimizer counts its steps on the device, others on the CPU.
            fused = flat.device.type in FUSED_ON
            self._set_moments(index, {n: t.to(flat.device) if fused or n != "step" else t for n, t in moments.items()})
        for layer in self.average.values:
            mean, variance = snapshot[f"statistics.mean.{layer}"], snapshot[f"statistics.variance.{layer}"]
            self.average.values[layer] = (mean.to(self.device).clone(), variance.to(self.device).clone())
        self.average.seen = {}
        self.cycle, self.batches = int(snapshot["cycle"]), int(snapshot["batches"])
        # A file's tensors are on the CPU. Floats go to the model's device; integers are counters and stay on the CPU.
        self.memory = {
            name: (value.to(self.device) if value.is_floating_point() else value).clone()
            for name, value in parts("memory.", snapshot)
        }
        if snapshot["generator"].numel() == self.generator.get_state().numel():
            self.generator.set_state(snapshot["generator"].cpu())

    def check(self, snapshot: Mapping[str, Tensor], like: Snapshot, *, same_device: bool) -> None:
        """Raise unless ``snapshot`` has all parts that :meth:`restore` needs, with shape and dtype as in ``like``.

        Generators of another kind of device have another shape; :meth:`restore` does not load them.
        """
        expected = {name: value for name, value in like.items() if name != "generator" or same_device}
        if any(name.startswith("optimizer.") for name in snapshot):
            for index, flat in enumerate(self.learnable.flat):
                for name in self._moment_names:
                    moment = torch.zeros((), dtype=torch.float32) if name == "step" else flat
                    expected[f"optimizer.{index}.{name}"] = moment
        if not snapshot.keys() & expected.keys():
            raise StateError("expected the state of an adapter, as from its state_dict() or save(), got other entries")
        for name, value in expected.items():
            actual = snapshot.get(name)
            if actual is None or actual.shape != value.shape or actual.dtype != value.dtype:
                got = "nothing" if actual is None else f"{tuple(actual.shape)} of {actual.dtype}"
                raise StateError(f"expected {name!r} to be {tuple(value.shape)} of {value.dtype}, got {got}")

    def checkpoint(self) -> Checkpoint:
        """Return a moment for :meth:`rollback`."""
        flat = self.learnable.flat
        return Checkpoint(
            [parameter.detach().clone() for parameter in flat],
            [{name: value.clone() for name, value in self._moments(index).items()} for index in range(len(flat))],
            dict(self.memory),
            dict(self.average.values),
            self.generator.get_state(),
            self.cycle,
            self.batches,
            len(self._undo),
        )

    def rollback(self, to: Checkpoint) -> None:
        """Return to a checkpoint of the current batch."""
        while len(self._undo) > to.undo:
            self._undo.pop()()
        self.learnable.move_to(to.parameters)
        for index, moments in enumerate(to.moments):
            self._set_moments(index, dict(moments))
        self.memory, self.average.values, self.average.seen = dict(to.memory), dict(to.statistics), {}
        self.generator.set_state(to.generator)
        self.cycle, self.batches = to.cycle, to.batches

    def on_rollback(self, undo: Callable[[], object]) -> None:
        """Register how to undo an in-place change of an entry of ``memory`` that is too large to be replaced."""
        self._undo.append(undo)

    def commit(self) -> None:
        """End the batch: its checkpoints are not used any more."""
        self._undo.clear()

    def moved(self, since: Checkpoint) -> Tensor:
        """Return whether a parameter changed, as a tensor on the device: reading it would be a synchronization."""
        changed = [(flat != old).any() for flat, old in zip(self.learnable.flat, since.parameters, strict=True)]
        return torch.stack([flag.to(changed[0].device) for flag in changed]).any()

    def _moments(self, index: int) -> Snapshot:
        stored = self.optimizer.state[self.learnable.flat[index]] if self.optimizer is not None else {}
        return {name: value for name, value in stored.items() if isinstance(value, Tensor)}

    def _set_moments(self, index: int, moments: Snapshot) -> None:
        if self.optimizer is not None:
            self.optimizer.state[self.learnable.flat[index]] = moments


def parts(prefix: str, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Return the entries of ``state`` whose names begin with ``prefix``, under the rest of their names."""
    return ((name[len(prefix) :], value) for name, value in state.items() if name.startswith(prefix))


def load(path: str | Path, description: Mapping[str, Any]) -> tuple[Snapshot, bool]:
    """Return a state that fits ``description``, and whether it was saved on the same kind of device."""
    state, saved = tensorfile.read(path, KIND, remedy="Save one by Adapter.save or cretta predict --keep-state.")
    for key, what in MUST_MATCH.items():
        if saved.get(key) != description[key]:
            # Eight of a fingerprint's 64 digits are enough for a reader.
            before, now = (f"{v!s:.8}…" if len(str(v)) == 64 else repr(v) for v in (saved.get(key), description[key]))
            raise StateError(
                f"{path} does not fit: {what} was {before} when it was saved and is {now} here. Restore it with the "
                f"same {what.removeprefix('the ')}, or start without it."
            )
    other = {k: v for k, v in saved.get("options", {}).items() if description["options"].get(k) != v}
    if other.keys() & set(OPTIONS_MUST_MATCH):
        raise StateError(f"{path} does not fit: it was saved with {other}; build the adapter with the same options.")
    if other:
        warnings.warn(f"{path} was saved with {other}; the options of this adapter stay.", stacklevel=3)
    # Implementations round differently: with the same ones, this process continues bit for bit.
    pin_choices(saved.get("kernels", {}))
    return state, saved.get("device") == description["device"]
