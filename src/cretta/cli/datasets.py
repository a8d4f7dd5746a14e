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


def note_order(folder: Path, classes: Sequence[str]) -> None:
    """Say that the order of a folder's classes is a guess."""
    note(
        f"the class folders of {folder} count as the model's classes in alphabetical order: "
        f"{some([f'{number} {name}' for number, name in enumerate(classes)])}. If the model has another order, list "
        f"its classes in {folder / CLASSES}, one per line."
    )
