"""`cretta run`: compare methods on streams of shifted images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cretta.cli import parse
from cretta.cli.app import app
from cretta.cli.console import console
from cretta.cli.options import ADAPTATION, DEFAULT_STORE, MODEL, STREAM, DeviceOption, RootOption, StoreOption, option


@app.command(resumable=True)
def run(
    data: Annotated[
        str,
        option(
            "embedded, cifar10, cifar100, tiny-imagenet, imagenet, pacs:photo (its source), or a folder that holds "
            "train/CLASS/ and test/CLASS/.",
            STREAM,
        ),
    ] = "embedded",
    model: Annotated[
        str, option("A shipped name, a checkpoint of `cretta train`, or module:callable.", MODEL)
    ] = "wrn-40-2-cifar10",
    shift: Annotated[
        list[str] | None,
        option("fog, fog/5, clean, a domain of PACS, or all; can be repeated.", STREAM, default="gaussian_noise"),
    ] = None,
    severity: Annotated[
        list[int] | None, option("Severity of shifts that are given without one; can be repeated.", STREAM, default="5")
    ] = None,
    stream: Annotated[str, option("iid, ordered, dirichlet, continual, gradual or mixed.", STREAM)] = "iid",
    delta: Annotated[
        float | None, option("Of the dirichlet stream: 10, 1, 0.1, 0.01; the smaller, the less i.i.d.", STREAM)
    ] = None,
    images: Annotated[int | None, option("Images of each shift.", STREAM, default="all")] = None,
    size: Annotated[int | None, option("Scale image files to this side.", STREAM, min=1)] = None,
    batch_size: Annotated[int | None, option("Images per batch.", STREAM, default="the benchmark's")] = None,
    method: Annotated[
        list[str] | None, option("A method, or all; can be repeated.", ADAPTATION, default="cretta")
    ] = None,
    preset: Annotated[
        str | None,
        option("Named options, or several: cifar10+fast.", ADAPTATION, default="the method's for the benchmark"),
    ] = None,
    option: Annotated[
        list[str] | None,
        option(
            "An option of the method, lr=0.001, or values to try one by one, beta=0.5|1|2; can be repeated.", ADAPTATION
        ),
    ] = None,
    buffer: Annotated[str, option("Source images: a share, 0.1, or a number, 1000.", ADAPTATION)] = "0.1",
    select: Annotated[
        str, option("How source images are selected: random, confident or uncertain.", ADAPTATION)
    ] = "random",
    clean_after: Annotated[int, option("Clean images to predict at the end, to measure forgetting.", ADAPTATION)] = 0,
    seed: Annotated[
        list[int] | None, option("Seed of all random choices; can be repeated.", ADAPTATION, default="0")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    root: RootOption = None,
    device: DeviceOption = "auto",
) -> None:
    r"""Compare methods on streams of shifted images; results are stored, and none is computed twice.

    Options that are repeated are combined: two methods, three shifts and two seeds are twelve runs. **Resumable**: run
    the same command again. `cretta report` makes a page of all results.

        cretta run --method source --method tent --method cretta \
            --shift fog --shift jpeg_compression --images 1000
        cretta run --stream dirichlet --delta 0.1 --method all --images 1000
        cretta run --stream gradual --shift fog --method tent --images 500
        cretta run --option 'beta=0.5|1|2' --seed 0 --seed 1 --seed 2
    """
    from cretta import methods
    from cretta.bench import Buffer, Domain, Run, RunContext, Store, expand
    from cretta.bench.benchmarks import is_folder
    from cretta.cli.datasets import note_order
    from cretta.cli.execute import execute
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
    names = methods.names() if method == ["all"] else method or ["cretta"]
    runs = expand(
        base,
        benchmark,
        shifts=shift or ["gaussian_noise"],
        severities=severity,
        stream=stream,
        delta=delta,
        options={name: parse.option_combinations(name, option or []) for name in names},
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
