"""What the package holds of the paper: its methods, items, claims and printed numbers."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


def printed(label: str) -> dict[str, tuple[float, ...]]:
    """Return the numbers of the table of that label, by row.

    >>> printed("tab:buffersize")["1%"]
    (88.0, 64.21, 40.18)
    """
    return {row: tuple(numbers) for row, numbers in paper_data()["numbers"][label].items()}


@cache
def paper_data() -> dict[str, Any]:
    """Return what paper.toml holds."""
    return tomllib.loads((resources.files("cretta.paper") / "paper.toml").read_text("utf-8"))
