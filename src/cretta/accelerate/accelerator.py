"""Choose what runs a network, and verify on the first batch that it computes the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from cretta.accelerate import kernels
from cretta.accelerate.graph import rewrite

LOG = logging.getLogger("cretta")
LOGIT_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 1e-2

Logits = Callable[[Callable[..., Any], Tensor], Tensor]
"""Return the logits of a network for a batch."""


class Arguments(Protocol):
    """How a batch is passed to a network."""

    def call(self, network: Callable[..., Any], x: Tensor, /) -> Any:
        """Pass ``x`` to ``network``."""


@dataclass(frozen=True)
class Backend:
    """What runs a network, and why."""

    name: Literal["plain", "rewritten", "kernels", "compiled"]
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Accelerator:
    """Runs a network as it is, rewritten, with custom CPU kernels, or compiled.

    The first batch decides: the rewritten network is used if it gives the same logits and gradients as the plain one,
    except for rounding. ``plain_because`` is a reason not to rewrite it.
    """

    def __init__(
        self, module: nn.Module, *, learns: bool, compile_mode: str | None = None, plain_because: str | None = None
    ) -> None:
        self._module = module
        self._learns = learns
        self._plain: Callable[..., Any] = module
        self._accelerated: Callable[..., Any] = module
        self._verified_for: tuple[int, Arguments] | None = None
        self.chosen = True
        if compile_mode is not None:
            self._plain = torch.compile(module, mode=compile_mode)
            self.backend = Backend("compiled", f"compile={compile_mode!r}")
        elif plain_because is not None:
            self.backend = Backend("plain", plain_because)
        else:
            self.chosen = False
            self.backend = Backend("plain", "not chosen yet; the first batch decides")

    def network(self, x: Tensor, arguments: Arguments) -> Callable[..., Any]:
        """Return the callable to run ``x`` with."""
        # Autocast treats each operation by itself. A batch of the wrong rank must reach the plain module, whose error
        # message is clear.
        if torch.is_autocast_enabled(x.device.type) or (x.dim(), arguments) != self._verified_for:
            return self._plain
        return self._accelerated

    def choose(self, x: Tensor, arguments: Arguments, logits: Logits) -> None:
        """Choose the backend by the batch ``x``; leave the choice open if the plain network cannot process it.

        ``logits`` runs a network; ``arguments`` must not change later.
        """
        if torch.is_autocast_enabled(x.device.type):
            return
        if self._learns:
            # The plain network needs twice the memory of the rewritten one for its gradients. Half of the batch keeps
            # the peak where the steps after this one have it.
            x = x[: max(2, (len(x) + 1) // 2)]
        with _unchanged(self._module, x.device):
            try:
                expected = self._results(self._module, x, logits)
            except (ValueError, RuntimeError, TypeError, IndexError):
                return  # the call that follows reports what is wrong with the batch
            if not all(bool(torch.isfinite(values).all()) for values in expected):
                return
            self._verify(x, arguments, logits, expected)
        self._verified_for = (x.dim(), arguments)
        self.chosen = True
        LOG.debug("%s runs %s", type(self._module).__name__, self.backend)

    def _verify(self, x: Tensor, arguments: Arguments, logits: Logits, expected: list[Tensor]) -> None:
        network: nn.Module | str
        try:
            network = rewrite(self._module, learns=self._learns, call=arguments.call)
        except Exception as error:  # from layers of a third party; the plain network is always right
            network = f"{type(error).__name__}: {error}"
        if isinstance(network, str):
            self.backend = Backend("plain", f"{type(self._module).__name__} cannot be rewritten: {network}")
            return
        verified = f"verified on {len(x)} samples of the first batch"
        missing = kernels.missing()
        if missing is None:
            before = kernels.calls()
            problem = self._difference(network, x, logits, expected)
            used = kernels.calls() > before
            if problem is None:
                self._accelerated = network
                unused = "no layer here fits the custom CPU kernels"
                self.backend = Backend("kernels", verified) if used else Backend("rewritten", f"{verified}; {unused}")
                return
            if used:
                missing = f"with them {problem}"
                LOG.warning("custom CPU kernels are not used for %s: %s", type(self._module).__name__, missing)
        with kernels.disabled():
            problem = self._difference(network, x, logits, expected)
        if problem is None:
            self._accelerated = kernels.without(network)
            self.backend = Backend("rewritten", f"{verified}; custom CPU kernels are not used: {missing}")
        else:
            self.backend = Backend("plain", f"the rewritten network was rejected: {problem}")

    def _difference(self, network: nn.Module, x: Tensor, logits: Logits, expected: list[Tensor]) -> str | None:
        """Return how the results of ``network`` differ from those expected, or None if it is by rounding only."""
        try:
            return _difference(self._results(network, x, logits), expected)
        except Exception as error:  # tracing may have taken another branch: any exception means that it is wrong
            return f"it raised {type(error).__name__}: {error}"

    def _results(self, network: Callable[..., Any], x: Tensor, logits: Logits) -> list[Tensor]:
        """Return the logits of ``x`` and, if the network learns, the gradients of its parameters and of ``x``."""
        with torch.set_grad_enabled(self._learns):
            x = x.clone().requires_grad_(self._learns and x.is_floating_point())
            outputs = logits(network, x)
            inputs = [tensor for tensor in (x, *self._module.parameters()) if tensor.requires_grad]
            if not outputs.requires_grad or not inputs:
                return [outputs.detach()]
            # Unequal weights, because the logits of a batch with batch statistics may sum to a constant.
            weights = torch.linspace(0.5, 1.5, outputs.numel(), dtype=outputs.dtype, device=outputs.device)
            loss = (outputs.flatten() * weights).square().sum()
            gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
        return [outputs.detach(), *(gradient for gradient in gradients if gradient is not None)]


def _difference(results: list[Tensor], expected: list[Tensor]) -> str | None:
    """Return how logits or gradients differ by more than rounding, or None."""
    if [values.shape for values in results] != [values.shape for values in expected]:
        return "its results have other shapes"
    off, size = float((results[0] - expected[0]).abs().max()), float(expected[0].abs().max())
    if not off <= LOGIT_TOLERANCE * (1 + size):
        return f"its logits differ by {off:.2g}, of {size:.2g}"
    sizes = [float(values.norm()) for values in expected[1:]]
    for one, other, size in zip(results[1:], expected[1:], sizes, strict=True):
        off = float((one - other).norm())
        # A gradient that cancels out is all rounding.
        if not off <= GRADIENT_TOLERANCE * (size + 0.1 * max(sizes)):
            return f"a gradient differs by {off:.2g}, of {size:.2g}"
    return None


@contextmanager
def _unchanged(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore the buffers of ``module`` and the random number generators at the end of the block."""
    buffers = [(part, dict(part._buffers)) for part in module.modules() if part._buffers]
    values = [(b, b.clone()) for _, named in buffers for b in named.values() if b is not None]
    devices = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
            yield
    finally:
        for part, named in buffers:
            for name, buffer in named.items():
                if part._buffers[name] is not buffer:  # TorchScript does not let its buffers be replaced
                    part._buffers[name] = buffer
        for buffer, value in values:
            if not torch.equal(buffer, value):
                buffer.copy_(value)
