"""The errors cretta raises on purpose; each message says what was given, what is allowed and what to do."""


class CrettaError(Exception):
    """Base of every error raised on purpose by cretta."""


class OptionError(CrettaError, ValueError):
    """An option, name or argument has a value that is not allowed."""


class BatchError(CrettaError, ValueError):
    """A batch cannot be used: empty, wrong rank, not finite, or with logits that are not. Nothing has changed."""


class ModelError(CrettaError, ValueError):
    """A model cannot be adapted as asked, or its output is not a (batch, classes) tensor."""


class StateError(CrettaError, ValueError):
    """A saved state, buffer or checkpoint does not fit, or the file is damaged. Nothing has changed."""


class BusyError(CrettaError, RuntimeError):
    """Another thread is using this adapter at this moment. Nothing has changed."""
