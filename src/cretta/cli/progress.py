"""Progress of long commands: bars in a terminal, a line every 30 seconds in a log."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from cretta.cli.console import console, notices

EVERY = 30.0
"""Seconds between lines of progress in a log."""
WORDS = {TimeElapsedColumn: " elapsed", TimeRemainingColumn: " left"}


class RateColumn(ProgressColumn):
    """Units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """Return the recent speed; nothing before it is known."""
        return Text(f"{task.speed:.0f} {self.unit}/s" if task.speed else "", style="progress.data.speed")


class Lines(Progress):
    """Progress for a log: a line every 30 seconds.

    ``wait`` waits for a number of seconds, and returns whether the work has ended.
    """

    def __init__(
        self, *columns: str | ProgressColumn, wait: Callable[[float], bool] | None = None, **options: Any
    ) -> None:
        super().__init__(*columns, disable=True, auto_refresh=False, **options)
        self._ended = Event()
        self._wait = wait or self._ended.wait
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start to write lines."""
        self._thread = Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
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
        # Of work that is not counted, only the time is known.
        counted = task.total is not None or task.completed
        for column in self.columns if counted else (self.columns[0], TimeElapsedColumn()):
            shown = column(task) if isinstance(column, ProgressColumn) else column
            if isinstance(shown, Text) and shown.plain and "-:--" not in shown.plain:
                parts.append(shown.plain.strip() + WORDS.get(type(column), ""))
        return ", ".join(parts)


def progress_bar(unit: str = "images") -> Progress:
    """Return a bar with a count, a rate and the time left."""
    return bars(BarColumn(), MofNCompleteColumn(), RateColumn(unit), TimeRemainingColumn())


def task_updates(progress: Progress) -> Callable[[str, float, float], None]:
    """Return a callback (description, done, total) that adds a bar for each new description, and moves it."""
    tasks: dict[str, TaskID] = {}

    def update(description: str, done: float, total: float) -> None:
        if description not in tasks:
            # What is done already, by an earlier process, does not count as speed.
            tasks[description] = progress.add_task(description, total=total, completed=int(done), details="")
        progress.update(tasks[description], completed=done)

    return update


def bars(*columns: ProgressColumn) -> Progress:
    """Return bars on stderr that vanish when the work is done; in a log, they are a line every 30 seconds.

    The first column is the description of the task; ``columns`` follow.
    """
    columns = (TextColumn("{task.description}", table_column=Column(no_wrap=True)), *columns)
    if not (notices.is_interactive and notices.file.isatty()):
        return Lines(*columns, console=notices, speed_estimate_period=60)
    # If stdout is the same terminal, lines printed meanwhile must be placed above the bars.
    return Progress(
        *columns, console=notices, transient=True, redirect_stdout=console.is_terminal, speed_estimate_period=60
    )


def detail_bars() -> Progress:
    """Return bars with the share that is done, the field ``details`` of the task, and the time spent and left."""
    details = TextColumn("{task.fields[details]}")
    return bars(BarColumn(), TaskProgressColumn(), details, TimeElapsedColumn(), TimeRemainingColumn())


def download_bars() -> Progress:
    """Return bars with the bytes done, their rate and the time left."""
    return bars(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
