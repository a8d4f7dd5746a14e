"""Datasets that commands know by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cretta.cli.console import note
from cretta.data.folder import CLASSES, some
from cretta.data.registry import DATASETS

NAMED = tuple(name for name, record in DATASETS.items() if record.side)
"""Datasets that `cretta train` and `cretta buffer` take by name."""


def note_order(folder: Path, classes: Sequence[str], listed: Path | None = None) -> None:
    """Say how a folder's classes are numbered: as in the file ``listed``, or in an order that is a guess."""
    order = some([f"{number} {name}" for number, name in enumerate(classes)])
    if listed is not None:
        note(f"the class folders of {folder} are numbered as in {listed}: {order}.")
        return
    note(
        f"the class folders of {folder} count as the model's classes in alphabetical order: {order}. If the model has "
        f"another order, list its classes in {folder / CLASSES}, one per line."
    )
