"""Whether a batch, and what a step computes from it, is finite."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cretta.errors import BatchError, CrettaError, ModelError
from cretta.parameters import FlatParameters

NOT_FINITE = "the loss, its gradient or the logits after the update are not finite"
NO_LOGITS = "the logits are not finite"


class StepCheck:
    """Collects what one step computes and checks all of it with one synchronization with the device.

    ``batch`` is checked too, also against the ``limit`` of its Euclidean norm, if that is known. With ``postponed``,
    the caller of :meth:`passed` is the adapter alone: where logits from after the update are returned, the step is
    taken first, and rolled back if they, or anything before them, are not finite.
    """

    def __init__(
        self,
        learnable: FlatParameters,
        batch: Tensor | None = None,
        limit: Callable[[Tensor], Tensor | None] | None = None,
        *,
        postponed: bool = False,
    ) -> None:
        self.postponed = postponed
        self.out_of_range = False
        """Whether the batch exceeds the limit; known after :meth:`passed`."""
        self.loss: Tensor | None = None
        """The sum of the losses of the last backward pass."""
        self.notes: dict[str, Tensor] = {}
        self.reason = ""
        self._learnable = learnable
        self._batch = batch if batch is not None and batch.is_floating_point() else None
        self._limit = limit
        self._tensors: list[Tensor] = []
        self._has_gradients = False
        self._failed = False

    def add(self, tensor: Tensor) -> None:
        """Add a tensor that must be finite."""
        self._tensors.append(tensor.detach())

    def add_backward(self, loss: Tensor) -> None:
        """Add a loss whose backward pass put gradients into the parameters; they are read by :meth:`passed`."""
        self.add(loss)
        self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()
        self._has_gradients = True

    def passed(self) -> bool:
        """Return whether everything added is finite and the batch is within the limit.

        What has passed is not checked again; what has failed stays failed.
        """
        if self._failed or not self._tensors:
            return not self._failed
        tensors = self._tensors + (self._learnable.gradients() if self._has_gradients else [])
        device = tensors[0].device
        limit = norm = None
        with torch.autocast(device.type, enabled=False):
            # A sum is finite for nearly all finite numbers; only if it is not, look at every number.
            sums = [t.sum(dtype=torch.promote_types(t.dtype, torch.float32)).to(device) for t in tensors]
            if self._batch is not None:
                precise = torch.promote_types(self._batch.dtype, torch.float32)
                norm = torch.linalg.vector_norm(self._batch, dtype=precise)
                limit = self._limit(self._batch) if self._limit is not None else None
                sums.append(norm.to(device))
                tensors.append(self._batch)
            fine = torch.isfinite(sum(sums[1:], sums[0]))
            if norm is not None and limit is not None:
                fine &= (norm <= limit).to(device)
        if not bool(fine):
            self.out_of_range = norm is not None and limit is not None and bool(norm > limit)
            self._failed = self.out_of_range or not all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
        if not self._failed:
            self._tensors, self._batch, self._has_gradients = [], None, False
        return not self._failed


def usable(x: Tensor, *, channels_last: bool, may_be_empty: bool) -> Tensor:
    """Return a batch as networks take it; whether it is finite is checked together with the logits."""
    if x.dim() < 2:
        raise BatchError(f"a batch of shape {tuple(x.shape)} has no batch dimension; add it with x.unsqueeze(0).")
    if x.numel() == 0 and (len(x) or not may_be_empty):
        raise BatchError(f"the batch is empty (shape {tuple(x.shape)}); pass at least one sample.")
    x = x.clone() if x.is_inference() else x.detach()
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and channels_last else x


def raise_if_not_finite(x: Tensor) -> None:
    """Raise for a batch with values that are not finite."""
    count = int((~torch.isfinite(x)).flatten(1).any(1).sum()) if x.is_floating_point() else 0
    if count:
        raise BatchError(
            f"{count} of {len(x)} samples hold NaN or infinite values; nothing was changed. Drop or repair them."
        )


def logits_error(x: Tensor, net: nn.Module) -> CrettaError:
    """Return an error for a finite batch whose logits are not finite, by ``net``, which was never changed."""
    for name, weight in net.state_dict().items():
        if not bool(torch.isfinite(weight).all()):
            return ModelError(
                f"{NO_LOGITS}: {name} of net holds NaN or infinite values. Give a network with finite weights."
            )
    low, high = (float(value) for value in torch.aminmax(x))
    return BatchError(
        f"{NO_LOGITS}; nothing was changed. Expected inputs on the scale that net was trained on, got values from "
        f"{low:.3g} to {high:.3g}; rescale or drop the batch. If every batch fails like this, call reset()."
    )
