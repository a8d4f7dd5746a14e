from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from typer.main import get_command
from typer.testing import CliRunner

from cretta.cli import app
from cretta.cli import console as cli_console
from cretta.cli.app import as_options
from cretta.cli.console import console, count, notices
from cretta.cli.progress import EVERY, Lines, bars, download_bars, progress_bar
from cretta.data import embedded
from cretta.report.content import Cell, Column, Row, Table

NET = """
from torch import nn
def make():
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.BatchNorm2d(4), *pooled, nn.Linear(4, 10))
"""


# Progress in a log.


def lines(
    capsys: pytest.CaptureFixture[str], progress: Callable[..., Lines], *events: Callable[[Lines], object]
) -> list[str]:
    """What is written if an event happens every 30 seconds, by a clock that the test turns; then the work ends."""
    now, due = [0.0], iter(events)

    def wait(seconds: float) -> bool:
        now[0] += seconds
        event = next(due, None)
        if event is not None:
            event(shown)
        return event is None

    shown = progress(console=notices, get_time=lambda: now[0], wait=wait, speed_estimate_period=60)
    with shown:
        pass
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_a_log_gets_a_line_of_progress_every_thirty_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    def begin(shown: Lines) -> None:
        shown.add_task("tent", total=1200)

    def at(images: int) -> Callable[[Lines], object]:
        return lambda shown: shown.update(shown.task_ids[0], completed=images)

    columns = progress_bar().columns
    found = lines(capsys, lambda **options: Lines(*columns, **options), id, begin, at(300), at(900), at(900), at(1200))
    assert EVERY == 30
    assert found == [
        "working",
        "tent, 0/1200",
        "tent, 300/1200",
        "tent, 900/1200, 20 images/s, 0:00:15 left",
        "tent, 900/1200, 20 images/s, 0:00:15 left",
        "tent, 1200/1200, 5 images/s, 0:00:00 left",
    ]


def test_a_line_tells_of_all_that_is_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    def begin(shown: Lines) -> None:
        shown.add_task("all", total=100, told="3/12 runs")
        shown.add_task("tent · fog", total=10, told="5/10 images")
        shown.add_task("hidden", visible=False, told="")

    def end(shown: Lines) -> None:
        shown.update(shown.task_ids[1], completed=10)

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn())
    assert lines(capsys, lambda **options: Lines(*columns, **options), begin, end) == [
        "all, 3/12 runs, 0:00:00 elapsed; tent · fog, 5/10 images, 0:00:00 elapsed",
        "all, 3/12 runs, 0:00:30 elapsed",
    ]


def test_work_that_is_not_counted_gets_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    def begin(shown: Lines) -> None:
        shown.add_task("reading cifar10", total=None)

    def count(shown: Lines) -> None:
        shown.update(shown.task_ids[0], completed=5000)

    columns = download_bars().columns
    assert lines(capsys, lambda **options: Lines(*columns, **options), begin, id, count)[:2] == [
        "reading cifar10, 0:00:00 elapsed",
        "reading cifar10, 0:00:30 elapsed",
    ]


def test_nothing_else_is_written_into_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("runs") as progress:
        task = progress.add_task("reading", total=2)
        progress.update(task, advance=2)
        console.print("said")
    assert capsys.readouterr() == ("said\n", "")


def test_a_terminal_gets_bars_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    assert isinstance(bars(), Lines)
    monkeypatch.setattr(notices, "is_interactive", True)
    assert isinstance(bars(), Lines)  # FORCE_COLOR alone makes no terminal
    monkeypatch.setattr(notices, "_file", Terminal())
    shown = bars()
    assert type(shown) is Progress
    assert shown.console.stderr


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("predict flat --model console_net:make --method source --device cpu", "source, 12/12"),
        (
            "run --model console_net:make --method source --images 20 --batch-size 10 --device cpu",
            "runs, 100%, 1/1",
        ),
        (
            "train classes --output out.safetensors --architecture resnet-8-4 --epochs 1 --batch-size 4",
            "100%, epoch 1.00",
        ),
        ("data make flat --corruption contrast --severity 1", "contrast/1, 12/12"),
    ],
)
@pytest.mark.slow
def test_long_commands_tell_how_far_they_are(
    command: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one line at the end of the work, in the place of those by the clock."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "console_net.py").write_text(NET)
    for number in range(12):
        for folder in (tmp_path / "flat", tmp_path / "classes" / "ab"[number % 2]):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(embedded("test").images[number]).save(folder / f"{number}.png")
    monkeypatch.setattr(Lines, "start", lambda self: None)
    monkeypatch.setattr(Lines, "stop", lambda self: notices.print("; ".join(map(self._described, self.tasks))))
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output
    assert told in result.stderr.replace("\n", " ")
    assert told not in result.stdout


# Messages.


@pytest.mark.parametrize(
    ("command", "message", "said"),
    [
        (
            "train",
            "epochs=None, minutes=None: give one, as in epochs=10.",
            "no --epochs, no --minutes: give one, as in --epochs 10.",
        ),
        (
            "train",
            "batch_size=128: too many; give a smaller batch_size.",
            "--batch-size 128: too many; give a smaller --batch-size.",
        ),
        ("predict", "pass overwrite=True.", "pass --overwrite."),
        ("predict", "labeled=True, or labeled=False.", "--labels yes, or --labels no."),
        ("predict", "mean=(0.5, 0.25), std=None: give both", "--mean 0.5,0.25, no --std: give both"),
        ("predict", "size=(32, 48): leave it out", "--size 32x48: leave it out"),
        ("predict", "statistics='moving', on_error='skip'", "--statistics moving, --on-error skip"),
        (
            "predict",
            "--option seed=… and /data/seed=3/batch_size, class_names.txt",
            "--option seed=… and /data/seed=3/batch_size, class_names.txt",
        ),
        ("predict", "lr='fast': must be a number", "lr='fast': must be a number"),
        ("report", "overwrite=True", "overwrite=True"),
    ],
)
def test_keywords_of_the_api_become_options(command: str, message: str, said: str) -> None:
    group: Any = get_command(app)
    assert as_options(message, group.commands[command].params) == said


def test_counts_agree_with_their_nouns() -> None:
    assert [count(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


@pytest.mark.parametrize(
    ("terminal", "term", "best"),
    [(True, "xterm", "\x1b[1m2.00\x1b[0m"), (True, "dumb", "2.00*"), (False, "xterm", "2.00*")],
)
def test_the_best_number_is_marked_with_and_without_styles(
    terminal: bool, term: str, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    environment = {"TERM": term, "COLUMNS": "80"}
    monkeypatch.setattr(
        cli_console, "console", Console(file=file, force_terminal=terminal, highlight=False, _environ=environment)
    )
    rows = (Row("a", (Cell(1.0),)), Row("b", (Cell(2.0),)))
    cli_console.print_results(Table("t", "T", "m", (Column("x", better="higher"),), rows))
    assert best in file.getvalue()
    assert ("*: the best" in file.getvalue()) is ("*" in best)
