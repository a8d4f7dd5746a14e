"""`cretta reproduce`: the paper's tables and figures, measured here."""

from __future__ import annotations

import time
from pathlib import Path

from cretta.cli import parse
from cretta.cli.app import app
from cretta.cli.console import check_folder, console, count, duration, print_table, say
from cretta.cli.options import ADDRESS, DEVICE, ENGINE, ROOT, STORE, THREADS, WORKERS, argument, flag, option
from cretta.errors import OptionError


@app.command(resumable=True)
def reproduce(
    item: list[str] | None = argument(None, "Items of the paper, as --list names them.", shown="all"),
    scale: str = option("smoke", "smoke (minutes), quick (hours) or full (the paper's)."),
    listing: bool = flag("--list", "List all items and exit."),
    plan: bool = flag("--plan", "Show what would run and how long it takes, and exit."),
    model: list[str] | None = option(
        None,
        "Your own network for a family: cifar100=weights.safetensors, imagenet=my_module:make; for pacs, {source} "
        "stands for the source domain. Can be repeated.",
    ),
    models: Path | None = option(
        None, "Folder of trained networks, such as pacs-photo.safetensors.", shown="<root>/models"
    ),
    store: Path = STORE,
    output: Path | None = option(None, "Folder for tables and figures.", shown="<store>/paper-<scale>"),
    root: Path | None = ROOT,
    device: str = DEVICE,
    engine: str = ENGINE,
    workers: int | None = WORKERS,
    threads: int | None = THREADS,
    address: str | None = ADDRESS,
) -> None:
    """Run any table or figure of the paper again, and see its numbers beside those measured here.

    **Resumable**: run the same command again. Items share runs, and a stored run is never computed twice. Items that
    need data or weights that are not there are left out, with the commands that get them.

        # everything at the scale of a smoke test, which only shows that it works
        cretta reproduce

        # what two items would take at a scale of hours
        cretta reproduce main cost --scale quick --plan

        # the same on all nodes of a Ray cluster
        cretta reproduce main cost --scale quick --engine ray --address auto
    """
    from cretta import paper
    from cretta.bench import RunContext, Store
    from cretta.bench import engine as make_engine
    from cretta.bench.estimate import estimate
    from cretta.cli.execute import execute
    from cretta.report.content import Chart, Table
    from cretta.report.files import write_files
    from cretta.report.page import write_page
    from cretta.report.terminal import terminal

    if listing:
        rows = [(entry.name, entry.where, entry.title) for entry in paper.items().values()]
        print_table(rows, ("item", "in the paper", "what it shows"))
        return
    workers_of = make_engine(engine, workers=workers, threads=threads, address=address)
    if output is not None:
        check_folder(output, "--output")
    chosen = [paper.get(name) for name in item] if item else list(paper.items().values())
    results_store = Store(store)
    sized = paper.scale(scale).resolve(root, models).with_models(_models(model or []))
    context = RunContext(root, parse.device(device))
    plans = {entry.name: entry.plan(sized) for entry in chosen}
    runs = list(dict.fromkeys(run for planned in plans.values() for run in planned))
    console.print(f"Scale {sized.name}: {sized.about}")
    missing = paper.missing(runs, sized, context)
    for reason in dict.fromkeys(missing.values()):
        affected = [name for name, planned in plans.items() if any(missing.get(run) == reason for run in planned)]
        say(f"Left out, in {', '.join(affected)}: {reason}")
    due = [run for run in runs if run not in missing]
    if plan:
        counts = [(name, len(planned), sum(run in missing for run in planned)) for name, planned in plans.items()]
        print_table(counts, ("item", "runs", "left out"))
        seconds = sum(estimate(due, results_store, context).values())
        console.print(f"{count(len(due), 'run')}, each once: about {duration(seconds)} here.")
        return
    start = time.monotonic()
    results = execute(due, results_store, context, workers_of)
    drawn = [part for entry in chosen for part in entry.show(results, sized, missing)]
    measured = [paper.measured(part) for part in drawn]
    content = [part for part in measured if part is not None]
    omitted = "; ".join(part.title for part, shown in zip(drawn, measured, strict=True) if shown is None)
    if omitted:
        omitted = f"{paper.OMITTED}: {omitted}."
        say(omitted)
    if not content:
        return
    folder = output or store / f"paper-{sized.name}"
    for part in content:
        (first, *_) = write_files([part], folder)
        if isinstance(part, Table):
            console.print(terminal(part, console.width))
        else:
            say(f"{part.title}: {first}")
    page = folder / f"{'report' if not item else '-'.join(item)}.html"
    write_page(
        list(results.values()),
        page,
        tables=[part for part in content if isinstance(part, Table)],
        charts=[part for part in content if isinstance(part, Chart)],
        notes=[sized.about, *([omitted] if omitted else []), *dict.fromkeys(missing.values())],
        title=f"The paper's tables and figures, scale {sized.name}",
    )
    say(
        f"{count(len(chosen), 'item')} from {count(len(results), 'run')} in {duration(time.monotonic() - start)}: "
        f"{folder}\nAll on one page: {page}"
    )


def _models(pairs: list[str]) -> dict[str, str]:
    models = {}
    for pair in pairs:
        family, equals, spec = pair.partition("=")
        if not equals or not spec:
            raise OptionError(f"--model {pair}: expected family=model, such as cifar100=weights.safetensors.")
        models[family] = spec
    return models
