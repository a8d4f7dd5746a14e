"""Open an adapter from a network and the name or file of its buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from cretta import methods
from cretta.adapter import Adapter
from cretta.buffer import SourceBuffer
from cretta.data import embedded


def open_adapter(
    net: nn.Module, method: str, buffer: str | None, preset: str | None, options: Mapping[str, Any]
) -> Adapter[Any]:
    """Return an adapter; ``buffer`` is a file, "embedded" (the CIFAR-10 images that come with cretta) or None."""
    source = None
    if buffer == "embedded":
        train = embedded("train")
        source = SourceBuffer.sample(train, size=len(train), seed=options.get("seed", 0))
    elif buffer is not None:
        source = SourceBuffer.load(buffer)
    return methods.adapt(net, method, buffer=source, preset=preset, **options)
