"""What all commands share: the application, its help, the terminal, plain errors."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from cretta.errors import CrettaError, OptionError

# Text is shown as it is: rich would color parts of words, and take [names] and :names: for markup.
console = Console(highlight=False, markup=False, emoji=False)
notices = Console(highlight=False, markup=False, emoji=False, stderr=True)
# A keyword of the Python API with its value, unless it belongs to a path or to --option.
_KEYWORD = re.compile(
    r"""(?<![\w./-])(?<!--option\ )([a-z]\w*)=('[^']*'|"[^"]*"|\([^()]*\)|\[[^][]*\]|…|[\w.+-]*[\w+-])""", re.VERBOSE
)
# A name with an underscore is a word of the API wherever it stands, unless it belongs to a path.
_NAME = re.compile(r"(?<![\w./-])[a-z]+(?:_[a-z]+)+(?![\w/-]|\.\w)")


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

    def __init__(self, *args: Any, help: str | None = None, resumable: bool = False, **options: Any) -> None:
        prose, _, self.examples = inspect.cleandoc(help or "").partition("\n\n    ")
        self.resumable = resumable
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
        """Run the command; errors raised on purpose become messages that name its options."""
        try:
            return super().invoke(ctx)
        except CrettaError as error:
            message = as_options(str(error), self.params)
            notices.print(Text.assemble(("cretta: ", "red"), message), soft_wrap=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            if not self.resumable:
                raise
            notices.print("cretta: stopped; finished work is saved, run the same command again to continue.")
            raise typer.Exit(130) from None


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

    def command(  # type: ignore[override]  # fewer choices than typer gives
        self, name: str | None = None, *, resumable: bool = False
    ) -> Callable[[Any], Any]:
        """Return a decorator that makes a function a command.

        ``resumable``: after Ctrl-C, the same command continues the work.
        """
        return super().command(name, cls=partial(Command, resumable=resumable))  # type: ignore[arg-type]  # a factory


app = App("Keep an image classifier accurate and calibrated while the world drifts away from its training data.")


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

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


def duration(seconds: float) -> str:
    """Return 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; numbers are aligned to the right, and the first column is bold."""
    from rich.table import Table

    rows = list(rows)
    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        right = all(isinstance(row[number], int) for row in rows)
        table.add_column(heading, style="" if number else "bold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


def print_facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)


def check_folder(path: Path, option: str) -> None:
    """Raise, before the work, where a folder is asked for and a file lies there."""
    if path.exists() and not path.is_dir():
        raise OptionError(f"{option} {path}: expected a folder, got a file; give another name.")


def check_output(path: Path, endings: tuple[str, ...], option: str = "--output") -> None:
    """Raise, before the work, unless the file can be written."""
    if path.suffix.lower() not in endings:
        raise OptionError(f"{option} {path}: expected a name that ends in {' or '.join(endings)}.")
    if not path.parent.is_dir():
        raise OptionError(f"{option} {path}: the folder {path.parent} does not exist; make it first.")


def check_new_file(path: Path, endings: tuple[str, ...], *, overwrite: bool) -> None:
    """Raise, before the work, unless the file can be written and does not exist or may be replaced."""
    check_output(path, endings)
    if path.exists() and not overwrite:
        raise OptionError(f"{path} exists already; choose another name, or pass --overwrite.")
