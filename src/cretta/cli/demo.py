"""`cretta demo`: what adaptation does, on images that come with the package."""

from __future__ import annotations

from pathlib import Path

from cretta.cli.app import app
from cretta.cli.console import check_output, console, print_results, say
from cretta.cli.options import SEED, option

FIGURE_FORMATS = (".png", ".svg", ".pdf")


@app.command()
def demo(
    shift: list[str] | None = option(None, "A corruption to show on its own; can be repeated.", shown="eight in a row"),
    severity: int = option(5, "Strength of the corruption, from 1 to 5."),
    images: int = option(400, "Images per shift, at most 2000."),
    batch_size: int | None = option(None, "Images per batch.", shown="50, or all if fewer"),
    seed: int = SEED,
    output: Path = option(Path("cretta-demo.png"), "File for the figure (.png, .svg or .pdf)."),
    store: Path | None = option(None, "Folder in which results are stored.", shown="a temporary one"),
) -> None:
    """Show what adaptation does when the data drifts, on real images that come with cretta; works offline.

    A WideResNet-40-2 trained on CIFAR-10 predicts test images in batches, through eight corruptions one after another
    and without a reset: as it is (source), with the statistics of the batch (bn_adapt), minimizing entropy (tent), and
    by contrastive residual energies (cretta). Each corruption takes the next 400 of 2000 images, so that 1200 images
    come twice. The table gives accuracy, calibration error (ECE), confidence minus accuracy, and speed, over the full
    stream and its second half; the figure shows them over the stream.

        # under three minutes on two cores
        cretta demo

        # one shift, over more batches
        cretta demo --shift glass_blur --images 2000

        # resumable; a second time, the results are shown without computing them
        cretta demo --store demo-results
    """
    from contextlib import nullcontext
    from tempfile import TemporaryDirectory

    from cretta import demo as demonstration
    from cretta.bench import Store
    from cretta.cli.execute import execute
    from cretta.report.charts import write_chart

    check_output(output, FIGURE_FORMATS)
    with TemporaryDirectory(prefix="cretta-demo-") if store is None else nullcontext(store) as folder:
        runs, context = demonstration.plan(
            shift or (), severity=severity, images=images, batch_size=batch_size, seed=seed
        )
        results = execute(runs, Store(folder), context)
    groups = demonstration.groups_of(results)
    title = (
        f"{images} CIFAR-10 test images per shift, severity {severity}, batches of {runs[0].batch_size}, seed {seed}"
    )
    write_chart(demonstration.chart(groups, title), output)
    print_results(demonstration.table(groups, title))
    if not shift:
        console.print("", *demonstration.findings(groups), sep="\n")
    say(f"\nFigure: {output}")
