"""What every command shares: the application, its help, the terminal, plain errors, progress."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from cretta.errors import CrettaError, OptionError

# Text is shown as it is: rich would color parts of words, and take [names] and :names: for markup.
console = Console(highlight=False, markup=False, emoji=False)
notices = Console(highlight=False, markup=False, emoji=False, stderr=True)
EVERY = 30.0
"""Seconds between lines of progress in a log."""
# A keyword of the Python API with its value, unless it belongs to a path or to --option.
_KEYWORD = re.compile(
    r"""(?<![\w./-])(?<!--option\ )([a-z]\w*)=('[^']*'|"[^"]*"|\([^()]*\)|\[[^][]*\]|…|[\w.+-]*[\w+-])""", re.VERBOSE
)
# A name with an underscore is a word of the API wherever it stands, unless it belongs to a path.
_NAME = re.compile(r"(?<![\w./-])[a-z]+(?:_[a-z]+)+(?![\w/-]|\.\w)")
WORDS = {TimeElapsedColumn: " elapsed", TimeRemainingColumn: " left"}
_parameters: ContextVar[Sequence[Any]] = ContextVar("parameters", default=())


def _readable(parameters: list[Any], ctx: Any) -> list[Any]:
    """Show no type for flags, and the type of one value where several may be given."""
    for parameter in parameters:
        if hasattr(parameter, "display_type_rich"):
            shown = "" if getattr(parameter, "is_flag", False) else parameter.display_type(ctx)
            label = re.sub(r"list\[(.*)\]", r"\1", shown).replace(" range", "")
            parameter.display_type_rich = lambda ctx, label=label: label
    return parameters


class Command(TyperCommand):
    """A command whose help ends with examples that can be copied: the indented lines at the end of its docstring."""

    def __init__(self, *args: Any, help: str | None = None, **options: Any) -> None:
        prose, _, self.examples = inspect.cleandoc(help or "").partition("\n\n    ")
        super().__init__(*args, help=prose, **options)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters as help shows them."""
        return _readable(super().get_params(ctx), ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; the examples as they are, without wrapping or padding."""
        super().format_help(ctx, formatter)
        if self.examples:
            console.print(f" Examples:\n\n    {self.examples}", soft_wrap=True)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors name its options."""
        token = _parameters.set(self.params)
        try:
            return super().invoke(ctx)
        finally:
            _parameters.reset(token)


class Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters as help shows them."""
        return _readable(super().get_params(ctx), ctx)


class App(typer.Typer):
    """An application, or a part of it."""

    def __init__(self, help: str) -> None:
        super().__init__(
            help=help,
            cls=Group,
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode="markdown",
        )

    def command(self, name: str | None = None) -> Callable[[Any], Any]:  # type: ignore[override]  # all are alike
        """Return a decorator that makes a function a command."""
        return super().command(name, cls=Command)


app = App("Keep an image classifier accurate and calibrated while the world drifts away from its training data.")


def _show_version(asked: bool) -> None:
    if asked:
        console.print(f"cretta {version('cretta')}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


def note(text: str) -> None:
    """Print something to know, which is not an error."""
    notices.print(f"note: {text}", style="dim", soft_wrap=True)


def count(number: int, noun: str) -> str:
    """Return "1 run", "2 runs"."""
    return f"{number} {noun}{'s' * (number != 1)}"


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors raised on purpose are messages to the user, not tracebacks."""
    try:
        yield
    except CrettaError as error:
        message = as_options(str(error), _parameters.get())
        notices.print(Text.assemble(("cretta: ", "red"), message), soft_wrap=True)
        raise typer.Exit(2) from None


def as_options(message: str, parameters: Sequence[Any]) -> str:
    """Return a message with keywords of the Python API, ``batch_size=0``, as options, ``--batch-size 0``."""
    options = {each.name: each for each in parameters if each.param_type_name == "option"}

    def option(match: re.Match[str]) -> str:
        name, text = match.groups()
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        if name == "labelled" and "labels" in options:
            return f"--labels {'yes' if value else 'no'}"
        if name not in options:
            return match[0]
        if value is False and options[name].secondary_opts:
            return str(options[name].secondary_opts[0])
        if value is None or isinstance(value, bool):
            return f"{'no ' if value is None else ''}{options[name].opts[0]}"
        if isinstance(value, tuple | list):
            value = ("x" if all(isinstance(part, int) for part in value) else ",").join(map(str, value))
        return f"{options[name].opts[0]} {value}"

    message = _KEYWORD.sub(option, message)
    return _NAME.sub(lambda match: str(options[match[0]].opts[0]) if match[0] in options else match[0], message)


@contextmanager
def stopping(kept: str) -> Iterator[None]:
    """Ctrl-C ends a command that can be taken up again; ``kept`` says what there is to go on from."""
    try:
        yield
    except KeyboardInterrupt:
        notices.print(f"cretta: stopped; {kept}, and the same command goes on from there.", soft_wrap=True)
        raise typer.Exit(130) from None


class RateColumn(ProgressColumn):
    """Units a second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """The speed of late, once there is one."""
        return Text(f"{task.speed:.0f} {self.unit}/s" if task.speed else "", style="progress.data.speed")


class Lines(Progress):
    """Bars for a log: every 30 seconds a line on stderr that says how far the work is.

    ``wait`` waits for so many seconds, and returns whether the work has ended.
    """

    def __init__(
        self, *columns: str | ProgressColumn, wait: Callable[[float], bool] | None = None, **options: Any
    ) -> None:
        super().__init__(*columns, disable=True, auto_refresh=False, **options)
        self._ended = Event()
        self._wait = wait or self._ended.wait
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin to write lines."""
        self._thread = Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        while not self._wait(EVERY):
            shown = [task for task in self.tasks if task.visible]
            running = [task for task in shown if not task.finished] or shown[-1:]
            self.console.print("; ".join(map(self._described, running)) or "working", soft_wrap=True)

    def _described(self, task: Task) -> str:
        parts = []
        for column in self.columns:
            shown = column(task) if isinstance(column, ProgressColumn) else column
            if isinstance(shown, Text) and shown.plain and "-:--" not in shown.plain:
                parts.append(shown.plain.strip() + WORDS.get(type(column), ""))
        return ", ".join(parts)


def progress_bar(unit: str = "images") -> Progress:
    """A bar with a count, a rate and the time left; it vanishes when done."""
    return bars(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), RateColumn(unit), TimeRemainingColumn()
    )


def share_bar() -> Progress:
    """Return a bar with the share that is done and the time left."""
    return bars(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())


def bars(*columns: ProgressColumn) -> Progress:
    """Return bars on stderr that vanish when done; into a log they write a line now and then."""
    if not (notices.is_interactive and notices.file.isatty()):
        return Lines(*columns, console=notices, speed_estimate_period=60)
    # What is printed meanwhile goes above the bars if it goes to the same terminal, else where it should.
    return Progress(
        *columns, console=notices, transient=True, redirect_stdout=console.is_terminal, speed_estimate_period=60
    )


def check_folder(path: Path, option: str) -> None:
    """Raise, before the work, where a folder is asked for and a file lies there."""
    if path.exists() and not path.is_dir():
        raise OptionError(f"{option} {path}: expected a folder, got a file; give another name.")


def check_output(path: Path, endings: tuple[str, ...], option: str = "--output") -> None:
    """A file that can be written, told before the work and not after it."""
    if path.suffix.lower() not in endings:
        raise OptionError(f"{option} {path}: the name must end in {', '.join(endings)}.")
    if not path.parent.is_dir():
        raise OptionError(f"{option} {path}: the folder {path.parent} does not exist; make it first.")
