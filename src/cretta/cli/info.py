"""`cretta info`: versions, the machine, and what cretta can use of it."""

from __future__ import annotations

from collections.abc import Iterator

from cretta.cli.app import app
from cretta.cli.console import print_table


@app.command()
def info() -> None:
    """Show versions, devices and shipped models, and which custom CPU kernels are used.

    For some typical layers it times the kernels and PyTorch's operations and shows which is chosen; CRETTA_KERNELS=avx2
    (or avx512, off) in the environment uses one of them without timing. Add the output to a report of a problem. For
    one model, `model.backend` says what runs it, and why; `model.backend.choices` has the times of its layers.

        cretta info
    """
    print_table(_facts())


def _facts() -> Iterator[tuple[str, str]]:
    import os
    import platform
    from importlib.metadata import version

    import torch

    from cretta import models
    from cretta.accelerate import describe_kernels, kernel_setting, typical_choices

    yield "cretta", version("cretta")
    yield "torch", torch.__version__
    yield "Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    yield "instructions", f"{torch.backends.cpu.get_cpu_capability()}, as PyTorch uses them"
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    gpus = [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())]
    yield "devices", ", ".join(["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])])
    yield "kernels", f"{describe_kernels()} (CRETTA_KERNELS={kernel_setting()})"
    for choice in typical_choices():
        yield "", str(choice)
    yield "models", ", ".join(models.names())
