"""How commands execute runs: the expected time first, then a bar for all and one for the run at hand."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cretta.bench import BatchRow, Listener, Result, Run, RunContext, Store, run_all
from cretta.bench.estimate import estimate
from cretta.cli.console import console, count
from cretta.cli.progress import bars


def execute(runs: Sequence[Run], store: Store, context: RunContext) -> dict[Run, Result]:
    """Results of all runs, with a plan and bars on the console."""
    seconds = estimate(runs, store, context)
    due = [run for run, expected in seconds.items() if expected]
    if len(due) < len(seconds):
        there = f"{len(seconds) - len(due)} of {count(len(seconds), 'run')}"
        console.print(f"{there} {'is' if len(seconds) == 1 else 'are'} in {store.folder} already.", soft_wrap=True)
    if due:
        images = sum(context.images(run) for run in due)
        console.print(
            f"{count(len(due), 'run')}, {count(images, 'image')}: about {duration(sum(seconds.values()))} here. "
            "Stop whenever you like; the same command goes on.",
        )
    shown = Bars(seconds)
    with shown:
        results = dict(run_all(list(seconds), store, context, shown))
    for path in store.set_aside:
        console.print(f"A damaged result was set aside and computed again: {path}", soft_wrap=True)
    return results


def duration(seconds: float) -> str:
    """In words: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


class Bars(Listener):
    """Shows a grid's progress; the bar of all runs counts expected seconds, for images of some methods cost more."""

    def __init__(self, seconds: dict[Run, float]) -> None:
        self._seconds = seconds
        self._due = sum(expected > 0 for expected in seconds.values())
        self._done = 0
        self._spent = 0.0
        self._images = 0
        self._seen = 0
        told = TextColumn("{task.fields[told]}")
        self._progress = bars(BarColumn(), told, TimeElapsedColumn(), TimeRemainingColumn())
        self._overall = self._progress.add_task("all", total=sum(seconds.values()), told=f"0/{count(self._due, 'run')}")
        self._current: TaskID | None = None

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begins(self, run: Run, images: int) -> None:
        """A bar for the run."""
        if self._current is not None:
            self._progress.remove_task(self._current)
        self._images, self._seen = images, 0
        title = f"{run.method} · {run.domains[0] if len(run.domains) == 1 else run.stream}"
        self._current = self._progress.add_task(title, total=images, told="")

    def batch(self, run: Run, row: BatchRow) -> None:
        """Both bars go on."""
        self._seen += row.images
        share = self._seen / self._images
        if self._current is not None:
            told = f"{self._seen}/{self._images} images · {row.images / row.seconds:.0f}/s"
            self._progress.update(self._current, completed=self._seen, told=told)
        self._progress.update(self._overall, completed=self._spent + share * self._seconds[run])

    def ends(self, run: Run, result: Result, *, stored: bool) -> None:
        """Counts the run."""
        self._spent += self._seconds[run]
        self._done += self._seconds[run] > 0
        self._progress.update(self._overall, completed=self._spent, told=f"{self._done}/{count(self._due, 'run')}")
