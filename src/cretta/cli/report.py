"""`cretta report`: all results on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cretta.cli.app import app
from cretta.cli.console import check_folder, check_output, count, say
from cretta.cli.options import STORE, option
from cretta.errors import StateError

if TYPE_CHECKING:
    from rich.progress import Progress

    from cretta.bench import Result


@app.command()
def report(
    store: Path = STORE,
    output: Path = option(Path("cretta-report.html"), "File for the page (.html)."),
    title: str = option("cretta report", "Title of the page."),
    files: Path | None = option(None, "Also write tables and figures as files into this folder.", shown="none"),
) -> None:
    """Put all results on one page that opens in any browser, without a network.

    Tables that sort, curves that zoom, reliability diagrams, settings and versions; all numbers are mean and deviation
    over seeds.

        # some results, then a page of them
        cretta run --method source --method cretta --shift fog --images 500
        cretta report

        # tables (Markdown, CSV) and figures (PNG, SVG, PDF) as files as well
        cretta report --files paper
    """
    from cretta.cli.progress import progress_bar
    from cretta.report.files import write_files
    from cretta.report.groups import grouped
    from cretta.report.page import write_page
    from cretta.report.summary import summary_charts, summary_tables

    check_output(output, (".html", ".htm"))
    if files is not None:
        check_folder(files, "--files")
    with progress_bar("runs") as progress:
        results = _read(store, progress)
    size = write_page(results, output, title=title)
    if files is not None:
        groups = grouped(results)
        paths = write_files([*summary_tables(groups), *summary_charts(groups)], files)
        say(f"Tables and figures: {count(len(paths), 'file')} in {files}")
    shown = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    say(f"Page of {count(len(results), 'run')}, {shown}: {output}")


def _read(folder: Path, progress: Progress) -> list[Result]:
    from cretta.bench import Store

    # A store makes its folder, and this command must not.
    keys = Store(folder).keys() if folder.is_dir() else []
    if not keys:
        raise StateError(
            f"no results in {folder}: make some by `cretta run` or `cretta reproduce`, or give another folder with "
            "--store."
        )
    store = Store(folder)
    results = [store.get(key) for key in progress.track(keys, description="reading results")]
    for path in store.damaged:
        say(f"A damaged result is left out: {path}")
    if not any(results):
        raise StateError(f"all results in {folder} are damaged: run them again.")
    return [result for result in results if result is not None]
