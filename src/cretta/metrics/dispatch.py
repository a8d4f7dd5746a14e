"""The base of classes that see every operation of PyTorch while it is executed."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """PyTorch's, which does not import the compiler only to be hidden from it: two seconds in each new process."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
