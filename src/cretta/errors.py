"""The errors cretta raises on purpose; each message says what was expected, what was received and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class CrettaError(Exception):
    """Base of every error raised on purpose by cretta."""


class OptionError(CrettaError, ValueError):
    """An option, name or argument has a value that is not allowed."""


class BufferRequired(OptionError):  # noqa: N818  # says what is missing, as BrokenPipeError says what broke
    """A method reads source samples, and no buffer was passed."""


class BatchError(CrettaError, ValueError):
    """A batch cannot be used: empty, wrong rank, not finite, or with logits that are not. Nothing has changed."""


class ModelError(CrettaError, ValueError):
    """A model cannot be adapted as requested, or its output is not a (batch, classes) tensor."""


class StateError(CrettaError, ValueError):
    """A saved state, buffer or checkpoint does not fit, or the file is damaged. Nothing has changed."""


class BusyError(CrettaError, RuntimeError):
    """Another thread is using this adapter at this moment. Nothing has changed."""


class DistributedError(CrettaError, RuntimeError):
    """Processes that share a model do not agree, or one of them has ended."""


class SkipStep(CrettaError):  # noqa: N818  # a signal from a method to the adapter; users never see it raised
    """Raised by a method that does not learn from this batch; the adapter rolls back and records the reason.

    ``logits`` are the batch's, if they are known; the adapter computes them otherwise.
    """

    def __init__(self, reason: str, logits: Tensor | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.logits = logits


class NonFiniteStep(SkipStep):
    """A loss, gradient or logit is not finite."""
