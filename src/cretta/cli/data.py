"""`cretta data`: list, get and check datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.filesize import decimal

from cretta.cli.app import App, app
from cretta.cli.console import console, print_table, say
from cretta.cli.options import ROOT, argument
from cretta.errors import StateError

if TYPE_CHECKING:
    from cretta.data.releases import Release

data_app = App("List, get, make and check datasets.")
app.add_typer(data_app, name="data")


@data_app.command("list")
def list_datasets(root: Path | None = ROOT) -> None:
    """Show the datasets, their sizes, and which of them you have.

    All are below one folder, where `cretta data get` and `cretta data make` put them.

        cretta data list
        cretta data list --root /data    # another folder than the default
    """
    from cretta.data.registry import RELEASES
    from cretta.data.releases import data_root

    home = data_root(root)
    rows = []
    for record in RELEASES.values():
        path = record.find(home)
        here = "-" if path is None else "in part" if record.missing_archives(path) else path.relative_to(home)
        download = "by hand" if record.manual else decimal(record.download_size)
        rows.append((record.name, record.contents, download, here))
    say(f"Datasets in {home}")
    print_table(rows, ("name", "images", "download", "here"))
    console.print("\nGet one: cretta data get NAME. More about one: cretta data show NAME.")


@data_app.command()
def show(name: str = argument(..., "A dataset of `cretta data list`."), root: Path | None = ROOT) -> None:
    """Show the details of a dataset: where it comes from, its license, and how to read it.

    If you need an account to download it, the steps are shown.

        cretta data show imagenet
    """
    from cretta.data.registry import release
    from cretta.data.releases import data_root

    record = release(name)
    home = data_root(root)
    facts = (
        ("images", record.contents),
        ("page", record.page),
        ("license", record.license),
        *(("archive", f"{file.file}, {decimal(file.size)}, MD5 {file.md5}") for file in record.archives),
        ("unpacked", f"{home / record.folder}, about {decimal(record.unpacked_size)}"),
        ("here", str(record.find(home) or "no")),
        ("get", f"{record.get_command(root)}" + (f"  ({record.manual})" if record.manual else "")),
        ("read", f"from cretta.data import {record.example.split('(')[0]}, dataset_path"),
        ("", record.example.replace("path", f'dataset_path("{name}")', 1)),
    )
    print_table(facts)


@data_app.command(resumable=True)
def get(
    names: list[str] = argument(..., "Datasets of `cretta data list`.", name="NAME"),
    root: Path | None = ROOT,
    source: Path | None = typer.Option(
        None,
        "--from",
        help="Use these files: an archive, a folder that holds the archives, or the unpacked dataset.",
        show_default="download",
    ),
) -> None:
    """Download datasets, check them against the published MD5, and unpack them.

    Interrupted downloads are resumable: run the same command again. Datasets that are there already are not changed;
    `cretta data check` checks them.

        # download two
        cretta data get cifar10 cifar10-c

        # use an archive that you have downloaded yourself
        cretta data get imagenet --from ~/Downloads

        # link to a folder that is unpacked already
        cretta data get pacs --from /data/PACS
    """
    from cretta.cli.progress import download_bars
    from cretta.data import fetch
    from cretta.data.registry import release

    with download_bars() as progress:
        for name in names:
            release(name)
        task = progress.add_task("", total=None, visible=False)

        def show(activity: str, done: int, total: int | None) -> None:
            if progress.tasks[0].description != activity:
                progress.reset(task, description=activity, visible=True)
            progress.update(task, completed=done, total=total)

        for name in names:
            fetch.get(name, root=root, source=source, progress=show, report=say)
            progress.update(task, visible=False)


@data_app.command()
def check(
    names: list[str] | None = argument(None, "Datasets of `cretta data list`.", name="NAME", shown="all here"),
    root: Path | None = ROOT,
) -> None:
    """Read datasets, and report what is missing or damaged.

    Counts the images and the labels of each class, decodes the first and the last image of each part, and compares
    the MD5 of files where it is published. Exits with status 1 if anything is missing or damaged.

        cretta data check            # all that are there
        cretta data check cifar10
    """
    from cretta.data.registry import RELEASES, release
    from cretta.data.releases import data_root

    home = data_root(root)
    records = [release(name) for name in names] if names else [r for r in RELEASES.values() if r.find(home)]
    if not records:
        say(f"No dataset is in {home}. Get one with: cretta data get NAME")
    results = [_check(record, root) for record in records]
    if not all(results):
        raise typer.Exit(1)


def _check(record: Release, root: Path | None) -> bool:
    """Print the findings; return whether all parts are complete."""
    from cretta.cli.progress import bars
    from cretta.data import check as checking

    try:
        path = record.path(root)
    except StateError as error:
        say(str(error))
        return False
    with bars() as progress:
        task = progress.add_task(record.name, total=None)

        def show_part(part: str) -> None:
            progress.update(task, description=f"{record.name}: {part}")

        findings = list(checking.check(record, path, show_part))
    say(f"{record.name}  {path}")
    print_table(("", finding.part, finding.message, finding.verdict) for finding in findings)
    return all(finding.verdict == "complete" for finding in findings)
