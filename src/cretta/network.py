"""A network as the adapter uses it: a copy that shares its frozen tensors and answers with logits."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from cretta.errors import BatchError, ModelError
from cretta.norm import NormStatistics, Role


def share(net: nn.Module, own: Iterable[str] = ()) -> nn.Module:
    """A copy of ``net``, asleep (eval mode, no gradients), on the same parameter storage.

    Parameters named in ``own``, and all buffers, are copied; a network that writes to its buffers while
    it predicts must not reach the user's.
    """
    owned = set(own)
    memo: dict[int, Any] = {}
    with torch.inference_mode(False), torch.no_grad():
        for name, parameter in net.named_parameters(remove_duplicate=False):
            if isinstance(parameter, nn.UninitializedParameter):
                raise ModelError(
                    f"parameter {name!r} has no shape yet (a lazy module); run one batch through net first."
                )
            if id(parameter) not in memo or name in owned:
                # Inference tensors cannot take part in autograd, so they cannot be shared.
                mine = name in owned or parameter.is_inference()
                values = parameter.clone() if mine else parameter.detach()
                memo[id(parameter)] = nn.Parameter(values, requires_grad=False)
        for buffer in net.buffers():
            memo[id(buffer)] = buffer.detach().clone()
        try:
            return copy.deepcopy(net, memo).eval()
        except (TypeError, RuntimeError, AttributeError) as wrong:
            raise ModelError(
                f"this {type(net).__name__} cannot be copied ({wrong}); an adapter works on a copy, so that "
                "net stays as it is. Remove what cannot be copied (open files, tensors with a graph)."
            ) from wrong


def logits_of(output: object, batch: int) -> Tensor:
    """The (batch, classes) tensor in what a network returned: itself, its ``.logits`` or ``["logits"]``."""
    logits = output
    if not isinstance(output, Tensor):
        logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise ModelError(
            f"the network returned {type(output).__name__}; needed is a tensor of logits (batch, classes), or "
            "an object with such a .logits. Wrap the network so that it returns its logits."
        )
    if logits.dim() != 2 or logits.shape[0] != batch:
        raise ModelError(
            f"the network returned logits of shape {tuple(logits.shape)} for a batch of {batch}; needed is "
            f"({batch}, classes). If the input lacked its batch dimension, add it with x.unsqueeze(0)."
        )
    if not logits.is_floating_point():
        raise ModelError(
            f"the network returned {logits.dtype} numbers, which are no logits; return those, not class indices."
        )
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


class Classifier:
    """Calls a network and returns its logits in at least single precision."""

    def __init__(self, module: nn.Module, statistics: NormStatistics) -> None:
        self.module = module
        self.statistics = statistics
        self._contiguous = False
        self._looked_at = False

    def __call__(self, x: Tensor, role: Role = "target") -> Tensor:
        """Logits of ``x``, a batch of the target stream or of source samples."""
        self.statistics.role = role
        try:
            logits = self._answer(x)
        except (ValueError, RuntimeError) as wrong:
            if isinstance(wrong, ModelError):
                raise
            explained = self._explain(x, str(wrong))
            if explained is None:
                raise
            raise explained from wrong
        finally:
            self.statistics.role = "target"
        if not self._looked_at:
            self._look_at(logits.detach())
        return logits

    def _answer(self, x: Tensor) -> Tensor:
        if self._contiguous:
            return logits_of(self.module(x.contiguous()), len(x))
        try:
            return logits_of(self.module(x), len(x))
        except RuntimeError as wrong:
            if "view size is not compatible" not in str(wrong) or x.is_contiguous():
                raise
            # A network that flattens by .view() cannot take channels-last; it will not learn to.
            self._contiguous = True
            return self._answer(x)

    def _look_at(self, logits: Tensor) -> None:
        """Once: whether these can be logits at all."""
        if logits.shape[1] < 2:
            raise ModelError(
                "the network returns one number for each sample; needed are logits of at least two classes."
            )
        if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-4).all()):
            raise ModelError(
                "the network returns probabilities (rows that sum to 1); needed are logits, from before the softmax."
            )
        self._looked_at = True

    def _explain(self, x: Tensor, message: str) -> BatchError | None:
        if "more than 1 value per channel" in message:
            return BatchError(
                f"a batch of {len(x)} is too small for batch statistics in this network; use "
                "statistics='mixture', 'moving' or 'running', or larger batches."
            )
        convolution = next((m for m in self.module.modules() if isinstance(m, _ConvNd)), None)
        if convolution is None:
            return None
        wanted, channels = convolution.weight, convolution.in_channels
        if x.dim() != wanted.dim():
            return BatchError(
                f"the network cannot take a batch of shape {tuple(x.shape)}: its convolutions want {wanted.dim()} "
                f"dimensions, the batch first ({message})."
            )
        if x.dtype != wanted.dtype and not torch.is_autocast_enabled(x.device.type):
            advice = (
                "x.float() / 255 for images of whole numbers" if not x.is_floating_point() else f"x.to({wanted.dtype})"
            )
            return BatchError(
                f"the batch is {x.dtype}, the network {wanted.dtype}; convert it by {advice} ({message})."
            )
        if x.shape[1] != channels:
            return BatchError(
                f"the batch has shape {tuple(x.shape)}, and the network's first convolution wants {channels} channels "
                f"in the second place. Images that end in their channels: x.permute(0, 3, 1, 2) ({message})."
            )
        return None


class FlatParameters:
    """Parameters that learn, laid out in one tensor for each device and dtype.

    The network's parameters and their gradients are views of it, so that the optimiser, a snapshot, a reset
    and a check for finite values are one operation each, whatever the number of layers.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self.names = tuple(name for name, _ in named)
        self.flat: list[nn.Parameter] = []
        groups: dict[tuple[torch.device, torch.dtype], list[nn.Parameter]] = {}
        for _, parameter in named:
            groups.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        self._members = list(groups.values())
        for parameters in self._members:
            flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
            flat.grad = torch.zeros_like(flat)
            start = 0
            for parameter in parameters:
                window = slice(start, start + parameter.numel())
                parameter.data = flat.data[window].view(parameter.shape)
                parameter.requires_grad_(True)
                parameter.grad = flat.grad[window].view(parameter.shape)
                start = window.stop
            self.flat.append(flat)

    def joined(self) -> list[Tensor]:
        """The parameters laid out as in ``flat``, as part of a graph: for penalties on them."""
        return [torch.cat([parameter.reshape(-1) for parameter in parameters]) for parameters in self._members]

    def gradients(self) -> list[Tensor]:
        """All gradients, laid out as in ``flat``."""
        return [flat.grad for flat in self.flat if flat.grad is not None]

    def zero_grad(self) -> None:
        """Clears the gradients in place: they are views and must stay so."""
        for gradient in self.gradients():
            gradient.zero_()

    def gradients_finite(self) -> bool:
        """Whether every gradient is a finite number."""
        return all(bool(torch.isfinite(gradient).all()) for gradient in self.gradients())

    @contextmanager
    def at(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Moves the parameters to ``values`` for a while, then back to the bit."""
        here = [flat.detach().clone() for flat in self.flat]
        try:
            self.move_to(values)
            yield
        finally:
            self.move_to(here)

    def move_to(self, values: Sequence[Tensor]) -> None:
        """Sets the parameters, laid out as in ``flat``."""
        for flat, value in zip(self.flat, values, strict=True):
            flat.data.copy_(value)
        torch.clear_autocast_cache()  # it may hold the parameters as they were
