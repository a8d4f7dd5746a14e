"""Forward passes without a gradient in bfloat16, where a device computes them faster."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cretta.accelerate import choices
from cretta.accelerate.processor import processor_flags

FEW = 32
"""Samples of the timed batch, at most."""
FLAGS = ("avx512_bf16", "amx_bf16")
"""Instructions that multiply bfloat16 numbers, as Linux names them."""


def missing(device: torch.device) -> str | None:
    """Return why ``device`` cannot compute faster in bfloat16, or None."""
    if device.type == "cuda":
        return None if torch.cuda.is_bf16_supported() else "this GPU has no bfloat16 arithmetic"
    if device.type == "cpu" and not set(FLAGS) & processor_flags():
        return f"this processor has neither {' nor '.join(FLAGS)}"
    return None


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
