"""The application: its commands, their help and their errors."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from cretta.cli.console import console, note, notices
from cretta.errors import CrettaError
from cretta.options import unknown

# A keyword of the Python API with its value, unless it belongs to a path or to --option.
_KEYWORD = re.compile(
    r"""(?<![\w./-])(?<!--option\ )([a-z]\w*)=('[^']*'|"[^"]*"|\([^()]*\)|\[[^][]*\]|…|[\w.+-]*[\w+-])""", re.VERBOSE
)
# A name with an underscore is a word of the API everywhere, unless it belongs to a path; so is a changed setting.
_NAME = re.compile(r"(?<![\w./-])[a-z]+(?:_[a-z]+)+(?![\w/-]|\.\w)|(?<=[:;] )[a-z]+(?= was )")
# What only Python can pass; on the command line, None is an option that is left out.
_ONLY_PYTHON = re.compile(r"; None is the method's default|; the default is None|, a cretta\.Guard or None")


class _ReadableTypes:
    """Show no type of flags in help, and the type of one value of options that can be repeated."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # a mixin
        for parameter in parameters:
            if hasattr(parameter, "display_type_rich"):
                shown = "" if getattr(parameter, "is_flag", False) else parameter.display_type(ctx)
                label = re.sub(r"list\[(.*)\]", r"\1", shown).replace(" range", "")
                parameter.display_type_rich = lambda ctx, label=label: label
        return parameters


class Command(_ReadableTypes, TyperCommand):
    """A command whose help ends with examples that can be copied: the indented lines at the end of its docstring."""

    def __init__(self, *args: Any, help: str | None = None, resumable: bool = False, **options: Any) -> None:
        prose, _, self.examples = inspect.cleandoc(help or "").partition("\n\n    ")
        self.resumable = resumable
        super().__init__(*args, help=prose, **options)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; the examples are neither wrapped nor padded."""
        super().format_help(ctx, formatter)
        if self.examples:
            console.print(f" Examples:\n\n    {self.examples}", soft_wrap=True)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; for a number that is not allowed, print a message like those of the library."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            cause: Any = error.__cause__
            details = cause.errors()[0] if hasattr(cause, "errors") else {}
            kind = "an integer" if "int" in str(error.param and error.param.display_type(ctx)).lower() else "a number"
            bound = details.get("ctx", {}).get("ge")
            if error.param is None or (bound is None and not details.get("type", "").endswith("_parsing")):
                raise
            least = "" if bound is None else f", at least {bound:g}"
            _print_error(f"{error.param.opts[0]} {details['input']}: expected {kind}{least}.")
            raise typer.Exit(2) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors raised on purpose become messages that name its options."""
        try:
            with warnings.catch_warnings():
                show_others = warnings.showwarning
                warnings.showwarning = lambda message, category, *position, **details: (
                    note(str(message))  # without the line of source code that Python adds
                    if category is UserWarning or category.__module__.startswith("cretta.")
                    else show_others(message, category, *position, **details)
                )
                return super().invoke(ctx)
        except CrettaError as error:
            _print_error(as_options(str(error), self.params))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            if not self.resumable:
                raise
            notices.print("cretta: stopped; finished work is saved, run the same command again to continue.")
            raise typer.Exit(130) from None


class _Group(_ReadableTypes, TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-"):
            _print_error(str(unknown("command", args[0], self.commands)))
            raise typer.Exit(2)
        return super().resolve_command(ctx, args)


def _print_error(message: str) -> None:
    notices.print(Text.assemble(("cretta: ", "red"), message), soft_wrap=True)


class App(typer.Typer):
    """An application, or a group of its commands."""

    def __init__(self, help: str) -> None:
        super().__init__(
            help=help,
            cls=_Group,
            no_args_is_help=True,
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


app = App("Keep an image classifier accurate and calibrated under distribution shift.")


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        console.print(f"cretta {version('cretta')}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def as_options(message: str, parameters: Sequence[Any]) -> str:
    """Return a message with keywords of the Python API, ``batch_size=0``, as options, ``--batch-size 0``."""
    options = {parameter.name: parameter for parameter in parameters if parameter.param_type_name == "option"}

    def option(match: re.Match[str]) -> str:
        name, text = match.groups()
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        if name == "labeled" and "labels" in options:
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

    message = _KEYWORD.sub(option, _ONLY_PYTHON.sub("", message))
    return _NAME.sub(lambda match: str(options[match[0]].opts[0]) if match[0] in options else match[0], message)
