"""The command line: parses, calls, prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from cretta import demo as demonstration
from cretta.errors import CrettaError, OptionError
from cretta.measure import Trace

app = typer.Typer(
    help="Keep an image classifier accurate and calibrated while the world drifts away from its training data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
console = Console()
FIGURE_FORMATS = (".png", ".svg", ".pdf")


def _show_version(asked: bool) -> None:
    if asked:
        console.print(f"cretta {version('cretta')}", highlight=False)
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors raised on purpose are messages to the user, not tracebacks."""
    try:
        yield
    except CrettaError as wrong:
        Console(stderr=True).print(Text("cretta: ", style="red"), str(wrong), sep="", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None


class RateColumn(ProgressColumn):
    """Images a second."""

    def render(self, task: Task) -> Text:
        """The speed of late, once there is one."""
        return Text(f"{task.speed:.0f} images/s" if task.speed else "", style="progress.data.speed")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=60,
    )


def _check_figure_path(path: Path) -> None:
    """Before the work, not after it."""
    if path.suffix.lower() not in FIGURE_FORMATS:
        raise OptionError(f"--output {path}: the name must end in {', '.join(FIGURE_FORMATS)}.")
    if not path.parent.is_dir():
        raise OptionError(f"--output {path}: the folder {path.parent} does not exist; make it first.")


@app.command()
def demo(
    shift: Annotated[
        list[str] | None, typer.Option(help="A corruption to show; may be given several times.", show_default="three")
    ] = None,
    severity: Annotated[int, typer.Option(help="How strong, from 1 to 5.")] = 5,
    images: Annotated[int, typer.Option(help="How many images of each shift, at most 2000.")] = 600,
    batch_size: Annotated[int, typer.Option(help="How many images arrive at once.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    output: Annotated[Path, typer.Option(help="Where to write the figure (.png, .svg or .pdf).")] = Path(
        "cretta-demo.png"
    ),
) -> None:
    """Show what adaptation does, on real images that come with cretta; needs no network.

    A WideResNet-40-2 trained on CIFAR-10 predicts corrupted test images that arrive in batches: as it is
    (source), with the batch's statistics (bn_adapt), minimising entropy (tent), and by contrastive residual
    energies (cretta). The table gives accuracy, calibration error (ECE), mean energy and speed over the stream;
    the figure shows them batch by batch.

    `cretta demo` takes about two minutes on two cores;
    `cretta demo --shift glass_blur --images 2000` looks at one shift over more batches.
    """
    from cretta.report.figures import adaptation_curves
    from cretta.report.tables import comparison

    shifts = tuple(shift or demonstration.SHIFTS)
    traces: dict[str, dict[str, Trace]] = {}
    with _plain_errors():
        _check_figure_path(output)
        with _progress() as progress:
            task = progress.add_task("loading", total=len(shifts) * len(demonstration.METHODS) * images)

            def hear(shift: str, method: str, count: int) -> None:
                progress.update(task, advance=count, description=f"{shift} · {method}")

            for name, method, trace in demonstration.run(
                shifts=shifts, severity=severity, images=images, batch_size=batch_size, seed=seed, progress=hear
            ):
                traces.setdefault(name, {})[method] = trace
    adaptation_curves(traces, output)
    title = f"{images} CIFAR-10 test images a shift, severity {severity}, batches of {batch_size}, seed {seed}"
    console.print(comparison(traces, title))
    console.print(f"Figure: {output}", highlight=False, soft_wrap=True)
