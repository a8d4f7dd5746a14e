"""Execute runs with progress on the console: one bar for all of them, and one for the current run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import TaskID

from cretta.bench import BatchRow, Listener, Result, Run, RunContext, Store, run_all
from cretta.bench.estimate import estimate
from cretta.cli.console import console, count, duration
from cretta.cli.progress import detail_bars


def execute(runs: Sequence[Run], store: Store, context: RunContext) -> dict[Run, Result]:
    """Print the expected time, execute the runs that are not in the store, and return all results."""
    seconds = estimate(runs, store, context)
    due = [run for run, expected in seconds.items() if expected]
    if len(due) < len(seconds):
        stored = f"{len(seconds) - len(due)} of {count(len(seconds), 'run')}"
        console.print(f"{stored} {'is' if len(seconds) == 1 else 'are'} in {store.folder} already.", soft_wrap=True)
    if due:
        images = sum(context.images(run) for run in due)
        console.print(
            f"{count(len(due), 'run')}, {count(images, 'image')}: about {duration(sum(seconds.values()))} here."
        )
    with RunBars(seconds) as progress:
        results = dict(run_all(list(seconds), store, context, progress))
    for path in store.set_aside:
        console.print(f"A damaged result was set aside and computed again: {path}", soft_wrap=True)
    return {run: results[run] for run in seconds}


class RunBars(Listener):
    """Bars for runs; the bar of all runs counts expected seconds, because images cost more with some methods."""

    def __init__(self, seconds: dict[Run, float]) -> None:
        self._seconds = seconds
        self._due = sum(expected > 0 for expected in seconds.values())
        self._done = 0
        self._spent = 0.0
        self._images = 0
        self._seen = 0
        self._progress = detail_bars()
        self._overall = self._progress.add_task("all", total=sum(seconds.values()), details=self._counted())
        self._current: TaskID | None = None

    def __enter__(self) -> RunBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _counted(self) -> str:
        return f"{self._done}/{count(self._due, 'run')}"

    def begins(self, run: Run, images: int) -> None:
        """Add a bar for the run."""
        if self._current is not None:
            self._progress.remove_task(self._current)
        self._images, self._seen = images, 0
        title = f"{run.method} · {run.domains[0] if len(run.domains) == 1 else run.stream}"
        self._current = self._progress.add_task(title, total=images, details="")

    def batch(self, run: Run, row: BatchRow) -> None:
        """Move both bars."""
        self._seen += row.images
        if self._current is not None:
            details = f"{self._seen}/{self._images} images · {row.images / row.seconds:.0f}/s"
            self._progress.update(self._current, completed=self._seen, details=details)
        spent = self._spent + self._seen / self._images * self._seconds[run]
        self._progress.update(self._overall, completed=spent)

    def ends(self, run: Run, result: Result, *, stored: bool) -> None:
        """Count the run."""
        self._spent += self._seconds[run]
        self._done += self._seconds[run] > 0
        self._progress.update(self._overall, completed=self._spent, details=self._counted())
