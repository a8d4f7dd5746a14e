"""Execute runs with progress on the console."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import Progress

from cretta.bench import BatchRow, Engine, Listener, Result, Run, RunContext, Store
from cretta.bench import engine as make_engine
from cretta.bench.estimate import estimate
from cretta.cli.console import console, count, duration, say
from cretta.cli.progress import detail_bars


def execute(runs: Sequence[Run], store: Store, context: RunContext, engine: Engine | None = None) -> dict[Run, Result]:
    """Print the expected time, execute the runs that are not in the store, and return all results."""
    engine = engine or make_engine()
    seconds = estimate(runs, store, context)
    due = [run for run, expected in seconds.items() if expected]
    if len(due) < len(seconds):
        stored = f"{len(seconds) - len(due)} of {count(len(seconds), 'run')}"
        say(f"{stored} {'is' if len(seconds) == 1 else 'are'} in {store.folder} already.")
    if due:
        images = sum(context.images(run) for run in due)
        workers = count(engine.workers, "worker") if engine.workers else "the workers of the cluster"
        where = "here" if engine.name == "serial" else f"with {workers}"
        expected = duration(sum(seconds.values()) / (engine.workers or 1))
        console.print(f"{count(len(due), 'run')}, {count(images, 'image')}: about {expected} {where}.")
    with detail_bars() as bar:
        results = dict(engine.run_all(list(seconds), store, context, RunProgress(seconds, bar)))
    for path in store.damaged:
        say(f"A damaged result was computed again: {path}")
    return {run: results[run] for run in seconds}


class RunProgress(Listener):
    """Moves a bar by expected seconds, because images cost more with some methods than with others."""

    def __init__(self, seconds: dict[Run, float], bar: Progress) -> None:
        self._seconds = seconds
        self._due = sum(expected > 0 for expected in seconds.values())
        self._done, self._spent = 0, 0.0
        self._seen: dict[Run, int] = {}
        self._images: dict[Run, int] = {}
        self._bar = bar
        self._task = bar.add_task("runs", total=sum(seconds.values()), details=f"0/{self._due}")

    def begins(self, run: Run, images: int) -> None:
        """Start to count the images of a run."""
        self._seen[run], self._images[run] = 0, images

    def batch(self, run: Run, row: BatchRow) -> None:
        """Show the current run, and how many of its images are done."""
        self._seen[run] += row.images
        name = f"{run.method} · {run.domains[0] if len(run.domains) == 1 else run.stream}"
        images = f"{self._seen[run]}/{self._images[run]} images · {row.images / row.seconds:.0f}/s"
        others = f" · {len(self._seen)} at once" if len(self._seen) > 1 else ""
        self._show(f" · {name} · {images}{others}")

    def ends(self, run: Run, result: Result, *, stored: bool) -> None:
        """Count the run."""
        self._seen.pop(run, None)
        self._spent += self._seconds[run]
        self._done += self._seconds[run] > 0
        self._show()

    def _show(self, current: str = "") -> None:
        under_way = sum(seen / self._images[run] * self._seconds[run] for run, seen in self._seen.items())
        seconds = self._spent + under_way
        self._bar.update(self._task, completed=seconds, details=f"{self._done}/{self._due}{current}")
