"""`cretta demo`: what adaptation does, on images that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cretta import demo as demonstration
from cretta.cli.console import app, check_output, console, plain_errors, progress_bar
from cretta.measure import Trace

FIGURE_FORMATS = (".png", ".svg", ".pdf")


@app.command()
def demo(
    shift: Annotated[
        list[str] | None, typer.Option(help="A corruption to show; may be given several times.", show_default="three")
    ] = None,
    severity: Annotated[int, typer.Option(help="How strong, from 1 to 5.")] = 5,
    images: Annotated[int, typer.Option(help="How many images of each shift, at most 2000.")] = 600,
    batch_size: Annotated[int, typer.Option(help="How many images arrive at once.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    output: Annotated[Path, typer.Option(help="Where to write the figure (.png, .svg or .pdf).")] = Path(
        "cretta-demo.png"
    ),
) -> None:
    """Show what adaptation does, on real images that come with cretta; needs no network.

    A WideResNet-40-2 trained on CIFAR-10 predicts corrupted test images that arrive in batches: as it is
    (source), with the batch's statistics (bn_adapt), minimising entropy (tent), and by contrastive residual
    energies (cretta). The table gives accuracy, calibration error (ECE), mean energy and speed over the stream;
    the figure shows them batch by batch.

        # about two minutes on two cores
        cretta demo

        # one shift over more batches
        cretta demo --shift glass_blur --images 2000
    """
    from cretta.report.figures import adaptation_curves
    from cretta.report.tables import comparison

    shifts = tuple(shift or demonstration.SHIFTS)
    traces: dict[str, dict[str, Trace]] = {}
    with plain_errors():
        check_output(output, FIGURE_FORMATS)
        with progress_bar() as progress:
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
    console.print(f"Figure: {output}", soft_wrap=True)
