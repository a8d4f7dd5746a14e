"""`cretta run`: one run, or a product of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from cretta import methods
from cretta.bench import Buffer, Result, Run, Store, Workshop
from cretta.bench.benchmarks import Benchmark, is_folder
from cretta.cli import given
from cretta.cli.console import app, console, plain_errors, stopping
from cretta.cli.datasets import note_order
from cretta.cli.grids import STORE, execute
from cretta.data.corruptions import SEVERITIES
from cretta.data.domains import CLEAN
from cretta.data.folder import class_file
from cretta.errors import OptionError
from cretta.report.content import Column, Row, Table
from cretta.report.groups import MEASURES, Group
from cretta.report.tables import terminal

RUNS, METHODS, PLACE = "What runs", "How", "Where"
SHOWN = ("accuracy", "ece", "nll", "energy", "gflops", "speed")


@app.command()
def run(
    data: Annotated[
        str,
        typer.Option(
            help="embedded, cifar10, cifar100, tiny-imagenet, imagenet, pacs:photo (its source), or a folder that "
            "holds train/CLASS/ and test/CLASS/.",
            rich_help_panel=RUNS,
        ),
    ] = "embedded",
    model: Annotated[
        str,
        typer.Option(help="A shipped name, a checkpoint of `cretta train`, or module:callable.", rich_help_panel=RUNS),
    ] = "wrn-40-2-cifar10",
    shift: Annotated[
        list[str] | None,
        typer.Option(
            help="fog, fog/5, clean, a domain of PACS, or all; may be given several times.",
            show_default="gaussian_noise",
            rich_help_panel=RUNS,
        ),
    ] = None,
    severity: Annotated[
        list[int] | None,
        typer.Option(help="Of shifts given without one; several times.", show_default="5", rich_help_panel=RUNS),
    ] = None,
    stream: Annotated[
        str,
        typer.Option(help="iid, ordered, dirichlet, continual, gradual or mixed.", rich_help_panel=RUNS),
    ] = "iid",
    delta: Annotated[
        float | None, typer.Option(help="Of the dirichlet stream: 10, 1, 0.1, 0.01.", rich_help_panel=RUNS)
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="So many of each shift.", show_default="all", rich_help_panel=RUNS)
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Scale images to this side, if they come as files.", rich_help_panel=RUNS)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images a batch.", show_default="the benchmark's", rich_help_panel=RUNS)
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="May be given several times; all for all.", show_default="cretta", rich_help_panel=METHODS),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Named options, or several: cifar10+fast.",
            show_default="the method's for the benchmark",
            rich_help_panel=METHODS,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the method, lr=0.001; values with | between are tried one by one, beta=0.5|1|2.",
            rich_help_panel=METHODS,
        ),
    ] = None,
    buffer: Annotated[
        str, typer.Option(help="Source images: a share, 0.1, or a number, 1000.", rich_help_panel=METHODS)
    ] = "0.1",
    select: Annotated[str, typer.Option(help="random, confident or uncertain.", rich_help_panel=METHODS)] = "random",
    clean_after: Annotated[
        int, typer.Option(help="Clean images to predict afterwards, for what was forgotten.", rich_help_panel=METHODS)
    ] = 0,
    seed: Annotated[
        list[int] | None, typer.Option(help="May be given several times.", show_default="0", rich_help_panel=METHODS)
    ] = None,
    store: Annotated[Path, typer.Option(help="Where results are kept.", rich_help_panel=PLACE)] = STORE,
    root: Annotated[
        Path | None,
        typer.Option(help="Where datasets lie.", show_default="as for cretta data", rich_help_panel=PLACE),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.", rich_help_panel=PLACE)] = "auto",
) -> None:
    r"""Compare methods on streams that hurt; every result is kept, and none is computed twice.

    What may be given several times is combined: two methods, three shifts and two seeds are twelve runs.
    `cretta report` makes a page of all results.

        cretta run --method source --method tent --method cretta \
            --shift fog --shift jpeg_compression --images 1000
        cretta run --stream dirichlet --delta 0.1 --method all --images 1000
        cretta run --stream gradual --shift fog --method tent --images 500
        cretta run --option 'beta=0.5|1|2' --seed 0 --seed 1 --seed 2
    """
    with plain_errors(), stopping("finished runs are kept"):
        workshop = Workshop(root, given.device(device))
        benchmark = workshop.benchmark(data, size)
        base = Run(
            data=data,
            domains=(CLEAN,),
            model=model,
            images=images,
            size=size,
            batch_size=benchmark.batch_size if batch_size is None else batch_size,
            buffer=Buffer(size=given.amount(buffer, "--buffer"), select=select),
            clean_after=clean_after,
        )
        runs = [
            dataclasses.replace(base, **place, **how, seed=each)
            for place in _streams(
                stream, delta, _shifts(shift or ["gaussian_noise"], severity or [5], benchmark), severity
            )
            for how in _methods(method or ["cretta"], preset, option or [], benchmark)
            for each in seed or [0]
        ]
        if is_folder(data) and not class_file(Path(data) / "train"):
            folders = benchmark.training().classes
            if folders != workshop.classes(model)[: len(folders)]:
                note_order(Path(data), folders)
        results = execute(runs, Store(store), workshop)
        console.print(terminal(summary(runs, results), console.width))


def _shifts(given_shifts: list[str], severities: list[int], benchmark: Benchmark) -> list[str]:
    """Domains, with a severity where they need one."""
    found: list[str] = []
    for shift in given_shifts:
        for name in benchmark.domains if shift == "all" else (shift,):
            plain = name == CLEAN or "/" in name or benchmark.corruptions == "none"
            found += [name] if plain else [f"{name}/{severity}" for severity in severities]
    return list(dict.fromkeys(found))


def _streams(stream: str, delta: float | None, domains: list[str], severity: list[int] | None) -> list[dict[str, Any]]:
    """The domains and the stream of each run."""
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
    """Every method with every combination of the values of its options."""
    found = []
    for name in methods.names() if names == ["all"] else names:
        known = methods.get(name).presets
        chosen = preset if preset is not None else benchmark.preset if benchmark.preset in known else None
        combinations: list[list[str]] = [[]]
        for pair in pairs:
            key, equals, values = pair.partition("=")
            combinations = [[*each, f"{key}{equals}{value}"] for each in combinations for value in values.split("|")]
        found += [
            {"method": name, "preset": chosen, "options": tuple(given.options(name, each).items())}
            for each in combinations
        ]
    return found


def summary(runs: list[Run], results: dict[Run, Result]) -> Table:
    """Return a row for each method and stream, over seeds."""
    shown = [measure for measure in MEASURES if measure.name in SHOWN]
    columns = tuple(Column(each.title, better=each.better, digits=each.digits) for each in shown)
    groups: dict[Run, list[Result]] = {}
    for each in runs:
        groups.setdefault(dataclasses.replace(each, seed=0), []).append(results[each])
    rows = []
    for key, found in groups.items():
        label = " ".join([key.method, *(f"{name}={value}" for name, value in key.options)])
        where = _where(key)
        rows.append(Row(label, Group(tuple(found), label, where, "").cells(shown), where))
    return Table("run", "Over the whole stream", "method", columns, tuple(rows), best_of="group")


def _where(run: Run) -> str:
    domains = run.domains[0] if len(run.domains) == 1 else f"{len(run.domains)} domains from {run.domains[0]} on"
    if run.stream == "gradual":
        domains = run.domains[1].partition("/")[0]
    told = run.stream if run.delta is None else f"{run.stream} δ={run.delta:g}"
    return f"{run.data} · {domains} · {told}"
