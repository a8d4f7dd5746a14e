"""Forward passes without a gradient in bfloat16, where a device computes them faster."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from cretta.accelerate import choices
from cretta.accelerate.processor import processor_flags

FEW = 32
"""Samples of the timed batch, at most."""
FLAGS = ("avx512_bf16", "amx_bf16")
"""Instructions that multiply bfloat16 numbers, as Linux names them."""
LIMIT = "ONEDNN_MAX_CPU_ISA"
"""A variable of the environment by which oneDNN, which PyTorch uses, leaves out newer instructions."""
TRIAL = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def missing(device: torch.device) -> str | None:
    """Return why ``device`` cannot compute faster in bfloat16, or None."""
    if device.type == "cuda":
        return None if torch.cuda.is_bf16_supported() else "this GPU has no bfloat16 arithmetic"
    if device.type == "cpu" and not set(FLAGS) & processor_flags():
        return f"this processor has neither {' nor '.join(FLAGS)}"
    if device.type == "cpu" and not executes():
        return f"this machine announces AMX and does not execute it; set {LIMIT}=AVX512_CORE_BF16 before you start"
    return None


@functools.cache
def executes() -> bool:
    """Return whether the processor executes PyTorch's bfloat16: some virtual machines announce AMX and do not have it.

    An illegal instruction ends the process, so that another process tries it.
    """
    if "amx_bf16" not in processor_flags() or LIMIT in os.environ:
        return True
    tried = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, check=False)
    return tried.returncode != -signal.SIGILL


def is_faster(name: str, x: Tensor, full: Callable[[Tensor], Tensor], half: Callable[[Tensor], Tensor]) -> bool:
    """Return whether ``half`` is faster than ``full``: timed for the first batch of a size, remembered afterwards."""
    if missing(x.device) is not None:
        return False
    few = x[:FEW]

    def run(function: Callable[[Tensor], Tensor]) -> None:
        function(few)
        if x.is_cuda:
            torch.cuda.synchronize()

    shape = choices.Shape(f"{name} without gradient", len(few), few[0].numel(), few[0].numel(), 1, 1)
    # float32 first: bfloat16 must gain more than the margin.
    return choices.fastest(shape, lambda: {"float32": lambda: run(full), "bfloat16": lambda: run(half)}) == "bfloat16"
