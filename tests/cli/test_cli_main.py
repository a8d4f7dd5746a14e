"""The command line as a whole: how it is started, its help, its messages."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import cretta
import forks
import processes
from cretta import models
from cretta.accelerate import TRAINING_BACKENDS
from cretta.augment import AUGMENTATIONS
from cretta.bench.run import STREAMS, Run
from cretta.buffer import SELECT
from cretta.cli import app
from cretta.cli.app import App
from cretta.cli.datasets import NAMED
from cretta.data import embedded
from cretta.data.domains import Domain
from cretta.data.make import PUBLISHED
from cretta.data.registry import DATASETS
from cretta.methods import built_in
from cretta.monitor.guard import ACTIONS
from cretta.normalization import STATISTICS
from cretta.paper.scale import SCALES
from cretta.training import Recipe

ROOT: Any = get_command(app)
SLOW = {
    "torch",
    "numpy",
    "matplotlib",
    "pyarrow",
    "PIL",
    "kornia",
    "safetensors",
    "rich.progress",
    "fastapi",
    "uvicorn",
}
"""Libraries that only the work of a command needs."""


def commands(group: Any = ROOT, *path: str) -> Iterator[tuple[str, ...]]:
    """The path of every command and group."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *path, name)


def told(*arguments: str, **environment: str) -> str:
    """Return what a process writes to its standard error."""
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return forks.run(processes.command(*arguments), env={**plain, **environment}).stderr


def helped(*path: str, **environment: str) -> str:
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80", **environment})
    assert result.exit_code == 0, result.output
    return str(result.output)


def examples(text: str) -> list[list[str]]:
    """The commands below "Examples:", as a shell reads them."""
    _, _, block = text.partition(" Examples:\n")
    lines = re.sub(r"\\\n", " ", block).splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


@pytest.mark.process
def test_python_m_cretta() -> None:
    done = processes.run([sys.executable, "-m", "cretta", "--version"])
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "cretta", "")


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}], ids=["piped", "NO_COLOR"])
def test_help_fits_80_columns_and_its_examples_can_be_copied(
    path: tuple[str, ...], environment: dict[str, str]
) -> None:
    text = helped(*path, **environment)
    assert max(map(len, text.splitlines())) <= 80
    for wrong in ("//", "<bool>", "list[", " range>", "\x1b"):
        assert wrong not in text
    command = ROOT
    for name in path:
        command = command.commands[name]
    if hasattr(command, "commands"):
        return
    found = examples(text)
    assert found
    for program, *arguments in found:
        assert program in ("cretta", "curl", "python")
        if program == "curl":
            continue
        if program == "python":
            compile(arguments[1], "example", "exec")
            continue
        target = ROOT
        while hasattr(target, "commands"):
            target = target.commands[arguments.pop(0)]
        target.make_context("example", arguments)  # raises on what the command does not take


@pytest.mark.process
def test_no_help_loads_a_slow_library() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from cretta.cli import app\n"
        f"for path in {list(commands())!r}:\n"
        "    assert CliRunner().invoke(app, [*path, '--help']).exit_code == 0, path\n"
        f"    assert not {SLOW!r} & sys.modules.keys(), (path, {SLOW!r} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def option_help(*path: str, name: str) -> str:
    command = ROOT
    for part in path:
        command = command.commands[part]
    return str(next(parameter for parameter in command.params if parameter.name == name).help)


@pytest.mark.parametrize(
    ("path", "name", "choices"),
    [
        (("run",), "data", {name.partition(":")[0] for name in DATASETS}),
        (("run",), "method", built_in()),
        (("predict",), "method", built_in()),
        (("run",), "stream", STREAMS),
        (("run",), "select", SELECT),
        (("reproduce",), "scale", SCALES),
        (("predict",), "model", models.names()),
        (("predict",), "statistics", STATISTICS),
        (("predict",), "guard", ACTIONS),
        (("buffer", "build"), "augment", AUGMENTATIONS),
        (("buffer", "build"), "dataset", NAMED),
        (("train",), "dataset", (*NAMED, "pacs")),
        (("train",), "backend", TRAINING_BACKENDS),
        (("data", "make"), "target", PUBLISHED),
    ],
)
def test_choices_in_help_are_those_of_the_library(path: tuple[str, ...], name: str, choices: Iterable[str]) -> None:
    text = option_help(*path, name=name)
    for choice in choices:
        assert re.search(rf"(?<![\w-]){re.escape(choice)}(?![\w-])", text), choice


def test_defaults_in_help_are_those_of_the_library() -> None:
    recipe = {field.name: field.default for field in dataclasses.fields(Recipe)}
    shown = {parameter.name: parameter.default for parameter in ROOT.commands["train"].params}
    both = recipe.keys() & shown.keys()
    assert len(both) > 10
    assert {name: shown[name] for name in both} == {name: recipe[name] for name in both}
    run, defaults = ROOT.commands["run"], Run(data="embedded", domains=(Domain("clean"),), model="any")
    for parameter in run.params:
        if parameter.name in ("stream", "delta", "images", "size"):
            assert parameter.default == getattr(defaults, parameter.name)
        if parameter.name == "method":
            assert parameter.show_default == defaults.method
        if parameter.name in ("buffer", "select"):
            assert parameter.default == str(getattr(defaults.buffer, {"buffer": "size"}.get(parameter.name, "select")))


@pytest.mark.parametrize("path", [(), ("data",)])
def test_an_unknown_command_gets_the_list_of_commands(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "lisst"])
    near = " Did you mean 'list'?" if path else ""
    names = (
        "check, get, list, make, show"
        if path
        else "buffer, check, data, demo, info, predict, report, reproduce, run, serve, train"
    )
    assert (result.exit_code, result.stderr) == (2, f"cretta: unknown command 'lisst'.{near} Allowed: {names}.\n")


def test_examples_have_no_spaces_after_a_backslash() -> None:
    """A shell would take the space and not the line's end."""
    text = helped("predict")
    assert "\\\n" in text
    assert not re.search(r"\\ +\n", text)


@pytest.mark.process
def test_messages_have_one_color_in_a_terminal() -> None:
    """Rich would color parts of words, such as ``modul`` ``e:ca`` ``llable``."""
    command = ("predict", "lost", "--model", "no_such:thing/1.5")
    forced = told(*command, FORCE_COLOR="1", TERM="xterm-256color")
    assert forced.startswith("\x1b[31mcretta: \x1b[0m")
    message = forced.removeprefix("\x1b[31mcretta: \x1b[0m")
    assert "\x1b" not in message
    assert "module:callable" in message
    for environment in ({}, {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm-256color"}):
        assert told(*command, **environment) == f"cretta: {message}"


def test_warnings_for_the_user_are_notes_without_source_code() -> None:
    group = App("test")

    @group.command()
    def first() -> None:
        """Warn."""
        warnings.warn("be careful", UserWarning, stacklevel=1)
        warnings.warn("batch 14: reset", cretta.CollapseWarning, stacklevel=1)

    @group.command()
    def second() -> None:
        """Do nothing."""

    with warnings.catch_warnings():
        warnings.simplefilter("default")  # in tests they are errors
        result = CliRunner().invoke(group, ["first"])
    assert (result.exit_code, result.stderr) == (0, "note: be careful\nnote: batch 14: reset\n")


def test_a_dataset_is_shown_without_its_pixels() -> None:
    assert len(repr(embedded("test"))) < 300


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "expected"),
    [("cretta re", ["report", "reproduce"]), ("cretta data ma", ["make"]), ("cretta run --str", ["--stream"])],
)
def test_the_shell_completes_commands_and_options(words: str, expected: list[str]) -> None:
    variables = {"_CRETTA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    code = "import sys; sys.argv = ['cretta']; from cretta.cli import app; app(prog_name='cretta')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == expected


@pytest.mark.process
def test_completion_is_installed_for_the_users_shell(tmp_path: Path) -> None:
    code = "from typer.completion import install; print(install(shell='bash', prog_name='cretta'))"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "HOME": str(tmp_path)}, check=True)
    assert "_CRETTA_COMPLETE" in (tmp_path / ".bash_completions" / "cretta.sh").read_text()
    assert {"--install-completion", "--show-completion"} <= {
        option for parameter in get_command(app).params for option in parameter.opts
    }
