"""The parameters of a network in one piece of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class FlatParameters:
    """The parameters that learn, in one tensor per device and dtype.

    The network's parameters and their gradients are views of it, so that an optimizer step, a snapshot, a reset and a
    check for finite values are one operation each, for any number of layers.
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
        """Return the parameters in the layout of ``flat``, with a graph, for penalties on them."""
        return [torch.cat([parameter.reshape(-1) for parameter in parameters]) for parameters in self._members]

    def gradients(self) -> list[Tensor]:
        """Return all gradients in the layout of ``flat``."""
        return [flat.grad for flat in self.flat if flat.grad is not None]

    def zero_grad(self) -> None:
        """Set the gradients to zero in place: they must stay views."""
        for gradient in self.gradients():
            gradient.zero_()

    @contextmanager
    def at(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Set the parameters to ``values`` in this block, and restore them exactly afterwards."""
        saved = [flat.detach().clone() for flat in self.flat]
        try:
            self.move_to(values)
            yield
        finally:
            self.move_to(saved)

    def move_to(self, values: Sequence[Tensor]) -> None:
        """Set the parameters to values in the layout of ``flat``."""
        for flat, value in zip(self.flat, values, strict=True):
            flat.data.copy_(value)
        torch.clear_autocast_cache()  # it may hold copies of the old values
