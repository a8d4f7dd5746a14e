"""Backends of a training step: PyTorch's operations, the custom CPU kernels, or bfloat16; chosen by measurement."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cretta.accelerate import bfloat16, kernels
from cretta.accelerate.graph import rewrite

TRAINING_BACKENDS = ("plain", "kernels", "bfloat16")
Forward = Callable[[Tensor], Tensor]
TIMED_STEPS = 3
LARGEST_RATIO = 0.95
"""Another backend than plain is chosen if its steps take at most this fraction of plain's time."""


def training_forward(model: nn.Module, backend: str) -> Forward:
    """Return the function that computes ``model``'s logits by ``backend``; it uses the model's own parameters."""
    if backend == "kernels":
        network = rewrite(model, learns=True)
        return model if isinstance(network, str) else network
    if backend == "bfloat16":
        return lambda x: _in_bfloat16(model, x)
    return model


def training_candidates(model: nn.Module, device: torch.device) -> list[str]:
    """List the backends that can run on ``device``."""
    names = ["plain"]
    if device.type == "cpu":
        if kernels.missing() is None and isinstance(rewrite(model, learns=True), nn.Module):
            names.append("kernels")
        # A private operator of PyTorch; builds without it have no fast bfloat16 on the CPU.
        if getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)() and bfloat16.executes():
            names.append("bfloat16")
    elif device.type == "cuda" and torch.cuda.is_bf16_supported():
        names.append("bfloat16")
    return names


def fastest_training_backend(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[str, dict[str, float]]:
    """Time a few steps of each candidate on a copy of ``model``; return the choice and the seconds per step."""
    seconds = {}
    for name in training_candidates(model, images.device):
        twin = copy.deepcopy(model).train()
        forward = training_forward(twin, name)
        times = []
        for _ in range(TIMED_STEPS):
            begun = time.perf_counter()
            F.cross_entropy(forward(images), labels).backward()
            if images.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        seconds[name] = min(times)
    best = min(seconds, key=lambda name: seconds[name])
    return (best if seconds[best] <= LARGEST_RATIO * seconds["plain"] else "plain"), seconds


def _in_bfloat16(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        logits: Tensor = model(x)
    return logits.float()
