"""Datasets that commands know by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cretta.cli.console import note
from cretta.data.folder import CLASSES, some
from cretta.data.registry import DATASETS

NAMED = tuple(name for name, record in DATASETS.items() if record.side)
"""Datasets that `cretta train` and `cretta buffer` take by name."""


def note_order(folder: Path, classes: Sequence[str]) -> None:
    """Say that the order of a folder's classes is a guess."""
    note(
        f"the class folders of {folder} count as the model's classes in alphabetical order: "
        f"{some([f'{number} {name}' for number, name in enumerate(classes)])}. If the model has another order, list "
        f"its classes in {folder / CLASSES}, one per line."
    )
