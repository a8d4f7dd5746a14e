"""The methods, by name. Each file here is one; others come from the entry-point group ``cretta.methods``."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from torch import nn

from cretta.adapter import Adapter
from cretta.buffer import SourceBuffer
from cretta.errors import OptionError
from cretta.options import unknown

GROUP = "cretta.methods"


@cache
def _built_in() -> dict[str, type[Adapter[Any]]]:
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for item in vars(module).values():
            if (
                isinstance(item, type)
                and issubclass(item, Adapter)
                and item.__module__ == module.__name__
                and item.name
            ):
                found[item.name] = item
    return found


def names() -> list[str]:
    """Names of all methods: cretta's own, then those that installed packages register."""
    own = sorted(_built_in())
    return own + sorted({point.name for point in entry_points(group=GROUP)} - set(own))


def get(name: str) -> type[Adapter[Any]]:
    """The class of a method; cretta's own names cannot be taken over by other packages."""
    if name in _built_in():
        return _built_in()[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                method = point.load()
            except Exception as wrong:
                raise OptionError(
                    f"method {name!r} is registered by {point.value!r}, which cannot be loaded: {wrong!r}. Update or "
                    "remove the package it comes from."
                ) from wrong
            if not (isinstance(method, type) and issubclass(method, Adapter)):
                raise OptionError(f"method {name!r} is registered by {point.value!r}, which is not a cretta.Adapter.")
            return method
    raise unknown("method", name, names())


def adapt(
    net: nn.Module,
    method: str | type[Adapter[Any]] = "cretta",
    *,
    buffer: SourceBuffer | None = None,
    preset: str | None = None,
    **options: Any,
) -> Adapter[Any]:
    """Wraps ``net`` in a method, by its name or class; options are the method's keywords, over those of ``preset``.

    A method that uses no source data leaves ``buffer`` alone, so that methods can be exchanged by name.
    """
    if isinstance(method, type):
        if not issubclass(method, Adapter):
            raise OptionError(
                f"method is the class {method.__name__}; expected the name of a method, or a subclass of "
                "cretta.Adapter."
            )
        return method(net, buffer, preset=preset, **options)
    return get(method)(net, buffer, preset=preset, **options)
