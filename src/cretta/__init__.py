"""Keep an image classifier accurate and calibrated under distribution shift.

    buffer = cretta.SourceBuffer.sample(training_set, size=0.1)
    model = cretta.adapt(net, "cretta", buffer=buffer)
    logits = model(x)  # predicts and adapts

`cretta.methods.names()` lists the methods; `help(cretta.CreTTA)` shows the options of one.
"""

# Public names are imported when they are first used, so that `cretta --help` does not have to load PyTorch.

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cretta import data, distributed, functional, methods, metrics, models, monitor, streams
    from cretta.adapter import Adapter
    from cretta.buffer import SourceBuffer
    from cretta.errors import (
        BatchError,
        BufferRequired,
        BusyError,
        CrettaError,
        DistributedError,
        ModelError,
        NonFiniteStep,
        OptionError,
        SkipStep,
        StateError,
    )
    from cretta.functional import energy
    from cretta.method import Facts, Objective, Options, Record
    from cretta.methods import adapt
    from cretta.methods.signatures import CreTTA
    from cretta.monitor.guard import CollapseWarning, Guard

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "BatchError",
    "BufferRequired",
    "BusyError",
    "CollapseWarning",
    "CreTTA",
    "CrettaError",
    "DistributedError",
    "Facts",
    "Guard",
    "ModelError",
    "NonFiniteStep",
    "Objective",
    "OptionError",
    "Options",
    "Record",
    "SkipStep",
    "SourceBuffer",
    "StateError",
    "adapt",
    "data",
    "distributed",
    "energy",
    "functional",
    "methods",
    "metrics",
    "models",
    "monitor",
    "streams",
]

_MODULES = {
    "Adapter": "adapter",
    "BatchError": "errors",
    "BufferRequired": "errors",
    "BusyError": "errors",
    "CollapseWarning": "monitor.guard",
    "CreTTA": "methods.cretta",
    "CrettaError": "errors",
    "DistributedError": "errors",
    "Facts": "method",
    "Guard": "monitor.guard",
    "ModelError": "errors",
    "NonFiniteStep": "errors",
    "Objective": "method",
    "OptionError": "errors",
    "Options": "method",
    "Record": "method",
    "SkipStep": "errors",
    "SourceBuffer": "buffer",
    "StateError": "errors",
    "adapt": "methods",
    "energy": "functional",
}
"""The module that defines each public name; public names that are not listed are modules themselves."""

if not TYPE_CHECKING:  # type checkers follow the imports above, and then report names that do not exist

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
        globals()[name] = getattr(module, name) if name in _MODULES else module
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({name for name in globals() if name.startswith("__")} | {*__all__})
