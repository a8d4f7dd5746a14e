"""Choose what runs a network, and verify on the first batch that it computes the same."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from cretta.accelerate import choices, kernels
from cretta.accelerate.choices import Choice, Shape
from cretta.accelerate.graph import by_position, rewrite

LOG = logging.getLogger("cretta")
LOGIT_TOLERANCE = 1e-4
"""Largest difference of two logits, divided by the largest logit."""
GRADIENT_TOLERANCE = 0.01
"""Largest root mean square of the relative errors of all gradients of the rewritten network, without kernels."""
ROUNDING_FACTOR = 5
"""How much farther from float64 than PyTorch's own logits those of kernels may be, where rounding grows with depth."""
KERNEL_TOLERANCE = 1e-3
"""Largest relative error of one result of a kernel.

The numbers behind these are in docs/speed.md (``python benchmarks/rounding.py``). Gradients of a network cannot be
compared more strictly than by about 1 %: where float32 rounding changes the sign of a ReLU's input, PyTorch's own
gradients differ that much from float64. The rewritten network without kernels uses PyTorch's arithmetic, hence it has
the same signs. The kernels round differently, so they are compared one by one, on the inputs that occur in the network.
"""

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
    choices: tuple[Choice, ...] = ()
    """The implementations that were chosen for the shapes of this network so far, with their times."""

    def __str__(self) -> str:
        counts = Counter(choice.kernel for choice in self.choices)
        shapes = ", ".join(f"{kernel} for {count}" for kernel, count in counts.most_common())
        return f"{self.name}: {self.reason}" + (
            f"; by timing, {shapes} of {len(self.choices)} shapes" if shapes else ""
        )

    def record(self) -> dict[str, str]:
        """Return the implementation of each shape; ``CRETTA_KERNELS`` may name a JSON file of it."""
        return {str(choice.shape): choice.kernel for choice in self.choices}


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
        self._layers: set[Shape] = set()
        self.chosen = True
        if compile_mode is not None:
            self._plain = torch.compile(module, mode=compile_mode)
            self._backend = Backend("compiled", f"compile={compile_mode!r}")
        elif plain_because is not None:
            self._backend = Backend("plain", plain_because)
        else:
            self.chosen = False
            self._backend = Backend("plain", "not chosen yet; the first batch decides")

    @property
    def backend(self) -> Backend:
        """What runs the network, and why, with the choices for its layers so far."""
        if self._backend.name != "kernels":
            return self._backend
        chosen = tuple(choice for choice in choices.choices() if choice.shape.layer in self._layers)
        return dataclasses.replace(self._backend, choices=chosen)

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
        if torch.is_autocast_enabled(x.device.type) or _may_overflow(x):
            return
        name = type(self._module).__name__
        if self._learns:
            # For its gradients the plain network needs twice the memory of the rewritten one. With half of the batch
            # it needs about as much as the steps that follow.
            x = x[: max(2, (len(x) + 1) // 2)]
        with _unchanged(self._module, x.device) as buffers_changed:
            try:
                expected = self.results(self._module, x, logits)
            except (ValueError, RuntimeError, TypeError, IndexError):
                return  # the call that follows reports what is wrong with the batch
            if not all(bool(torch.isfinite(values).all()) for values in expected):
                return
            # Tracing runs Python code once: writes to buffers would be lost.
            if buffers_changed():
                network, self._backend = None, Backend("plain", f"{name} writes to its buffers in its forward method")
            else:
                network, self._backend = self._fastest(x, expected, arguments, logits)
        self._accelerated = network or self._plain
        self._verified_for = (x.dim(), arguments)
        self.chosen = True
        LOG.debug("%s runs %s", name, self._backend)

    def _fastest(
        self, x: Tensor, expected: list[Tensor], arguments: Arguments, logits: Logits
    ) -> tuple[Callable[..., Any] | None, Backend]:
        """Return the fastest network that gives the results of the plain one, or None, and the backend."""
        name = type(self._module).__name__
        try:
            network = rewrite(self._module, learns=self._learns, call=arguments.call)
            if isinstance(network, str):
                return None, Backend("plain", f"{name} cannot be rewritten: {network}")
            without_kernels = kernels.without(network)
            problem = difference(self.results(without_kernels, x, logits), expected)
        except Exception as error:  # tracing may have taken another branch; then the network is wrong
            return None, Backend("plain", f"the rewritten {name} raised {type(error).__name__}: {error}")
        if problem is not None:
            return None, Backend("plain", f"the rewritten {name} was rejected: {problem}")
        verified, missing = f"verified on {len(x)} samples of the first batch", kernels.missing()
        if missing is None:
            used, problem = self._check_kernels(network, x, expected[0], logits)
            if used and problem is None:
                return network, Backend("kernels", f"{kernels.describe()}; {verified}")
            if problem is not None:
                LOG.warning("The custom CPU kernels are not used for %s: %s. Please report this.", name, problem)
            missing = problem or "no layer of this network fits them"
        return without_kernels, Backend("rewritten", f"{verified}; without custom CPU kernels: {missing}")

    def _check_kernels(
        self, network: nn.Module, x: Tensor, expected: Tensor, logits: Logits
    ) -> tuple[bool, str | None]:
        """Return whether the network uses kernels, and what is wrong with their results."""
        used = False
        for path in kernels.paths():
            try:
                # Half of the samples, because the exact gradients need memory for float64.
                with kernels.compared(path) as (errors, layers):
                    self.results(network, x[: max(2, len(x) // 2)], logits)
                    with torch.no_grad():
                        computed = logits(network, x)
                if not errors:
                    continue
                used = True
                # NaN is not above a tolerance, and max() may pass over it.
                above = [error for error in errors if not error <= KERNEL_TOLERANCE]
                if above:
                    return True, f"one of {path} differs by {above[0]:.2%} from PyTorch"
                problem = difference([computed], [expected])
                if problem is not None and not self._is_rounding(computed, expected, x, logits):
                    return True, problem
                self._layers |= layers
            except Exception as error:  # the network without kernels is known to work
                return True, f"it raised {type(error).__name__}: {error}"
        return used, None

    def _is_rounding(self, computed: Tensor, expected: Tensor, x: Tensor, logits: Logits) -> bool:
        """Return whether logits are about as close to those in float64 as PyTorch's own, which are ``expected``.

        With EfficientNet-Lite0, 160 px and statistics of 16 images PyTorch is off by 4e-4 of the largest logit.
        """
        with torch.no_grad():
            exact = logits(copy.deepcopy(self._module).double(), x.double())
        error, own = (float((values - exact).norm()) for values in (computed, expected))
        return error <= ROUNDING_FACTOR * own

    def results(self, network: Callable[..., Any], x: Tensor, logits: Logits = by_position) -> list[Tensor]:
        """Return the logits of ``x`` and, if the network learns, the gradients of ``x`` and of its parameters."""
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


def _may_overflow(x: Tensor) -> bool:
    """Return whether values are so large that sums of their squares overflow: then no kernel can be judged."""
    return x.is_floating_point() and not float(x.abs().max()) < torch.finfo(x.dtype).max ** 0.25


def difference(results: list[Tensor], expected: list[Tensor]) -> str | None:
    """Return how logits, or the gradients of images and parameters, differ by more than rounding, or None."""
    if [values.shape for values in results] != [values.shape for values in expected]:
        return "its results have other shapes"
    off, size = float((results[0] - expected[0]).abs().max()), float(expected[0].abs().max())
    if not off <= LOGIT_TOLERANCE * max(size, 0.1):
        return f"its logits differ by {off:.2g}, the largest being {size:.2g}"
    if len(expected) == 1:
        return None
    error = gradient_error(results, expected)
    return None if error <= GRADIENT_TOLERANCE else f"its gradients differ by {error:.2%}"


def gradient_error(results: list[Tensor], expected: list[Tensor]) -> float:
    """Return the root mean square over all gradients of the norm of the difference, divided by the norm."""
    norms = torch.stack([gradient.norm().double() for gradient in expected[1:]])
    differences = [(one - other).norm().double() for one, other in zip(results[1:], expected[1:], strict=True)]
    # A gradient that cancels out is nothing but rounding: it is compared with the largest.
    errors = torch.stack(differences) / (norms + 1e-3 * norms.max()).clamp(min=1e-30)
    return float(errors.square().mean().sqrt())


@contextmanager
def _unchanged(module: nn.Module, device: torch.device) -> Iterator[Callable[[], bool]]:
    """Restore buffers and random number generators at the end of the block; yield whether buffers changed so far."""
    buffers = [
        (p, name, b, b._version, b.clone()) for p in module.modules() for name, b in p._buffers.items() if b is not None
    ]

    def changed() -> bool:
        return any(p._buffers[name] is not b or b._version != version for p, name, b, version, _ in buffers)

    devices = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
            yield changed
    finally:
        for part, name, buffer, version, value in buffers:
            if part._buffers[name] is not buffer:  # TorchScript does not let its buffers be replaced
                part._buffers[name] = buffer
            if buffer._version != version:
                buffer.copy_(value)
