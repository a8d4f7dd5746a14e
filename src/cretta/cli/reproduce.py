"""`cretta reproduce`: the paper's tables and figures, measured here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cretta.cli import parse
from cretta.cli.console import app, check_folder, console, count
from cretta.cli.options import (
    DEFAULT_STORE,
    DeviceOption,
    FigureFormatsOption,
    RootOption,
    StoreOption,
    TableFormatsOption,
)
from cretta.errors import OptionError
from cretta.options import unknown

if TYPE_CHECKING:
    from rich.table import Table as Grid

    from cretta import paper
    from cretta.bench import Run
    from cretta.report.content import Chart, Table
    from cretta.training import Progress


@app.command(resumable=True)
def reproduce(
    item: Annotated[
        list[str] | None, typer.Argument(help="Items of the paper, as --list names them.", show_default="all")
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke (minutes), quick (hours) or full (the paper's).")] = "smoke",
    listing: Annotated[bool, typer.Option("--list", help="Name every item and leave.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would run and how long it takes, and leave.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A network of your own for a family: cifar100=weights.safetensors, imagenet=my_module:make; pacs "
            "takes {source} for the source domain. Several times."
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help="Folder of trained networks, such as pacs-photo.safetensors.", show_default="<root>/models"),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    output: Annotated[
        Path | None, typer.Option(help="Where tables and figures go.", show_default="<store>/paper-<scale>")
    ] = None,
    root: RootOption = None,
    table: TableFormatsOption = None,
    figure: FigureFormatsOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Run any table or figure of the paper again, and see its numbers beside those measured here.

    Items share runs, and the store keeps them: a run is computed once, whatever asks for it, and whatever was cut off
    goes on where it was. What needs data or weights that are not there says how to get them, and the rest is done.

        # everything at the scale of a smoke test: shows that it works and no more
        cretta reproduce

        # what two items would take at a scale of hours
        cretta reproduce main cost --scale quick --plan
    """
    from cretta import paper
    from cretta.bench import RunContext, Store
    from cretta.bench.estimate import estimate
    from cretta.cli.grids import duration, execute
    from cretta.report.charts import FORMATS as FIGURES
    from cretta.report.content import Chart, Table
    from cretta.report.page import write_page
    from cretta.report.tables import FORMATS

    if listing:
        console.print(_listed())
        return
    if output is not None:
        check_folder(output, "--output")
    chosen = [paper.get(name) for name in item] if item else list(paper.items().values())
    formats, figures = tuple(table or FORMATS), tuple(figure or FIGURES)
    for kind, asked, known in (("--table", formats, tuple(FORMATS)), ("--figure", figures, FIGURES)):
        for each in asked:
            if each not in known:
                raise unknown(f"{kind} format", each, known)
    kept = Store(store)
    sized = paper.scale(scale).resolve(store, root, models).with_models(_models(model or []))
    context = RunContext(root, parse.device(device))
    plans = {each.name: each.plan(sized) for each in chosen}
    runs = list(dict.fromkeys(run for planned in plans.values() for run in planned))
    console.print(f"Scale {sized.name}: {sized.about}")
    if not plan:
        _prepare(sized, runs, root)
    lacking = paper.missing(runs, sized, context)
    for reason in dict.fromkeys(lacking.values()):
        affected = [name for name, planned in plans.items() if any(lacking.get(run) == reason for run in planned)]
        console.print(f"Left out, in {', '.join(affected)}: {reason}", soft_wrap=True)
    due = [run for run in runs if run not in lacking]
    if plan:
        console.print(_planned(plans, lacking))
        seconds = sum(estimate(due, kept, context).values())
        console.print(f"{count(len(due), 'run')}, each once: about {duration(seconds)} here.")
        return
    begun = time.monotonic()
    results = execute(due, kept, context)
    drawn = [shown for one in chosen for shown in one.show(results, sized, lacking)]
    found = [paper.measured(shown) for shown in drawn]
    content = [shown for shown in found if shown is not None]
    omitted = "; ".join(shown.title for shown, left in zip(drawn, found, strict=True) if left is None)
    if omitted:
        omitted = f"{paper.OMITTED}: {omitted}."
        console.print(omitted, highlight=False, soft_wrap=True)
    if not content:
        return
    folder = output or store / f"paper-{sized.name}"
    folder.mkdir(parents=True, exist_ok=True)
    for shown in content:
        _write(shown, folder, formats, figures)
    page = folder / f"{'report' if not item else '-'.join(item)}.html"
    write_page(
        list(results.values()),
        page,
        tables=[each for each in content if isinstance(each, Table)],
        charts=[each for each in content if isinstance(each, Chart)],
        notes=[sized.about, *([omitted] if omitted else []), *dict.fromkeys(lacking.values())],
        title=f"The paper's tables and figures, scale {sized.name}",
    )
    console.print(
        f"{count(len(chosen), 'item')} from {count(len(results), 'run')} in {duration(time.monotonic() - begun)}: "
        f"{folder}\nAll on one page: {page}",
        soft_wrap=True,
    )


def _write(shown: Table | Chart, folder: Path, formats: tuple[str, ...], figures: tuple[str, ...]) -> None:
    from cretta.report.charts import write_chart
    from cretta.report.content import Table
    from cretta.report.tables import write_table
    from cretta.report.terminal import terminal

    if isinstance(shown, Table):
        console.print(terminal(shown, console.width))
        for format in formats:
            write_table(shown, folder, format)
        return
    for format in figures:
        write_chart(shown, folder / f"{shown.name}.{format}")
    console.print(f"{shown.title}: {folder / shown.name}.{figures[0]}", soft_wrap=True)


def _prepare(sized: paper.Scale, runs: list[Run], root: Path | None) -> None:
    from cretta import paper
    from cretta.cli.progress import share_bar

    with share_bar() as progress:
        tasks = {}

        def hear(name: str, news: Progress) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(f"training a small network: {name}", total=1.0)
            progress.update(tasks[name], completed=news.share)

        paper.prepare(sized, runs, root, hear)


def _models(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        family, equals, spec = pair.partition("=")
        if not equals or not spec:
            raise OptionError(f"--model {pair}: give family=model, such as cifar100=weights.safetensors.")
        found[family] = spec
    return found


def _listed() -> Grid:
    from rich.table import Table as Grid

    from cretta import paper

    grid = Grid(box=None, pad_edge=False)
    for title in ("item", "in the paper", "what it shows"):
        grid.add_column(title, style="bold" if title == "item" else "")
    for each in paper.items().values():
        grid.add_row(each.name, each.where, each.title)
    return grid


def _planned(plans: dict[str, tuple[Run, ...]], lacking: dict[Run, str]) -> Grid:
    from rich.table import Table as Grid

    grid = Grid(box=None, pad_edge=False)
    grid.add_column("item", style="bold")
    grid.add_column("runs", justify="right")
    grid.add_column("left out", justify="right")
    for name, planned in plans.items():
        grid.add_row(name, str(len(planned)), str(sum(run in lacking for run in planned)))
    return grid
