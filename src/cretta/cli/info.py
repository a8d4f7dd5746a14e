"""`cretta info`: versions, the machine, and what cretta can use of it."""

from __future__ import annotations

from collections.abc import Iterator

from cretta.cli.app import app
from cretta.cli.console import print_table

DEVELOPMENT = ("dist", "lint", "test")
"""Extras for work on cretta itself, which are not shown."""


@app.command()
def info() -> None:
    """Show versions, the processor, devices, extras and shipped models, and whether the custom CPU kernels are used.

    Add the output to a report of a problem. For one model, `model.backend` says what runs it, and why.

        cretta info
    """
    print_table(_facts())


def _facts() -> Iterator[tuple[str, str]]:
    import os
    import platform
    from importlib.metadata import distributions, version

    import torch

    from cretta import models
    from cretta.accelerate import missing_kernels

    missing = missing_kernels()
    yield "cretta", version("cretta")
    yield "torch", torch.__version__
    yield "Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    yield "processor", f"{_processor()}; instructions PyTorch uses: {torch.backends.cpu.get_cpu_capability()}"
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    yield "devices", ", ".join(_devices())
    yield "kernels", "in use" if missing is None else f"not in use: {missing}"
    for extra, packages in _extras().items():
        installed = all(any(distributions(name=package)) for package in packages)
        yield f"extra {extra}", "installed" if installed else f"not installed: pip install 'cretta[{extra}]'"
    yield "models", ", ".join(models.names())


def _processor() -> str:
    import platform
    from pathlib import Path

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _devices() -> Iterator[str]:
    import torch

    yield "cpu"
    for index in range(torch.cuda.device_count()):
        yield f"cuda:{index} ({torch.cuda.get_device_name(index)})"
    if torch.backends.mps.is_available():
        yield "mps"


def _extras() -> dict[str, list[str]]:
    """Return the packages of each extra."""
    import re
    from importlib.metadata import requires

    extras: dict[str, list[str]] = {}
    for requirement in requires("cretta") or ():
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        package = re.match(r"[\w.-]+", requirement)
        if extra and package and extra[1] not in DEVELOPMENT:
            extras.setdefault(extra[1], []).append(package[0])
    return extras
