"""What evolves in an adapter: parameters, optimiser, statistics, memory and generator, and how they move."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from cretta.errors import ModelError, StateError
from cretta.method import Options
from cretta.normalization import StreamAverage
from cretta.parameters import FlatParameters

NOT_FINITE = "the loss, its gradient or the logits after the update are not finite"
NO_LOGITS = "the logits are not finite"
OPTIMIZER_STATE = {
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
}
"""What each optimiser remembers for a parameter after its first step."""
FUSED_ON = ("cpu", "cuda")
"""Devices with optimisers of one kernel."""


def make_optimizer(options: Options, parameters: FlatParameters) -> torch.optim.Optimizer:
    """The optimiser that ``options`` name."""
    o, flat = options, parameters.flat
    # All parameters of a device lie in one tensor: one kernel does the step.
    fused = all(parameter.device.type in FUSED_ON for parameter in flat)
    if o.optimizer == "sgd":
        return torch.optim.SGD(
            flat, lr=o.lr, momentum=o.momentum, nesterov=o.nesterov, weight_decay=o.weight_decay, fused=fused
        )
    kind = torch.optim.AdamW if o.optimizer == "adamw" else torch.optim.Adam
    return kind(flat, lr=o.lr, betas=(o.momentum, 0.999), weight_decay=o.weight_decay, fused=fused)


@dataclasses.dataclass(frozen=True)
class Mark:
    """A checkpoint in memory: the parameters, and a function that rolls back everything that evolves."""

    parameters: list[Tensor]
    back: Callable[[], None]


class Learner:
    """Everything that evolves, and the few ways it does: a step, a snapshot, a return."""

    def __init__(
        self, options: Options, parameters: FlatParameters, average: StreamAverage, device: torch.device
    ) -> None:
        self.parameters = parameters
        self.optimizer = make_optimizer(options, parameters) if parameters.flat else None
        self.average = average
        self.generator = torch.Generator(device).manual_seed(options.seed)
        self.memory: dict[str, Tensor] = {}
        self._undo: list[Callable[[], object]] = []
        self._unchecked: list[Tensor] = []
        self._unmeasured: Tensor | None = None
        self._passed_back = False
        self._postponed = False
        self._far = False
        self._remembered = OPTIMIZER_STATE[options.optimizer]

    def backward(self, loss: Tensor, *, more: bool = False) -> None:
        """Puts the gradient of ``loss`` into the parameters, or, if there is ``more``, adds it to what is there."""
        if not loss.requires_grad:
            raise ModelError(
                "the logits carry no gradient, so nothing can learn: the network's forward detaches them or runs under "
                "torch.no_grad(). Remove that, or use 'source' or 'bn_adapt'."
            )
        if not more:
            self.parameters.zero_grad()
        self._unchecked.append(loss.detach())
        self._passed_back = True
        with torch.autocast(loss.device.type, enabled=False):
            loss.backward()

    def finite(self) -> bool:
        """Return whether batch, logits, loss and gradients are finite, and the batch is not far outside its range.

        This is one synchronization with the device. Where logits from after the update are returned, it is postponed
        until these can be checked too: then the step is taken first, and rolled back if the check fails.
        """
        if self._postponed:
            return True
        gradients = self.parameters.gradients() if self._passed_back else []
        numbers, batch = self._unchecked, self._unmeasured
        self._unchecked, self._unmeasured, self._passed_back = [], None, False
        if not numbers:
            return True
        # A sum is finite for nearly all finite numbers; only if it is not does one look closer.
        everything = [*numbers, *gradients]
        device, limit = numbers[0].device, None
        with torch.autocast(device.type, enabled=False):
            sums = [t.sum(dtype=torch.promote_types(t.dtype, torch.float32)).to(device) for t in everything]
            if batch is not None:
                size = torch.linalg.vector_norm(batch, dtype=torch.promote_types(batch.dtype, torch.float32))
                limit = self.largest_norm(batch)
                sums.append(size.to(device))
                everything.append(batch)
            fine = torch.isfinite(sum(sums[1:], sums[0]))
            if limit is not None:
                fine &= (size <= limit).to(device)
        if bool(fine):
            return True
        self._far = limit is not None and bool(size > limit)
        return not self._far and all(bool(torch.isfinite(tensor).all()) for tensor in everything)

    def largest_norm(self, x: Tensor) -> Tensor | None:
        """Return the Euclidean norm above which a batch is far outside the usual range; None if that is not known."""
        return None

    def step(self) -> None:
        """Lets the optimiser move the parameters by their gradients."""
        assert self.optimizer is not None
        self.optimizer.step()
        torch.clear_autocast_cache()  # it may hold the parameters as they were

    def state(self) -> dict[str, Tensor]:
        """A copy of everything that evolves, by name."""
        state = {"generator": self.generator.get_state()}
        for index, flat in enumerate(self.parameters.flat):
            state[f"parameters.{index}"] = flat.detach()
            for name, value in self._moments(index).items():
                state[f"optimizer.{index}.{name}"] = value
        for layer, (mean, variance) in self.average.values.items():
            state[f"statistics.mean.{layer}"], state[f"statistics.variance.{layer}"] = mean, variance
        state |= {f"memory.{name}": value for name, value in self.memory.items()}
        return {name: value.clone() for name, value in state.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes up a copy that :meth:`state` made."""
        self.parameters.move_to([state[f"parameters.{index}"] for index in range(len(self.parameters.flat))])
        for index, flat in enumerate(self.parameters.flat):
            moments = {name: value.clone() for name, value in parts(f"optimizer.{index}.", state)}
            # A fused optimiser counts its steps on the device, others on the CPU.
            fused = flat.device.type in FUSED_ON
            self._set_moments(index, {n: t.to(flat.device) if fused or n != "step" else t for n, t in moments.items()})
        device = self.generator.device
        for layer in self.average.values:
            mean, variance = state[f"statistics.mean.{layer}"], state[f"statistics.variance.{layer}"]
            self.average.values[layer] = (mean.to(device).clone(), variance.to(device).clone())
        self.average.seen = {}
        # A file's tensors are on the CPU. Numbers belong with the network; whole ones are counters, read by the host.
        self.memory = {
            name: (value.to(device) if value.is_floating_point() else value).clone()
            for name, value in parts("memory.", state)
        }
        if state["generator"].numel() == self.generator.get_state().numel():
            self.generator.set_state(state["generator"].cpu())

    def check(self, state: Mapping[str, Tensor], like: Mapping[str, Tensor], *, same_device: bool) -> None:
        """Raises unless ``state`` has all parts that :meth:`load` will want, shaped and typed as in ``like``.

        Generators of another kind of device are shaped otherwise, and left alone by :meth:`load`.
        """
        wanted = {name: value for name, value in like.items() if name != "generator" or same_device}
        if any(name.startswith("optimizer.") for name in state):
            for index, flat in enumerate(self.parameters.flat):
                for name in self._remembered:
                    wanted[f"optimizer.{index}.{name}"] = (
                        torch.zeros((), dtype=torch.float32) if name == "step" else flat
                    )
        for name, value in wanted.items():
            found = state.get(name)
            if found is None or found.shape != value.shape or found.dtype != value.dtype:
                what = "missing" if found is None else f"{tuple(found.shape)} of {found.dtype}"
                raise StateError(f"{name!r} should be {tuple(value.shape)} of {value.dtype} and is {what}")

    def wrote(self, undo: Callable[[], object]) -> None:
        """For a method that writes into an entry of ``memory``, too large to be replaced: how to take it back."""
        self._undo.append(undo)

    def mark(self) -> Mark:
        """Return a checkpoint of everything that evolves.

        Cheaper than :meth:`state`: what gets replaced, not written into, is not copied.
        """
        done = len(self._undo)
        parameters = [flat.detach().clone() for flat in self.parameters.flat]
        moments = [
            {name: value.clone() for name, value in self._moments(index).items()} for index in range(len(parameters))
        ]
        memory, values, generator = dict(self.memory), dict(self.average.values), self.generator.get_state()

        def back() -> None:
            while len(self._undo) > done:
                self._undo.pop()()
            self.parameters.move_to(parameters)
            for index, kept in enumerate(moments):
                self._set_moments(index, kept)
            self.memory, self.average.values, self.average.seen = memory, values, {}
            self.generator.set_state(generator)

        return Mark(parameters, back)

    def moved(self, since: Mark) -> Tensor:
        """Return whether a parameter changed, as a tensor on the device: reading it would be a synchronization."""
        apart = [(flat != before).any() for flat, before in zip(self.parameters.flat, since.parameters, strict=True)]
        return torch.stack([one.to(apart[0].device) for one in apart]).any()

    def _moments(self, index: int) -> dict[str, Tensor]:
        kept = self.optimizer.state[self.parameters.flat[index]] if self.optimizer is not None else {}
        return {name: value for name, value in kept.items() if isinstance(value, Tensor)}

    def _set_moments(self, index: int, moments: dict[str, Tensor]) -> None:
        if self.optimizer is not None:
            self.optimizer.state[self.parameters.flat[index]] = moments


def parts(prefix: str, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Return the entries of ``state`` whose names begin with ``prefix``, under the rest of their names."""
    return ((name[len(prefix) :], value) for name, value in state.items() if name.startswith(prefix))
