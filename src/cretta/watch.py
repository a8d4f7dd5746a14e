"""Notice writes to the weights that an adapter shares with its network."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn


class WeightWatch:
    """The weights of a network as they were when an adapter was built.

    A write by an operation of PyTorch, such as an optimizer's step, raises the version that autograd counts: that is
    cheap to compare before each batch. A write through ``.data`` or numpy does not; a checksum shows it.
    """

    def __init__(self, net: nn.Module) -> None:
        self._weights = {
            name: (parameter, parameter._version, checksum(parameter))
            for name, parameter in net.named_parameters()
            if not parameter.is_inference() and not parameter.is_meta
        }

    def written(self) -> list[str]:
        """Return the names of weights that operations of PyTorch wrote to."""
        return [name for name, (weight, version, _) in self._weights.items() if weight._version != version]

    def changed(self) -> list[str]:
        """Return the names of weights whose values differ, by their checksums."""
        return [name for name, (weight, _, before) in self._weights.items() if bool(checksum(weight) != before)]


def warn_of_writes(names: list[str]) -> None:
    """Warn that these weights of ``net`` changed."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    warnings.warn(
        f"weights of net were written to after the adapter was built ({', '.join(names[:3])}{more}); the source "
        "model is now net as it is, and what was learned stays. Call reset() to start from it; of a network that "
        "you train, adapt a deep copy.",
        stacklevel=6,
    )


@torch.no_grad()
def checksum(values: Tensor) -> Tensor:
    """Return the sum of the bits of all values as integers: any single change changes it."""
    values = values.detach()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(values.element_size())
    if integers is None or not values.is_floating_point() or values.layout != torch.strided:
        return values.to_dense().sum()
    return values.contiguous().view(integers).sum(dtype=torch.int64)
