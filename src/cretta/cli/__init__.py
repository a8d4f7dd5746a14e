"""The command line: parses, calls, prints. A command is one file here.

Commands import PyTorch and everything else that is slow to load in their functions, so that help appears at once.
"""

from importlib import import_module

from cretta.cli.app import app

COMMANDS = (
    "demo",
    "check",
    "predict",
    "serve",
    "run",
    "report",
    "reproduce",
    "train",
    "buffer",
    "data",
    "data_make",
    "info",
)
"""The modules that add commands to the application, in the order of its help."""

for _name in COMMANDS:
    import_module(f"{__name__}.{_name}")

__all__ = ["app"]
