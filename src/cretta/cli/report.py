"""`cretta report`: all results on one page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cretta.cli.console import app, check_folder, check_output, console, count
from cretta.cli.options import DEFAULT_STORE, FigureFormatsOption, RootOption, StoreOption, TableFormatsOption
from cretta.errors import CrettaError, OptionError, StateError
from cretta.options import unknown

if TYPE_CHECKING:
    from rich.progress import Progress

    from cretta.bench import Domain, Result, RunContext
    from cretta.data import ImageDataset
    from cretta.data.dataset import Pixels

IMAGES = 6
"""Examples of each shift."""
SIDE = 96
"""Pixels that an example has at most."""
SHIFTS = 24
"""Shifts of a dataset that are shown at most."""


@app.command()
def report(
    store: StoreOption = DEFAULT_STORE,
    output: Annotated[Path, typer.Option(help="Where the page goes (.html).")] = Path("cretta-report.html"),
    title: Annotated[str, typer.Option(help="Of the page.")] = "cretta report",
    files: Annotated[
        Path | None, typer.Option(help="Also write tables and figures as files into this folder.", show_default="none")
    ] = None,
    table: TableFormatsOption = None,
    figure: FigureFormatsOption = None,
    examples: Annotated[bool, typer.Option(help="Show images of each shift, if the data are there.")] = True,
    root: RootOption = None,
) -> None:
    """Put all results on one page that opens in any browser, without a network.

    Tables that sort, curves that zoom, reliability diagrams, images of each shift, settings and versions: mean and
    deviation over seeds throughout.

        # some results, then a page of them
        cretta run --method source --method cretta --shift fog --images 500
        cretta report

        # tables and figures for a paper as well
        cretta report --files paper --table latex --figure pdf
    """
    from cretta.bench import RunContext
    from cretta.cli.progress import progress_bar
    from cretta.report.charts import FORMATS as FIGURES
    from cretta.report.charts import write_chart
    from cretta.report.groups import grouped
    from cretta.report.page import write_page
    from cretta.report.summary import summary_charts, summary_tables
    from cretta.report.tables import FORMATS as TABLES
    from cretta.report.tables import write_table

    check_output(output, (".html", ".htm"))
    if files is not None:
        check_folder(files, "--files")
    table_formats, figure_formats = table or list(TABLES), figure or list(FIGURES)
    for option, asked, known in (("--table", table_formats, TABLES), ("--figure", figure_formats, FIGURES)):
        for each in asked:
            if each not in known:
                raise unknown(f"{option} format", each, known)
    if files is None and (table or figure):
        raise OptionError("--table and --figure are formats of the files that --files writes: give its folder too.")
    with progress_bar("runs") as progress:
        results = _read(store, progress)
        shown, notes = _examples(results, RunContext(root), progress) if examples else ({}, [])
    size = write_page(results, output, examples=shown, notes=notes, title=title)
    for note in notes:
        console.print(note, soft_wrap=True)
    if files is not None:
        files.mkdir(parents=True, exist_ok=True)
        groups = grouped(results)
        written = [write_table(each, files, form) for each in summary_tables(groups) for form in table_formats]
        for chart in summary_charts(groups):
            for form in figure_formats:
                write_chart(chart, files / f"{chart.name}.{form}")
                written.append(files / f"{chart.name}.{form}")
        console.print(f"Tables and figures: {count(len(written), 'file')} in {files}", soft_wrap=True)
    told = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    console.print(f"Page of {count(len(results), 'run')}, {told}: {output}", soft_wrap=True)


def _read(folder: Path, progress: Progress) -> list[Result]:
    from cretta.bench import Store

    # A store makes its folder: one that is not there must stay so.
    keys = Store(folder).keys() if folder.is_dir() else []
    if not keys:
        raise StateError(
            f"no results in {folder}: `cretta run` or `cretta reproduce` makes some there, "
            "or name another folder with --store."
        )
    kept = Store(folder)
    found = [kept.get(key) for key in progress.track(keys, description="reading results")]
    for path in kept.set_aside:
        console.print(f"A damaged result was set aside: {path}", soft_wrap=True)
    results = [result for result in found if result is not None]
    if not results:
        raise StateError(f"all results in {folder} are damaged: run them again.")
    return results


def _examples(
    results: Sequence[Result], context: RunContext, progress: Progress
) -> tuple[dict[str, Pixels], list[str]]:
    """The same few images under each shift, by its name, and what is to be said of them."""
    sources = list(dict.fromkeys((str(each.run.data), each.run.size) for each in results))
    wanted: list[tuple[str, int | None, Domain]] = []
    notes = []
    for data, size in sources:
        domains = _strongest(domain for each in results if each.run.data == data for domain in each.run.domains)
        wanted += [(data, size, domain) for domain in domains[:SHIFTS]]
        if len(domains) > SHIFTS:
            notes.append(f"Example images are of {SHIFTS} of the {len(domains)} shifts of {data}.")
    shown: dict[str, Pixels] = {}
    for data, size, domain in progress.track(wanted, description="making example images"):
        try:
            strip = _strip(context.benchmark(data, size).images(domain))
        except (CrettaError, OSError) as wrong:
            notes.append(f"No example images of {data}: {wrong}")
            continue
        shown[f"{data}, {domain}" if len(sources) > 1 else str(domain)] = strip
    return shown, list(dict.fromkeys(notes))


def _strongest(domains: Iterable[Domain]) -> list[Domain]:
    """The clean images first, then each corruption at the highest of its severities."""
    from cretta.data.domains import CLEAN, Domain

    strongest = {CLEAN: Domain(CLEAN)}
    for domain in sorted(set(domains), key=str):
        strongest[domain.name] = domain
    return list(strongest.values())


def _strip(dataset: ImageDataset) -> Pixels:
    """Images from all over the dataset, side by side."""
    import numpy as np
    from PIL import Image, ImageOps

    count = min(IMAGES, len(dataset))
    images = [Image.fromarray(dataset[place * len(dataset) // count][0]) for place in range(count)]
    side = min(SIDE, max(max(image.size) for image in images))
    tiles = [np.asarray(ImageOps.fit(image, (side, side))) for image in images]
    gap = np.full((side, max(1, side // 24), 3), 255, dtype=np.uint8)
    spaced = [part for tile in tiles for part in (tile, gap)][:-1]
    return np.concatenate(spaced, axis=1)
