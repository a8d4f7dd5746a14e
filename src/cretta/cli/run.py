"""`cretta run`: compare methods on streams of shifted images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cretta.cli import parse
from cretta.cli.console import app, console
from cretta.cli.options import ADAPTATION, DEFAULT_STORE, MODEL, STREAM, DeviceOption, RootOption, StoreOption

if TYPE_CHECKING:
    pass


@app.command(resumable=True)
def run(
    data: Annotated[
        str,
        typer.Option(
            help="embedded, cifar10, cifar100, tiny-imagenet, imagenet, pacs:photo (its source), or a folder that "
            "holds train/CLASS/ and test/CLASS/.",
            rich_help_panel=STREAM,
        ),
    ] = "embedded",
    model: Annotated[
        str,
        typer.Option(help="A shipped name, a checkpoint of `cretta train`, or module:callable.", rich_help_panel=MODEL),
    ] = "wrn-40-2-cifar10",
    shift: Annotated[
        list[str] | None,
        typer.Option(
            help="fog, fog/5, clean, a domain of PACS, or all; can be repeated.",
            show_default="gaussian_noise",
            rich_help_panel=STREAM,
        ),
    ] = None,
    severity: Annotated[
        list[int] | None,
        typer.Option(
            help="Severity of shifts that are given without one; can be repeated.",
            show_default="5",
            rich_help_panel=STREAM,
        ),
    ] = None,
    stream: Annotated[
        str,
        typer.Option(help="iid, ordered, dirichlet, continual, gradual or mixed.", rich_help_panel=STREAM),
    ] = "iid",
    delta: Annotated[
        float | None,
        typer.Option(
            help="Concentration of the dirichlet stream: 10, 1, 0.1, 0.01; smaller is less i.i.d.",
            rich_help_panel=STREAM,
        ),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(help="Use only so many images of each shift.", show_default="all", rich_help_panel=STREAM),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Scale image files to this side.", rich_help_panel=STREAM)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images per batch.", show_default="the benchmark's", rich_help_panel=STREAM)
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method, or all; can be repeated.", show_default="cretta", rich_help_panel=ADAPTATION),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Named options, or several: cifar10+fast.",
            show_default="the method's for the benchmark",
            rich_help_panel=ADAPTATION,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the method, lr=0.001, or values to try one by one, beta=0.5|1|2; can be repeated.",
            rich_help_panel=ADAPTATION,
        ),
    ] = None,
    buffer: Annotated[
        str, typer.Option(help="Source images: a share, 0.1, or a number, 1000.", rich_help_panel=ADAPTATION)
    ] = "0.1",
    select: Annotated[
        str,
        typer.Option(help="How source images are chosen: random, confident or uncertain.", rich_help_panel=ADAPTATION),
    ] = "random",
    clean_after: Annotated[
        int,
        typer.Option(help="Clean images to predict at the end, to measure forgetting.", rich_help_panel=ADAPTATION),
    ] = 0,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Seed of all random choices; can be repeated.", show_default="0", rich_help_panel=ADAPTATION),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    root: RootOption = None,
    device: DeviceOption = "auto",
) -> None:
    r"""Compare methods on streams of shifted images; results are stored, and none is computed twice.

    Options that are repeated are combined: two methods, three shifts and two seeds are twelve runs.
    `cretta report` makes a page of all results.

        cretta run --method source --method tent --method cretta \
            --shift fog --shift jpeg_compression --images 1000
        cretta run --stream dirichlet --delta 0.1 --method all --images 1000
        cretta run --stream gradual --shift fog --method tent --images 500
        cretta run --option 'beta=0.5|1|2' --seed 0 --seed 1 --seed 2
    """
    from cretta.bench import Buffer, Domain, Run, RunContext, Store, expand
    from cretta.bench.benchmarks import is_folder
    from cretta.cli.datasets import note_order
    from cretta.cli.grids import execute
    from cretta.data.domains import CLEAN
    from cretta.data.folder import class_file
    from cretta.report.groups import grouped
    from cretta.report.summary import summary_tables
    from cretta.report.terminal import terminal

    context = RunContext(root, parse.device(device))
    benchmark = context.benchmark(data, size)
    base = Run(
        data=data,
        domains=(Domain(CLEAN),),
        model=model,
        images=images,
        size=size,
        batch_size=benchmark.batch_size if batch_size is None else batch_size,
        buffer=Buffer(size=parse.share_or_count(buffer, "--buffer"), select=select),
        clean_after=clean_after,
    )
    runs = expand(
        base,
        benchmark,
        shifts=shift or ["gaussian_noise"],
        severities=severity,
        stream=stream,
        delta=delta,
        options={name: _combinations(name, option or []) for name in _names(method or ["cretta"])},
        preset=preset,
        seeds=seed or [0],
    )
    if is_folder(data) and not class_file(Path(data) / "train"):
        folders = benchmark.training().classes
        if folders != context.classes(model)[: len(folders)]:
            note_order(Path(data), folders)
    results = execute(runs, Store(store), context)
    for table in summary_tables(grouped(results.values())):
        console.print(terminal(table, console.width))


def _names(names: list[str]) -> list[str]:
    from cretta import methods

    return list(methods.names()) if names == ["all"] else names


def _combinations(method: str, pairs: list[str]) -> list[dict[str, Any]]:
    """Return the options of a method for each combination of the values in pairs such as ``beta=0.5|1``."""
    combinations: list[list[str]] = [[]]
    for pair in pairs:
        name, equals, values = pair.partition("=")
        combinations = [[*others, f"{name}{equals}{value}"] for others in combinations for value in values.split("|")]
    return [parse.options(method, combination) for combination in combinations]
