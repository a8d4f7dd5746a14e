"""The methods, by name: one file each; other packages register theirs in the entry-point group ``cretta.methods``."""

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
def built_in() -> dict[str, type[Adapter[Any]]]:
    """Return cretta's own methods by name, sorted."""
    methods: dict[str, type[Adapter[Any]]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for item in vars(module).values():
            is_method = isinstance(item, type) and issubclass(item, Adapter) and item.name
            if not is_method or item.__module__ != module.__name__:
                continue
            other = methods.setdefault(item.name, item)
            if other is not item:
                raise OptionError(
                    f"{other.__module__}.{other.__name__} and {item.__module__}.{item.__name__} both have the name "
                    f"{item.name!r}. Rename one."
                )
    return dict(sorted(methods.items()))


def names() -> list[str]:
    """Return the names of all methods: cretta's own, then those that installed packages register."""
    own = list(built_in())
    return own + sorted({point.name for point in entry_points(group=GROUP)} - set(own))


def get(name: str) -> type[Adapter[Any]]:
    """Return the class of a method; other packages cannot replace cretta's own."""
    if name in built_in():
        return built_in()[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                method = point.load()
            except Exception as error:
                raise OptionError(
                    f"method {name!r} is registered by {point.value!r}, which cannot be loaded: {error!r}. Update or "
                    "remove the package it comes from."
                ) from error
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
    """Wrap ``net`` in a method, by its name or class; options are the method's keywords and override ``preset``.

    A method that uses no source data ignores ``buffer``, so that methods can be exchanged by name.
    """
    chosen = method if isinstance(method, type) else get(method)
    if not issubclass(chosen, Adapter):
        raise OptionError(
            f"method is the class {chosen.__name__}; expected the name of a method, or a subclass of cretta.Adapter."
        )
    return chosen(net, buffer, preset=preset, **options)
