"""The paper's tables and figures: what to run for each, and what it printed."""

from __future__ import annotations

from cretta.options import known
from cretta.paper import ablations, beyond, cost, main
from cretta.paper.item import Item
from cretta.paper.measured import OMITTED, incomplete, measured
from cretta.paper.needs import missing
from cretta.paper.printed import paper_data
from cretta.paper.results import best_scale, copy_results, read_results, write_summary
from cretta.paper.scale import DAY, FULL, QUICK, SCALES, SMOKE, Scale, scale, stages
from cretta.paper.shapes import comparison

_DRAW = {**main.DRAW, **cost.DRAW, **ablations.DRAW, **beyond.DRAW}
_ITEMS = {
    name: Item(
        name=name,
        title=record["title"],
        labels=tuple(record["labels"]),
        draw=comparison if "rows" in record else _DRAW[name],
        remarks=tuple(record.get("remarks", ())),
    )
    for name, record in paper_data()["items"].items()
}


def items() -> dict[str, Item]:
    """Return all items by name, in the paper's order."""
    return dict(_ITEMS)


def get(name: str) -> Item:
    """Return the item of that name.

    >>> get("main").where
    'Table 1'
    """
    return _ITEMS[known("item of the paper", name, _ITEMS)]


__all__ = [
    "DAY",
    "FULL",
    "OMITTED",
    "QUICK",
    "SCALES",
    "SMOKE",
    "Item",
    "Scale",
    "best_scale",
    "copy_results",
    "get",
    "incomplete",
    "items",
    "measured",
    "missing",
    "read_results",
    "scale",
    "stages",
    "write_summary",
]
