"""Execute runs with progress on the console."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import Progress

from cretta.bench import BatchRow, Listener, Result, Run, RunContext, Store, run_all
from cretta.bench.estimate import estimate
from cretta.cli.console import console, count, duration, say
from cretta.cli.progress import detail_bars


def execute(runs: Sequence[Run], store: Store, context: RunContext) -> dict[Run, Result]:
    """Print the expected time, execute the runs that are not in the store, and return all results."""
    seconds = estimate(runs, store, context)
    due = [run for run, expected in seconds.items() if expected]
    if len(due) < len(seconds):
        stored = f"{len(seconds) - len(due)} of {count(len(seconds), 'run')}"
        say(f"{stored} {'is' if len(seconds) == 1 else 'are'} in {store.folder} already.")
    if due:
        images = sum(context.images(run) for run in due)
        console.print(
            f"{count(len(due), 'run')}, {count(images, 'image')}: about {duration(sum(seconds.values()))} here."
        )
    with detail_bars() as bar:
        results = dict(run_all(list(seconds), store, context, RunProgress(seconds, bar)))
    for path in store.set_aside:
        say(f"A damaged result was set aside and computed again: {path}")
    return {run: results[run] for run in seconds}


class RunProgress(Listener):
    """Moves a bar by expected seconds, because images cost more with some methods than with others."""

    def __init__(self, seconds: dict[Run, float], bar: Progress) -> None:
        self._seconds = seconds
        self._due = sum(expected > 0 for expected in seconds.values())
        self._done, self._seen, self._images = 0, 0, 1
        self._spent = 0.0
        self._bar = bar
        self._task = bar.add_task("runs", total=sum(seconds.values()), details=f"0/{self._due}")

    def begins(self, run: Run, images: int) -> None:
        """Start to count the images of a run."""
        self._seen, self._images = 0, images

    def batch(self, run: Run, row: BatchRow) -> None:
        """Show the current run, and how many of its images are done."""
        self._seen += row.images
        name = f"{run.method} · {run.domains[0] if len(run.domains) == 1 else run.stream}"
        images = f"{self._seen}/{self._images} images · {row.images / row.seconds:.0f}/s"
        self._show(self._spent + self._seen / self._images * self._seconds[run], f" · {name} · {images}")

    def ends(self, run: Run, result: Result, *, stored: bool) -> None:
        """Count the run."""
        self._spent += self._seconds[run]
        self._done += self._seconds[run] > 0
        self._show(self._spent)

    def _show(self, seconds: float, current: str = "") -> None:
        self._bar.update(self._task, completed=seconds, details=f"{self._done}/{self._due}{current}")
