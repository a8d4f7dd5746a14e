"""An adapter as a PyTorch module: its parameters, device and copies, and what it saves."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys

from cretta import state
from cretta.buffer import SourceBuffer
from cretta.distributed import Group
from cretta.errors import BusyError, ModelError, OptionError, StateError
from cretta.inputs import InputRange
from cretta.method import Facts, Options, Record
from cretta.monitor.guard import GuardState
from cretta.network import Network, copy_sharing_parameters
from cretta.state import AdaptationState, Snapshot
from cretta.storage import tensorfile


class StatefulModule(nn.Module):
    """A module whose state is everything that evolves, not only parameters; one thread at a time uses it.

    Neither ``net`` nor its adapting copy is registered as a child: the copy must stay in eval mode, and its frozen
    weights, which are ``net``'s own, must not be overwritten by ``load_state_dict``.
    """

    name: ClassVar[str] = ""
    """The name the method is registered by; empty for a base class."""
    facts: ClassVar[Facts]
    options: Options
    net: nn.Module
    buffer: SourceBuffer | None
    skip: tuple[str, ...]
    """Full names of the layers that do not learn, with all layers inside them."""
    statistics: str
    state: AdaptationState
    """Everything that evolves."""
    initial: Snapshot
    """The state before the first batch."""
    model: Network
    """The adapting copy of ``net``: ``model(x)``, ``model.probe(x)``, ``model.source(x)``."""
    last: Record
    group: Group | None = None
    """The processes that share each batch, if any; see :meth:`distribute`."""
    _frozen: dict[str, Network]
    _inputs: InputRange
    _guard: GuardState | None

    def __init__(self) -> None:
        super().__init__()
        self._busy = threading.Lock()
        self._user: int | None = None
        self._net_fingerprint: str | None = None

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # without nn.Module's registration, which takes long for each batch

    def _build(self, net: nn.Module) -> None:
        """Set everything that depends on the network and its device, and the state to the beginning."""
        raise NotImplementedError

    def _check_weights(self) -> None:
        """Notice weights of ``net`` that were written to, through ``.data`` too."""
        raise NotImplementedError

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other threads from using the adapter in this block."""
        thread = threading.get_ident()
        if self._user == thread:
            raise BusyError(
                "this adapter is in the middle of a batch in this very thread, as when the network or a hook calls it. "
                "Nothing was changed; call it after the batch."
            )
        if not self._busy.acquire(blocking=self.options.busy == "wait"):
            raise BusyError(
                "this adapter is in the middle of a batch in another thread, and busy='raise'. Nothing was changed; "
                "use busy='wait', put a queue before it, or give each thread an adapter of its own."
            )
        self._user = thread
        try:
            # Callers may be in inference mode; tensors created there could not learn.
            with torch.inference_mode(False):
                yield
        finally:
            self._user = None
            self._busy.release()

    # Saving and copying.

    def save(self, path: str | Path) -> None:
        """Write everything that evolves to a safetensors file; :meth:`restore` continues bit for bit."""
        with self.exclusive():
            records = [network.backend.record() for network in (self.model, *self._frozen.values())]
            kernels = {shape: kernel for record in records for shape, kernel in record.items()}
            description = {"kind": state.KIND, "kernels": kernels, **self.description()}
            if self.group is None:
                tensorfile.write(path, self._snapshot(), description)
            else:
                self.group.on_first(lambda: tensorfile.write(path, self._snapshot(), description))

    def restore(self, path: str | Path) -> None:
        """Restore a state that :meth:`save` wrote for the same method and source model."""
        with self.exclusive():
            self._check_weights()
            snapshot, same_device = state.load(path, self.description())
            try:
                self._restore(snapshot, same_device=same_device)
            except StateError as error:
                raise StateError(f"{path} is damaged: {error}. Save it again.") from None

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Return a copy of everything that evolves; frozen weights are not in it."""
        with self.exclusive():
            destination = {} if destination is None else destination
            destination.update({f"{prefix}{name}": value for name, value in self._snapshot().items()})
            return destination

    def _snapshot(self) -> Snapshot:
        snapshot = self.state.snapshot()
        snapshot |= {f"range.{name}": value for name, value in self._inputs.snapshot().items()}
        if self._guard is not None:
            snapshot |= {f"guard.{name}": value for name, value in self._guard.snapshot().items()}
        return snapshot

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Continue from a :meth:`state_dict` of an adapter of the same method, network and options.

        All entries are needed, whatever ``strict`` says. Random numbers of another kind of device are not loaded.
        """
        with self.exclusive():
            self._restore(state_dict)
        return _IncompatibleKeys([], [])

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Load the part of the state of a module that contains this one; the last argument collects errors."""
        try:
            self.load_state_dict(dict(state.parts(prefix, state_dict)))
        except StateError as error:
            args[-1].append(str(error))

    def _restore(self, snapshot: Mapping[str, Tensor], *, same_device: bool | None = None) -> None:
        if same_device is None:
            generator = snapshot.get("generator", torch.empty(0))
            same_device = generator.shape == self.initial["generator"].shape
        self.state.check(snapshot, self.initial, same_device=same_device)
        self.state.restore(snapshot)
        self._inputs.restore(dict(state.parts("range.", snapshot)), self.device)
        if self._guard is not None:
            self._guard.restore(dict(state.parts("guard.", snapshot)), self.device)

    def clone(self, **options: Any) -> Self:
        """Return an independent adapter of the same method, network, buffer and state, with some ``options`` changed.

        What is computed once and not part of the state, such as energies of source samples, is computed again.
        """
        with self.exclusive():
            clone = type(self)(self.net, self.buffer, **(self.changed_options() | options))  # type: ignore[call-arg]  # of Adapter
            clone._restore(self._snapshot())
            return clone

    def distribute(self, group: Group) -> Self:
        """Share every batch with the other processes of ``group``, all of which call this and every other method.

        Each process passes its own images of a batch and gets their logits; what is learned is learned from all of
        them, and is the same in all processes. Rank 0 saves. See :mod:`cretta.distributed`.
        """
        if self.options.compile is not None:
            raise OptionError(f"compile={self.options.compile!r}: expected None with several processes; leave it out.")
        with self.exclusive():
            group.require_same(self.description())
            snapshot, self.group = self._snapshot(), group
            self._build(self.net)
            self._restore(snapshot)
        return self

    def __getstate__(self) -> dict[str, Any]:
        with self.exclusive():
            return {
                "arguments": (self.net, self.buffer, self.changed_options()),
                "snapshot": self._snapshot(),
                "last": self.last,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        net, buffer, options = state["arguments"]
        type(self).__init__(self, net, buffer, **options)  # type: ignore[call-arg]  # of Adapter
        self._restore(state["snapshot"])
        self.last = state["last"]

    def changed_options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, with the full names of skipped layers."""
        defaults = {field.name: field.default for field in dataclasses.fields(self.options)}
        changed = {name: value for name, value in vars(self.options).items() if value != defaults[name]}
        return changed | ({"skip": self.skip} if "skip" in changed else {})

    def description(self) -> dict[str, Any]:
        """Return what a state depends on, as a file of it records it: method, weights, buffer, device and options."""
        if self._net_fingerprint is None:
            tensors = {name: value for name, value in self.net.state_dict().items() if isinstance(value, Tensor)}
            self._net_fingerprint = tensorfile.fingerprint(part for entry in tensors.items() for part in entry)
        options = {**dataclasses.asdict(self.options), "statistics": self.statistics, "skip": self.skip}
        return {
            "method": self.name,
            "weights": self._net_fingerprint,
            "buffer": self.buffer.fingerprint if self.buffer and self.reads_buffer else None,
            "device": self.device.type,
            "options": json.loads(json.dumps(options)),  # through JSON and back, like the saved ones
        }

    # PyTorch's interface.

    @property
    def device(self) -> torch.device:
        """The device of the model's first parameter."""
        return self.state.device

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yield this module and those of the adapting copy of ``net``, which ``parameters()`` and others walk."""
        yield from super().named_modules(memo, prefix, remove_duplicate)
        name = f"{prefix}.network" if prefix else "network"
        yield from self.model.module.named_modules(memo, name, remove_duplicate)

    def networks(self) -> Iterator[nn.Module]:
        """Yield the modules that the adapter calls: the adapting copy of ``net``, and the frozen ones it has so far."""
        yield from (network.module for network in (self.model, *self._frozen.values()))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients to zero; they stay allocated, since they are views of one tensor."""
        self.state.learnable.zero_grad()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to the device that ``fn`` moves a tensor to; called by ``to()``, ``cuda()``, ``double()`` and others."""
        dtype = next((p.dtype for p in self.net.parameters() if p.is_floating_point()), torch.float32)
        tensor = fn(torch.zeros(1, dtype=dtype, device=self.device))
        if tensor.dtype != dtype:
            raise ModelError(
                f"expected a device, got {tensor.dtype}: an adapter keeps the dtype of its network, {dtype}. Convert "
                "the network and adapt it again: cretta.adapt(net.double(), …); use torch.autocast for half precision."
            )
        if tensor.device != self.device:
            with self.exclusive():
                snapshot = self._snapshot()
                self._build(copy_sharing_parameters(self.net).to(tensor.device))
                self._restore(snapshot)
        return self
