"""`cretta buffer`: source images for methods that compare with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cretta.cli import parse
from cretta.cli.console import App, app, check_output, console
from cretta.cli.options import (
    MODEL,
    ArchitectureOption,
    ClassesOption,
    DeviceOption,
    MeanOption,
    OverwriteOption,
    RootOption,
    SeedOption,
    ShorterOption,
    StdOption,
)
from cretta.errors import OptionError
from cretta.options import unknown

if TYPE_CHECKING:
    from rich.table import Table

    from cretta.buffer import SourceBuffer

BAR = 30
SHOWN = 20

buffer_app = App("Make and look at buffers: small, class-balanced sets of source images.")
app.add_typer(buffer_app, name="buffer")


@buffer_app.command()
def build(
    dataset: Annotated[
        str,
        typer.Argument(
            help="Training images: a folder with a folder a class, or without; a .npy, .npz or .parquet file; or "
            "embedded (1 000 CIFAR-10 images that come with cretta), cifar10, cifar100 or tiny-imagenet.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option(help="Where the buffer goes (.safetensors).", show_default=False)],
    size: Annotated[str, typer.Option(help="A share of the images, 0.1, or how many, 1000.")] = "0.1",
    select: Annotated[
        str, typer.Option(help="random; or those that --model is most sure of, confident, or least, uncertain.")
    ] = "random",
    augment: Annotated[
        str, typer.Option(help="How images are changed when they are used: none, rotate or cifar100.")
    ] = "rotate",
    image_size: Annotated[
        str | None,
        typer.Option(
            help="What the model takes: 224 scales the shorter side to 256 and cuts out the centre; or 32x32.",
            show_default="as they are",
        ),
    ] = None,
    shorter: ShorterOption = None,
    root: RootOption = None,
    seed: SeedOption = 0,
    model: Annotated[
        str | None,
        typer.Option(
            help="The source model, for --select confident or uncertain; as for `cretta predict`.",
            rich_help_panel=MODEL,
            show_default=False,
        ),
    ] = None,
    architecture: ArchitectureOption = None,
    classes: ClassesOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    device: DeviceOption = "auto",
    overwrite: OverwriteOption = False,
) -> None:
    r"""Draw a buffer of source images, equally many of every class, for `cretta predict --buffer`.

    One image in ten is the paper's choice; one in a hundred did nearly as well.

        # try it on the images that come with cretta
        cretta buffer build embedded --output source.safetensors
        cretta buffer show source.safetensors

        # training images of your own, in the size that the model takes
        cretta buffer build train/ --output source.safetensors --image-size 224

        # the 100 images that the model is most sure of
        cretta buffer build train/ --output sure.safetensors --size 100 \
            --select confident --model net:make
    """
    from cretta.augment import AUGMENTATIONS
    from cretta.buffer import SELECT, SourceBuffer
    from cretta.cli.datasets import NAMED
    from cretta.cli.progress import share_bar, task_updates
    from cretta.data.registry import DATASETS
    from cretta.models.open import open_model
    from cretta.predict import open_images

    check_output(output, (".safetensors",))
    if output.exists() and not overwrite:
        raise OptionError(f"{output} exists already; choose another name, or pass --overwrite.")
    for name, value, allowed in (("--select", select, SELECT), ("--augment", augment, AUGMENTATIONS)):
        if value not in allowed:
            raise unknown(name, value, allowed)
    share = parse.share_or_count(size)
    if select != "random" and model is None:
        raise OptionError(f"--select {select} asks the source model: give --model, as for cretta predict.")
    if dataset in NAMED and image_size is not None:
        side = DATASETS[dataset].side
        raise OptionError(f"--image-size: the images of {dataset} are of {side}x{side}; leave it out.")
    scaled = parse.size(image_size, "--image-size")
    images = (
        DATASETS[dataset].open("train", root, None)
        if dataset in NAMED
        else open_images(dataset, size=scaled, shorter=shorter)
    )
    net = None
    if model is not None:
        values = parse.numbers(mean, "--mean"), parse.numbers(std, "--std")
        net = open_model(
            model,
            architecture=architecture,
            classes=classes,
            mean=values[0],
            std=values[1],
            device=parse.device(device),
        ).net
    with share_bar() as bar:
        buffer = SourceBuffer.sample(
            images, share, select, seed, model=net, augment=augment, progress=task_updates(bar)
        )
    buffer.save(output)
    console.print(_table(buffer, output))
    console.print(f"Buffer: {output}", soft_wrap=True)


@buffer_app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A file that `cretta buffer build` or SourceBuffer.save wrote.")],
) -> None:
    """Show what a buffer holds.

    How many images, of which size and classes, and how they are augmented.

        cretta buffer show source.safetensors
    """
    from cretta.buffer import SourceBuffer

    try:
        buffer = SourceBuffer.load(file)
    except OptionError:  # an augmentation that is code, and not in the file
        buffer = SourceBuffer.load(file, augment="none")
        console.print("Augmented by a callable that is not in the file; Python passes it again.")
    console.print(_table(buffer, file))


def _table(buffer: SourceBuffer, file: Path) -> Table:
    from collections import Counter

    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    shape = " x ".join(map(str, buffer.images.shape[1:]))
    table.add_row("images", f"{len(buffer)}, each {shape} of {str(buffer.images.dtype).removeprefix('torch.')}")
    table.add_row("augmented", "not at all" if buffer.augment == "none" else f"{buffer.augment}, once")
    table.add_row("seed", str(buffer.seed))
    table.add_row("file", f"{file.stat().st_size / 1000:.0f} kB")
    counts = Counter([] if buffer.labels is None else buffer.labels.tolist())
    if not counts or min(counts) < 0:
        table.add_row("classes", "not known")
        return table
    least, most = min(counts.values()), max(counts.values())
    table.add_row("classes", f"{len(counts)}; images of each: {least if least == most else f'{least} to {most}'}")
    if least < most and len(counts) <= SHOWN:
        for label, count in sorted(counts.items()):
            table.add_row(f"  {label}", f"{'█' * max(1, round(BAR * count / most))} {count}")
    return table
