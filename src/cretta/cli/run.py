"""`cretta run`: compare methods on streams of shifted images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cretta.cli import parse
from cretta.cli.console import app, console
from cretta.cli.options import ADAPTATION, DEFAULT_STORE, MODEL, STREAM, DeviceOption, RootOption, StoreOption
from cretta.errors import OptionError

if TYPE_CHECKING:
    from cretta.bench import Benchmark


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
    import dataclasses

    from cretta.bench import Buffer, Run, RunContext, Store
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
        domains=(CLEAN,),
        model=model,
        images=images,
        size=size,
        batch_size=benchmark.batch_size if batch_size is None else batch_size,
        buffer=Buffer(size=parse.share_or_count(buffer, "--buffer"), select=select),
        clean_after=clean_after,
    )
    runs = [
        dataclasses.replace(base, **stream_fields, **method_fields, seed=number)
        for stream_fields in _streams(
            stream, delta, _shifts(shift or ["gaussian_noise"], severity or [5], benchmark), severity
        )
        for method_fields in _methods(method or ["cretta"], preset, option or [], benchmark)
        for number in seed or [0]
    ]
    if is_folder(data) and not class_file(Path(data) / "train"):
        folders = benchmark.training().classes
        if folders != context.classes(model)[: len(folders)]:
            note_order(Path(data), folders)
    results = execute(runs, Store(store), context)
    for table in summary_tables(grouped(results.values())):
        console.print(terminal(table, console.width))


def _shifts(shifts: list[str], severities: list[int], benchmark: Benchmark) -> list[str]:
    """Return the domains, with a severity where they need one."""
    from cretta.data.domains import CLEAN

    found: list[str] = []
    for shift in shifts:
        for name in benchmark.domains if shift == "all" else (shift,):
            plain = name == CLEAN or "/" in name or benchmark.corruptions == "none"
            found += [name] if plain else [f"{name}/{severity}" for severity in severities]
    return list(dict.fromkeys(found))


def _streams(stream: str, delta: float | None, domains: list[str], severity: list[int] | None) -> list[dict[str, Any]]:
    """Return the domains and the stream of each run."""
    from cretta.data.corruptions import SEVERITIES
    from cretta.data.domains import CLEAN

    if stream == "gradual":
        if severity:
            raise OptionError("--severity with --stream gradual: it passes through all five; leave it out.")
        corruptions = dict.fromkeys(domain.partition("/")[0] for domain in domains if domain != CLEAN)
        if not corruptions:
            raise OptionError("--stream gradual: give a corruption to pass through, such as --shift fog.")
        ways = [(CLEAN, *(f"{each}/{level}" for level in SEVERITIES), CLEAN) for each in corruptions]
        return [{"stream": stream, "delta": delta, "domains": way} for way in ways]
    if stream in ("continual", "mixed"):
        return [{"stream": stream, "delta": delta, "domains": tuple(domains)}]
    return [{"stream": stream, "delta": delta, "domains": (domain,)} for domain in domains]


def _methods(names: list[str], preset: str | None, pairs: list[str], benchmark: Benchmark) -> list[dict[str, Any]]:
    """Return every method with every combination of the values of its options."""
    from cretta import methods

    found = []
    for name in methods.names() if names == ["all"] else names:
        known = methods.get(name).presets
        chosen = preset if preset is not None else benchmark.preset if benchmark.preset in known else None
        combinations: list[list[str]] = [[]]
        for pair in pairs:
            key, equals, values = pair.partition("=")
            combinations = [[*each, f"{key}{equals}{value}"] for each in combinations for value in values.split("|")]
        found += [
            {"method": name, "preset": chosen, "options": tuple(parse.options(name, each).items())}
            for each in combinations
        ]
    return found
