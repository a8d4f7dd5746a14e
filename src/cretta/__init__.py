"""Keep an image classifier accurate and calibrated under distribution shift.

    buffer = cretta.SourceBuffer.sample(training_set, size=0.1)
    model = cretta.adapt(net, "cretta", buffer=buffer)
    logits = model(x)  # predicts and adapts

`cretta.methods.names()` lists the methods; `help(cretta.CreTTA)` shows the options of one.
"""

# Public names are imported when they are first used, so that `cretta --help` does not have to load PyTorch.

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers and editors; `as` makes a name public
    from cretta import data as data
    from cretta import distributed as distributed
    from cretta import functional as functional
    from cretta import methods as methods
    from cretta import metrics as metrics
    from cretta import models as models
    from cretta import monitor as monitor
    from cretta import streams as streams
    from cretta.adapter import Adapter as Adapter
    from cretta.buffer import SourceBuffer as SourceBuffer
    from cretta.errors import BatchError as BatchError
    from cretta.errors import BufferRequired as BufferRequired
    from cretta.errors import BusyError as BusyError
    from cretta.errors import CrettaError as CrettaError
    from cretta.errors import DistributedError as DistributedError
    from cretta.errors import ModelError as ModelError
    from cretta.errors import NonFiniteStep as NonFiniteStep
    from cretta.errors import OptionError as OptionError
    from cretta.errors import SkipStep as SkipStep
    from cretta.errors import StateError as StateError
    from cretta.functional import energy as energy
    from cretta.method import Facts as Facts
    from cretta.method import Objective as Objective
    from cretta.method import Options as Options
    from cretta.method import Record as Record
    from cretta.methods import adapt as adapt
    from cretta.methods.signatures import CreTTA as CreTTA
    from cretta.monitor.guard import CollapseWarning as CollapseWarning
    from cretta.monitor.guard import Guard as Guard

__version__ = "0.1.0"

_PUBLIC = {
    "adapter": "Adapter",
    "buffer": "SourceBuffer",
    "errors": "BatchError BufferRequired BusyError CrettaError DistributedError ModelError NonFiniteStep "
    "OptionError SkipStep StateError",
    "functional": "energy",
    "method": "Facts Objective Options Record",
    "methods": "adapt",
    "methods.cretta": "CreTTA",
    "monitor.guard": "CollapseWarning Guard",
}
"""The public names by the module that defines them."""
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted([*_MODULES, "data", "distributed", "functional", "methods", "metrics", "models", "monitor", "streams"])

if not TYPE_CHECKING:  # type checkers follow the imports above, and then report names that do not exist

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
        globals()[name] = getattr(module, name) if name in _MODULES else module
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({name for name in globals() if name.startswith("__")} | {*__all__})
