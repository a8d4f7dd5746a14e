"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL, IMAGES, STREAM, ADAPTATION = "Model", "Images", "Stream", "Adaptation"
"""Headings in the help of commands with many options."""
DEFAULT_STORE = Path("results")


def option(help: str, heading: str | None = None, *, default: str | None = None, min: float | None = None) -> Any:
    """Declare an option: its help, the heading it stands under, and how help shows a default that is computed."""
    return typer.Option(help=help, rich_help_panel=heading, show_default=default or True, min=min)


def flag(name: str, help: str) -> Any:
    """Declare an option without a value, which is off unless its name is on the command line."""
    return typer.Option(name, help=help)


ArchitectureOption = Annotated[
    str | None, option("Architecture of a checkpoint that does not name it: wrn-40-2, resnet-26, …", MODEL)
]
ClassesOption = Annotated[int | None, option("Number of classes of such a checkpoint.", MODEL)]
MeanOption = Annotated[
    str | None, option("Channel means, for a model that expects normalized images: 0.485,0.456,0.406", MODEL)
]
StdOption = Annotated[str | None, option("Channel standard deviations, together with --mean: 0.229,0.224,0.225", MODEL)]
DeviceOption = Annotated[str, option("auto (a GPU if there is one), cpu, cuda or cuda:1.")]
RootOption = Annotated[Path | None, option("Folder of all datasets.", default="$CRETTA_DATA, else ~/.cache/cretta")]
StoreOption = Annotated[Path, option("Folder in which results are stored.")]
TableFormatsOption = Annotated[
    list[str] | None, option("Table format: md, latex or csv; can be repeated.", default="all three")
]
FigureFormatsOption = Annotated[
    list[str] | None, option("Figure format: png, svg or pdf; can be repeated.", default="all three")
]
SeedOption = Annotated[int, option("Seed of all random choices.", min=0)]
OverwriteOption = Annotated[bool, flag("--overwrite", "Replace the output if it exists.")]
