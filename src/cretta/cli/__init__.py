"""The command line: parses, calls, prints. A command is one file here, found by itself."""

from importlib import import_module
from pkgutil import iter_modules

from cretta.cli.console import app

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["app"]
