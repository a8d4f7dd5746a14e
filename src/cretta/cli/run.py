"""`cretta run`: compare methods on streams of shifted images."""

from __future__ import annotations

from pathlib import Path

from cretta.cli import parse
from cretta.cli.app import app
from cretta.cli.console import print_results
from cretta.cli.options import (
    ADAPTATION,
    ADDRESS,
    DEVICE,
    ENGINE,
    METHODS,
    MODEL,
    ROOT,
    STORE,
    STREAM,
    THREADS,
    WORKERS,
    option,
)


@app.command(resumable=True)
def run(
    data: str = option(
        "embedded",
        "embedded, cifar10, cifar100, tiny-imagenet, imagenet, pacs:photo (its source), or a folder that holds "
        "train/CLASS/ and test/CLASS/.",
        STREAM,
    ),
    model: str = option(
        "wrn-40-2-cifar10", "A shipped name, a checkpoint of `cretta train`, or module:callable.", MODEL
    ),
    shift: list[str] | None = option(
        None, "fog, fog/5, clean, a domain of PACS, or all; can be repeated.", STREAM, shown="gaussian_noise"
    ),
    severity: list[int] | None = option(
        None, "Severity of shifts that are given without one; can be repeated.", STREAM, shown="5"
    ),
    stream: str = option("iid", "iid, ordered, dirichlet, continual, gradual or mixed.", STREAM),
    delta: float | None = option(None, "Of the dirichlet stream: 10, 1, 0.1, 0.01; smaller is less i.i.d.", STREAM),
    images: int | None = option(None, "Images of each shift.", STREAM, shown="all"),
    size: int | None = option(None, "Scale image files to this side.", STREAM, min=1),
    batch_size: int | None = option(None, "Images per batch.", STREAM, shown="the benchmark's"),
    method: list[str] | None = option(None, f"{METHODS}; or all. Can be repeated.", ADAPTATION, shown="cretta"),
    preset: str | None = option(
        None, "Named options, or several: cifar10+fast.", ADAPTATION, shown="the method's for the benchmark"
    ),
    option: list[str] | None = option(
        None, "An option of the method, lr=0.001, or values to compare, beta=0.5|1|2; can be repeated.", ADAPTATION
    ),
    buffer: str = option("0.1", "Source images: a share, 0.1, or a number, 1000.", ADAPTATION),
    select: str = option("random", "How source images are selected: random, confident or uncertain.", ADAPTATION),
    seed: list[int] | None = option(None, "Seed of all random choices; can be repeated.", ADAPTATION, shown="0"),
    store: Path = STORE,
    root: Path | None = ROOT,
    device: str = DEVICE,
    engine: str = ENGINE,
    workers: int | None = WORKERS,
    threads: int | None = THREADS,
    address: str | None = ADDRESS,
) -> None:
    r"""Compare methods on streams of shifted images; results are stored, and none is computed twice.

    Options that are repeated are combined: two methods, three shifts and two seeds are twelve runs. **Resumable**: run
    the same command again. `cretta report` makes a page of all results.

        cretta run --method source --method tent --method cretta \
            --shift fog --shift jpeg_compression --images 1000
        cretta run --stream dirichlet --delta 0.1 --method all --images 1000
        cretta run --stream gradual --shift fog --method tent --images 500
        cretta run --option 'beta=0.5|1|2' --seed 0 --seed 1 --seed 2
        cretta run --method all --shift all --engine local --workers 8
    """
    from cretta import methods
    from cretta.bench import Buffer, Domain, Run, RunContext, Store, expand
    from cretta.bench import engine as make_engine
    from cretta.bench.benchmarks import is_folder
    from cretta.cli.datasets import note_order
    from cretta.cli.execute import execute
    from cretta.data.domains import CLEAN
    from cretta.data.folder import class_file
    from cretta.report.groups import grouped
    from cretta.report.summary import summary_tables

    chosen = make_engine(engine, workers=workers, threads=threads, address=address)
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
    for planned in runs:
        context.check_counts(planned)
    if is_folder(data) and not class_file(Path(data) / "train"):
        folders = benchmark.training().classes
        if folders != context.classes(model)[: len(folders)]:
            note_order(Path(data), folders)
    results = execute(runs, Store(store), context, chosen)
    for table in summary_tables(grouped(results.values())):
        print_results(table)
