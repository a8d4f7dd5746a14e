"""How commands declare options and arguments, and those that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

MODEL, IMAGES, STREAM, ADAPTATION, WORK = "Model", "Images", "Stream", "Adaptation", "Workers"
"""Headings in the help of commands with many options."""


def option(
    default: object, help: str, heading: str | None = None, *, shown: str | None = None, min: float | None = None
) -> Any:
    """Declare an option; ``...`` as default makes it required, and ``shown`` is what help shows instead of None."""
    return typer.Option(default, help=help, rich_help_panel=heading, show_default=shown or True, min=min)


def statistics(default: str) -> Any:
    """Declare which statistics BatchNorm uses; help shows what the command's ``default`` is."""
    help = "What BatchNorm normalizes with: batch, running, mixture, moving or auto."
    return option(None, help, ADAPTATION, shown=default)


def size(default: str) -> Any:
    """Declare the size of images; help shows what the command's ``default`` is."""
    help = "224: scale the shorter side to 256, crop the center. 32x32: scale to exactly that."
    return option(None, help, IMAGES, shown=default)


def flag(name: str, help: str, panel: str | None = None) -> Any:
    """Declare an option without a value, which is off unless its name is on the command line."""
    return typer.Option(False, name, help=help, rich_help_panel=panel)


def argument(default: object, help: str, *, shown: str | bool = False, name: str | None = None) -> Any:
    """Declare an argument; ``...`` as default makes it required."""
    return typer.Argument(default, help=help, show_default=shown, metavar=name)


METHODS = "source (does not adapt), bn_adapt, pl, shot, shot_im, tent, eta, eata, sar, aea, tea or cretta"
"""For help, which loads no method; others can be installed."""
METHOD = option("cretta", f"The adaptation method: {METHODS}.", ADAPTATION)
PRESET = option(None, "A named set of options: cifar100, …", ADAPTATION)
OPTION = option(None, "An option of the method, key=value; can be repeated.", ADAPTATION)
GUARD = option(
    None,
    "When adaptation does harm: warn, fallback (the unadapted model answers), rollback, reset, or off.",
    ADAPTATION,
    shown="rollback",
)
CLASS_NAMES = option(None, "A text file with the names of the model's classes, one per line, in their order.", MODEL)
ARCHITECTURE = option(None, "Architecture of a checkpoint that does not name it: wrn-40-2, resnet-26, …", MODEL)
CLASSES = option(None, "Number of classes of such a checkpoint.", MODEL)
MEAN = option(None, "Channel means, for a model that expects normalized images: 0.485,0.456,0.406", MODEL)
STD = option(None, "Channel standard deviations, together with --mean: 0.229,0.224,0.225", MODEL)
DEVICE = option("auto", "auto (a GPU if there is one), cpu, cuda or cuda:1.")
ROOT = option(None, "Folder of all datasets.", shown="$CRETTA_DATA, else ~/.cache/cretta")
ENGINE = option(
    "serial", "Where runs are executed: serial (here), local (processes of this machine) or ray (a cluster).", WORK
)
WORKERS = option(
    None, "Runs executed at the same time.", WORK, shown="as many as there are cores, or fit the cluster", min=1
)
THREADS = option(
    None,
    "Threads of each worker; results are the same, bit for bit, for the same number.",
    WORK,
    shown="1; PyTorch's own number if serial",
    min=1,
)
ADDRESS = option(
    None, "Address of a Ray cluster: auto, or host:port.", WORK, shown="$RAY_ADDRESS, else one started on this machine"
)
STORE = option(Path("results"), "Folder in which results are stored.")
SEED = option(0, "Seed of all random choices.", min=0)
OVERWRITE = flag("--overwrite", "Replace the output if it exists.")
