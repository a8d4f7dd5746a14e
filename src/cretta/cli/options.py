"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL, IMAGES, STREAM, ADAPTATION = "Model", "Images", "Stream", "Adaptation"
"""Headings of the help of commands with many options."""
DEFAULT_STORE = Path("results")

ArchitectureOption = Annotated[
    str | None,
    typer.Option(
        help="Architecture of a checkpoint: wrn-40-2, resnet-26, …", rich_help_panel=MODEL, show_default=False
    ),
]
ClassesOption = Annotated[
    int | None,
    typer.Option(help="Number of classes of a checkpoint.", rich_help_panel=MODEL, show_default=False),
]
MeanOption = Annotated[
    str | None,
    typer.Option(
        help="Channel means, for a model that expects normalized images: 0.485,0.456,0.406",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]
StdOption = Annotated[
    str | None,
    typer.Option(
        help="Channel standard deviations, together with --mean: 0.229,0.224,0.225",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:1.")]
ShorterOption = Annotated[
    int | None,
    typer.Option(min=1, help="Shorter side of an image before the center is cropped.", show_default="size / 0.875"),
]
RootOption = Annotated[
    Path | None,
    typer.Option(help="Folder of all datasets.", show_default="$CRETTA_DATA, else ~/.cache/cretta"),
]
StoreOption = Annotated[Path, typer.Option(help="Folder where results are stored.")]
TableFormatsOption = Annotated[
    list[str] | None,
    typer.Option(help="Table format: md, latex or csv; can be repeated.", show_default="all three"),
]
FigureFormatsOption = Annotated[
    list[str] | None,
    typer.Option(help="Figure format: png, svg or pdf; can be repeated.", show_default="all three"),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of all random choices.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
