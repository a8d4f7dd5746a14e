"""What every command shares: the application, the terminal, plain errors, progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from cretta.errors import CrettaError, OptionError

app = typer.Typer(
    help="Keep an image classifier accurate and calibrated while the world drifts away from its training data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
console = Console()


def _show_version(asked: bool) -> None:
    if asked:
        console.print(f"cretta {version('cretta')}", highlight=False)
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors raised on purpose are messages to the user, not tracebacks."""
    try:
        yield
    except CrettaError as wrong:
        Console(stderr=True).print(Text("cretta: ", style="red"), str(wrong), sep="", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None


@contextmanager
def stopping(kept: str) -> Iterator[None]:
    """Ctrl-C ends a command that can be taken up again; ``kept`` says what there is to go on from."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"cretta: stopped; {kept}, and the same command goes on from there.", soft_wrap=True)
        raise typer.Exit(130) from None


class RateColumn(ProgressColumn):
    """Units a second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """The speed of late, once there is one."""
        return Text(f"{task.speed:.0f} {self.unit}/s" if task.speed else "", style="progress.data.speed")


def progress_bar(unit: str = "images") -> Progress:
    """A bar with a count, a rate and the time left; it vanishes when done."""
    return bars(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), RateColumn(unit), TimeRemainingColumn()
    )


def bars(*columns: ProgressColumn) -> Progress:
    """Bars that vanish when done; into a log they write nothing, where rich would end them with an empty line."""
    silent = not console.is_interactive
    return Progress(*columns, console=console, transient=True, disable=silent, speed_estimate_period=60)


def check_output(path: Path, endings: tuple[str, ...], option: str = "--output") -> None:
    """A file that can be written, told before the work and not after it."""
    if path.suffix.lower() not in endings:
        raise OptionError(f"{option} {path}: the name must end in {', '.join(endings)}.")
    if not path.parent.is_dir():
        raise OptionError(f"{option} {path}: the folder {path.parent} does not exist; make it first.")
