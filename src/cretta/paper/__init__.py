"""The paper's tables and figures: what to run for each, what it printed. Every file adds its items."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from cretta.options import unknown
from cretta.paper.family import Family
from cretta.paper.item import Item
from cretta.paper.measured import OMITTED, measured
from cretta.paper.needs import missing
from cretta.paper.prepare import prepare
from cretta.paper.scale import FULL, QUICK, SCALES, SMOKE, Preparation, Scale, scale

NOT_RUN = {"tab:hyperparam": "settings, not results: they are CreTTA's presets"}
"""Labels of the paper that no item has, and why."""


@cache
def _found() -> dict[str, Item]:
    found: list[Item] = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found += getattr(module, "ITEMS", ())
    return {item.name: item for item in sorted(found, key=lambda item: item.order)}


def items() -> dict[str, Item]:
    """All items by name, in the paper's order."""
    return dict(_found())


def get(name: str) -> Item:
    """The item of that name.

    >>> get("main").where
    'Table 1'
    """
    if name not in _found():
        raise unknown("item of the paper", name, _found())
    return _found()[name]


__all__ = [
    "FULL",
    "NOT_RUN",
    "OMITTED",
    "QUICK",
    "SCALES",
    "SMOKE",
    "Family",
    "Item",
    "Preparation",
    "Scale",
    "get",
    "items",
    "measured",
    "missing",
    "prepare",
    "scale",
]
