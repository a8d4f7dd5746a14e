"""Datasets that commands know by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cretta.cli.console import note
from cretta.data.folder import CLASSES, some
from cretta.data.registry import DATASETS
from cretta.errors import OptionError

NAMED = tuple(name for name, record in DATASETS.items() if record.side)
"""Datasets that `cretta train` and `cretta buffer` take by name."""


def without_size(name: str, option: str, size: object) -> None:
    """Raise if images of a named dataset are to be scaled: a network has their size."""
    if size is not None:
        side = DATASETS[name].side
        raise OptionError(f"{option}: the images of {name} are of {side}x{side}; leave it out.")


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
