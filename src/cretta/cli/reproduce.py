"""`cretta reproduce`: the paper's tables and figures, measured here."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cretta.cli import parse
from cretta.cli.app import app
from cretta.cli.console import check_folder, console, count, duration, print_results, print_table, say
from cretta.cli.options import ADDRESS, DEVICE, ENGINE, ROOT, THREADS, WORKERS, argument, flag, option
from cretta.errors import OptionError

if TYPE_CHECKING:
    from cretta.bench import Result, Run, RunContext, Store
    from cretta.report.content import Chart, Table

COMMITTED = Path("benchmarks/results/paper")
"""Results that are part of the source code, seen from its folder."""


@app.command(resumable=True)
def reproduce(
    item: list[str] | None = argument(None, "Items of the paper, as --list names them.", shown="all"),
    scale: str | None = option(
        None,
        "smoke (minutes), quick (hours), day (the main tables on CIFAR) or full (the paper's).",
        shown="smoke; with --from-results, for each item what has most results",
    ),
    listing: bool = flag("--list", "List all items and exit."),
    estimated: bool = flag("--estimate", "Show what would run, in which order and how long it takes, and exit."),
    from_results: bool = flag("--from-results", "Compute nothing: show what a folder of results has, without data."),
    export: Path | None = option(
        None,
        "Also write the runs of these items into this folder, as one Parquet file and as CSV; runs that it has, with "
        "the same data and weights, are not computed again.",
        shown="none",
    ),
    method: list[str] | None = option(
        None, "Compute the runs of this method only, and show what is stored of others; can be repeated.", shown="all"
    ),
    model: list[str] | None = option(
        None,
        "Your own network for a family: cifar100=weights.safetensors, imagenet=my_module:make; for pacs, {source} "
        "stands for the source domain. Can be repeated.",
    ),
    models: Path | None = option(
        None, "Folder of trained networks, such as pacs-photo.safetensors.", shown="<root>/models"
    ),
    store: Path | None = option(
        None, "Folder in which results are stored.", shown=f"results; with --from-results, {COMMITTED}"
    ),
    output: Path | None = option(None, "Folder for tables and figures.", shown="<store>/paper-<scale>"),
    root: Path | None = ROOT,
    device: str = DEVICE,
    engine: str = ENGINE,
    workers: int | None = WORKERS,
    threads: int | None = THREADS,
    address: str | None = ADDRESS,
) -> None:
    """Run any table or figure of the paper again, and see its numbers beside those measured here.

    **Resumable**: run the same command again. Items share runs, and a stored run is never computed twice. Severity 5
    comes before milder ones, one seed before further seeds; dataset by dataset, Source, BN Adapt, TENT and CreTTA come
    first. Items that need data or weights that are not there are left out, with the commands that get them.

        # everything at the scale of a smoke test, which only shows that it works
        cretta reproduce

        # what two items would take at a scale of hours
        cretta reproduce main cost --scale quick --estimate

        # the same on all nodes of a Ray cluster
        cretta reproduce main cost --scale quick --engine ray --address auto

        # two methods only: TEA, for one, takes most of the hours
        cretta reproduce continual --scale quick --method tent --method cretta

        # continue from results that other machines computed, and add to them
        cretta reproduce main --scale day --export benchmarks/results/paper

        # a table from committed results, without computing
        cretta reproduce main --from-results
    """
    from cretta import methods, paper
    from cretta.bench import RunContext, Store
    from cretta.bench import engine as make_engine
    from cretta.cli.execute import execute

    if listing:
        rows = [(entry.name, entry.where, entry.title) for entry in paper.items().values()]
        print_table(rows, ("item", "in the paper", "what it shows"))
        return
    if from_results and estimated:
        raise OptionError("--estimate with --from-results: nothing is computed; leave one of them out.")
    if from_results and method:
        raise OptionError("--method with --from-results: nothing is computed; leave one of them out.")
    names = set(method or ())
    for name in names:
        methods.get(name)  # raises for names that do not exist
    workers_of = make_engine(engine, workers=workers, threads=threads, address=address)
    for path, name in ((output, "--output"), (export, "--export")):
        if path is not None:
            check_folder(path, name)
    start = time.monotonic()
    chosen = {name: paper.get(name) for name in item or paper.items()}
    folder = store or (COMMITTED if from_results else Path("results"))
    own = _models(model or [])
    requested = paper.scale(scale or "smoke").resolve(root, models).with_models(own)
    results: dict[Run, Result] = {}
    missing: dict[Run, str] = {}
    scales = dict.fromkeys(chosen, requested)
    if from_results:
        results = paper.read_results(folder)
        candidates = [paper.scale(name).with_models(own) for name in ([scale] if scale else paper.SCALES)]
        best = {name: paper.best_scale(entry, results, candidates) for name, entry in chosen.items()}
        scales = {name: sized for name, sized in best.items() if sized}
        if absent := [name for name in chosen if name not in scales]:
            say(f"No results yet in {folder}: {', '.join(absent)}")
    plans = {name: chosen[name].plan(sized) for name, sized in scales.items()}
    runs = list(dict.fromkeys(run for planned in plans.values() for run in planned))
    options = [word for pair in model or [] for word in ("--model", pair)]
    commands = {
        run: shlex.join(["cretta", "reproduce", name, "--scale", scales[name].name, *options])
        for name, planned in reversed(plans.items())
        for run in planned
    }
    abouts = {sized.name: sized.about for sized in scales.values()}
    for name, about in abouts.items():
        console.print(f"Scale {name}: {about}")
    if not from_results:
        context, results_store = RunContext(root, parse.device(device)), Store(folder)
        missing = paper.missing(runs, requested, context)
        for reason in dict.fromkeys(missing.values()):
            affected = [name for name, planned in plans.items() if any(missing.get(run) == reason for run in planned)]
            say(f"Left out, in {', '.join(affected)}: {reason}")
        possible = [run for run in runs if run not in missing]
        if export is not None:
            copied, outdated = paper.copy_results(export, possible, results_store, context)
            if copied:
                say(f"Taken from {export}: {count(copied, 'run')}")
            if outdated:
                say(f"In {export} with other data, weights or version, computed again: {count(outdated, 'run')}")
        if names:
            chosen_runs = [run for run in possible if run.method in names or context.key(run) in results_store]
            if len(chosen_runs) < len(possible):
                say(f"Left out, of other methods than --method: {count(len(possible) - len(chosen_runs), 'run')}")
            possible = chosen_runs
        stages = paper.stages(possible)
        if estimated:
            _print_estimate(stages, results_store, context, workers_of.workers or 1)
            return
        for title, due in stages.items():
            console.print(f"{title}:")
            results |= execute(due, results_store, context, workers_of)
            if export is not None:  # after each stage: what is finished then outlasts this machine
                paper.write_summary({run: results[run] for run in due}, commands, export)
    done = {run: results[run] for run in runs if run in results}
    drawn = [part for name, sized in scales.items() for part in chosen[name].show(done, sized, missing)]
    target = output or (folder if not from_results else Path()) / f"paper-{'-'.join(abouts)}"
    notes = [*abouts.values(), *dict.fromkeys(missing.values())]
    if _write(drawn, done, target, "-".join(item or ["report"]), notes):
        took = duration(time.monotonic() - start)
        say(f"{count(len(plans), 'item')} from {count(len(done), 'run')} in {took}: {target}")
    if export is not None and done:
        size = paper.write_summary(done, commands, export)
        say(f"Summary, now {size / 1e3:.0f} kB: {export}")


def _print_estimate(stages: dict[str, list[Run]], store: Store, context: RunContext, workers: int) -> None:
    from cretta.bench.estimate import estimate

    seconds = estimate([run for due in stages.values() for run in due], store, context)
    rows = [
        (title, len(due), sum(not seconds[run] for run in due), _hours(sum(seconds[run] for run in due) / workers))
        for title, due in stages.items()
    ]
    print_table(rows, ("in this order", "runs", "stored", "takes about"))
    console.print(f"{count(len(seconds), 'run')}, each once: about {_hours(sum(seconds.values()) / workers)} here.")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else duration(seconds)


def _write(drawn: list[Table | Chart], results: dict[Run, Result], folder: Path, name: str, notes: list[str]) -> bool:
    """Print tables, write all files, and return whether there is anything measured."""
    from cretta import paper
    from cretta.report.content import Chart, Table
    from cretta.report.files import write_files
    from cretta.report.page import write_page

    measured = [paper.measured(part) for part in drawn]
    content = [part for part in measured if part is not None]
    if absent := [part for part, shown in zip(drawn, measured, strict=True) if shown is None]:
        omitted = [f"{paper.OMITTED}: {'; '.join(part.title for part in absent)}."]
        omitted += [f"{part.title}. {note}" for part in absent for note in paper.incomplete(part)]
        notes = [notes[0], *omitted, *notes[1:]]
        for note in omitted:
            console.print(note)
    if not content:
        return False
    for part in content:
        (first, *_) = write_files([part], folder)
        if isinstance(part, Table):
            print_results(part)
        else:
            say(f"{part.title}: {first}")
    page = folder / f"{name}.html"
    write_page(
        list(results.values()),
        page,
        tables=[part for part in content if isinstance(part, Table)],
        charts=[part for part in content if isinstance(part, Chart)],
        notes=notes,
        title="The paper's tables and figures",
    )
    say(f"All on one page: {page}")
    return True


def _models(pairs: list[str]) -> dict[str, str]:
    models = {}
    for pair in pairs:
        family, equals, spec = pair.partition("=")
        if not equals or not spec:
            raise OptionError(f"--model {pair}: expected family=model, such as cifar100=weights.safetensors.")
        if spec.endswith(".safetensors") and "{source}" not in spec and not Path(spec).is_file():
            raise OptionError(f"--model {pair}: {spec} does not exist; expected a file of weights.")
        models[family] = spec
    return models
