"""The name of the processor and what it can do."""

from __future__ import annotations

import functools
import platform
from pathlib import Path


@functools.cache
def _facts() -> dict[str, str]:
    """Return what Linux says about the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def processor_name() -> str:
    """Return the processor's name; on Linux with its family and model, because clouds shorten the name.

    >>> isinstance(processor_name(), str)
    True
    """
    facts = _facts()
    name = facts.get("model name") or platform.processor() or "unknown"
    return f"{name} (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else name


def processor_flags() -> set[str]:
    """Return the instruction sets of the processor as Linux names them; an empty set on other systems."""
    return set(_facts().get("flags", "").split())
