"""Adapters on a small network, and what tests compare of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import cretta
import forks
import textbook
from processes import ENVIRONMENT

AnyAdapter = cretta.Adapter[Any]
METHODS = ("cretta", "tent")
QUIET = cretta.Guard(action="warn", classes=1e-6, drift=1e6)
"""Watches, and finds nothing."""


def buffer_of(count: int = 20) -> cretta.SourceBuffer:
    return cretta.SourceBuffer(textbook.source_images(count), augment="none")


def adapted(method: str, net: nn.Module | None = None, **options: Any) -> AnyAdapter:
    buffer = options.pop("buffer", None) or buffer_of()
    return cretta.adapt(net if net is not None else textbook.small_net(), method, buffer=buffer, **options)


def everything(model: AnyAdapter) -> dict[str, Tensor]:
    """All that evolves, and all tensors of the adapting network besides."""
    found = model.state.snapshot()
    for name, tensor in [*model.model.module.named_parameters(), *model.model.module.named_buffers()]:
        found[f"module.{name}"] = tensor.detach().clone()
    if model._guard is not None:
        found |= {f"watch.{name}": value.clone() for name, value in model._guard.snapshot().items()}
    return found


def anatomy(net: nn.Module) -> dict[str, object]:
    """Everything about a network that an adapter must leave as it is, except its tensors' values."""
    return {
        "training": [module.training for module in net.modules()],
        "requires_grad": [parameter.requires_grad for parameter in net.parameters()],
        "grad": [None if parameter.grad is None else parameter.grad.clone() for parameter in net.parameters()],
        "pointers": [tensor.data_ptr() for tensor in [*net.parameters(), *net.buffers()]],
        "versions": [tensor._version for tensor in [*net.parameters(), *net.buffers()]],
        "hooks": [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in net.modules()],
        "tracking": [getattr(module, "track_running_stats", None) for module in net.modules()],
    }


def tensors(net: nn.Module) -> dict[str, Tensor]:
    return {n: t.detach().clone() for n, t in [*net.named_parameters(), *net.named_buffers()]}


def noisy(images: Tensor) -> Tensor:
    return images + torch.randn(images.shape, dtype=images.dtype)


def in_a_new_process(code: str, *arguments: str) -> None:
    code = f"import faulthandler; faulthandler.enable()\n{code}"
    done = forks.run([sys.executable, "-c", code, *arguments], env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr


@dataclass
class Output:
    logits: Any
