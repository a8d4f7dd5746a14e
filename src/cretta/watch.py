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
        self._weights = [(name, p) for name, p in net.named_parameters() if not p.is_inference() and not p.is_meta]
        self._versions = [parameter._version for _, parameter in self._weights]
        self._sums = [checksum(parameter) for _, parameter in self._weights]

    def written(self) -> list[str]:
        """Return the names of weights that operations of PyTorch wrote to."""
        versions = [parameter._version for _, parameter in self._weights]
        if versions == self._versions:
            return []
        return self._names([one != other for one, other in zip(versions, self._versions, strict=True)])

    def changed(self) -> list[str]:
        """Return the names of weights whose values differ, by their checksums."""
        sums = [checksum(parameter) for _, parameter in self._weights]
        return self._names([bool(one != other) for one, other in zip(sums, self._sums, strict=True)])

    def _names(self, flags: list[bool]) -> list[str]:
        return [name for (name, _), flag in zip(self._weights, flags, strict=True) if flag]


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
