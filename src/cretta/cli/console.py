"""What commands print, and the checks of their outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cretta.errors import OptionError
from cretta.storage.files import check_target

if TYPE_CHECKING:
    from cretta.report import content

# Text is printed unchanged: rich would color parts of words, and take [names] and :names: for markup.
console = Console(highlight=False, markup=False, emoji=False)
notices = Console(highlight=False, markup=False, emoji=False, stderr=True)


def say(text: str) -> None:
    """Print lines without wrapping them, so that paths and commands can be copied."""
    console.print(text, soft_wrap=True)


def note(text: str) -> None:
    """Print something that is good to know, and not an error."""
    notices.print(f"note: {text}", style="dim", soft_wrap=True)


def count(number: int, noun: str) -> str:
    """Return "1 run", "2 runs"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """Return 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def print_table(rows: Iterable[Sequence[object]], headings: Sequence[str] = ()) -> None:
    """Print a table; columns of integers are aligned to the right."""
    from rich.table import Table

    rows = list(rows)
    table = Table(box=None, pad_edge=False, show_header=bool(headings))
    for number, column in enumerate(zip(*rows, strict=True)):
        integers = all(isinstance(value, int) for value in column)
        heading = headings[number] if headings else ""
        table.add_column(
            heading, style="" if number or not headings else "bold", justify="right" if integers else "left"
        )
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


def print_results(table: content.Table) -> None:
    """Print a table of results: the best numbers are bold, or have a star where the output has no styles."""
    from cretta.report.terminal import terminal

    console.print(terminal(table, console.width, bold=console.color_system is not None))


def check_folder(path: Path, option: str) -> None:
    """Raise, before the work, if a folder is expected and the path is a file."""
    if path.exists() and not path.is_dir():
        raise OptionError(f"{option} {path}: expected a folder, got a file; give another name.")


def check_output(path: Path, endings: tuple[str, ...], *, overwrite: bool = True) -> None:
    """Raise, before the work, unless the file of --output can be written and, if it exists, may be replaced."""
    if path.suffix.lower() not in endings:
        raise OptionError(f"--output {path}: expected a name that ends in {' or '.join(endings)}.")
    check_target(path)
    if path.exists() and not overwrite:
        raise OptionError(f"{path} exists already; choose another name, or pass --overwrite.")
