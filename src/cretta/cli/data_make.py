"""`cretta data make`: corrupted twins of datasets, in the published layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from cretta.cli.console import console, count, say
from cretta.cli.data import data_app
from cretta.cli.options import RootOption
from cretta.errors import OptionError

READERS = {
    "cifar10-c": 'cretta.data.cifar_c("{folder}", "{corruption}", severity={severity})',
    "cifar100-c": 'cretta.data.cifar_c("{folder}", "{corruption}", severity={severity})',
    "tiny-imagenet-c": 'cretta.data.tiny_imagenet_c("{folder}", "{corruption}", severity={severity})',
}
READ_FOLDER = 'cretta.data.image_folder("{folder}/{corruption}/{severity}")'
READ_ARRAY = 'cretta.data.numpy_file("{folder}/{corruption}.npy", "{folder}/labels.npy")'


@data_app.command("make")
def data_make(
    target: Annotated[
        str,
        typer.Argument(
            help="cifar10-c, cifar100-c or tiny-imagenet-c, from the clean images below --root; or a folder of images.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="The folder to fill.", show_default="below --root, or FOLDER-C beside the folder"),
    ] = None,
    root: RootOption = None,
    corruption: Annotated[
        list[str] | None,
        typer.Option(help="A corruption to make; may be given several times.", show_default="the fifteen"),
    ] = None,
    severity: Annotated[
        list[int] | None,
        typer.Option(help="A severity from 1 to 5, for image files; may be given several times.", show_default="all"),
    ] = None,
    validation: Annotated[
        bool, typer.Option("--validation", help="Make the four corruptions that are meant for tuning, too.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    images: Annotated[
        int | None, typer.Option(help="The first so many images only, for a trial.", show_default="all")
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(help="Strengths: cifar, tiny or imagenet.", show_default="follow the size of each image"),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="Image files as png, without loss, or as jpeg of quality 85, as the published ones are.",
            show_default="png; for tiny-imagenet-c jpeg",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Scale and cut the images of a folder first, to this side.", show_default="as they are"
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads.", show_default="one a core")] = None,
) -> None:
    """Make corrupted images: a published benchmark from its clean images, or your own folder's.

    An image depends on the seed and on its place only; threads and interruptions change nothing. A file has its name
    only when it is whole, so after an interruption the same command goes on where it was.

        # CIFAR-10-C beside CIFAR-10 (2.3 GB)
        cretta data make cifar10-c

        # fill photos-C/fog/3
        cretta data make photos --corruption fog --severity 3

        # ImageNet-C
        cretta data make imagenet/val --output ImageNet-C --size 224 --format jpeg
    """
    from cretta.cli.progress import progress_bar
    from cretta.data.corruptions import CORRUPTIONS, SEVERITIES, VALIDATION_CORRUPTIONS
    from cretta.data.make import PUBLISHED, Format, make_folder, make_published
    from cretta.data.registry import dataset_path

    corruptions = list(dict.fromkeys((corruption or list(CORRUPTIONS)) + list(VALIDATION_CORRUPTIONS) * validation))
    if target not in PUBLISHED and not Path(target).is_dir():
        raise OptionError(f"{target}: give one of {', '.join(PUBLISHED)}, or a folder that exists.")
    if target in PUBLISHED and size is not None:
        raise OptionError(f"--size {size}: {target} has the size it is published with; leave it out.")
    _check_frost(corruptions, lambda: dataset_path(target.removesuffix("-c"), root) if target in PUBLISHED else None)
    with progress_bar() as progress:
        task = progress.add_task("reading", total=None)

        def hear(domain: str, count: int, total: int) -> None:
            progress.update(task, advance=count, total=total, description=domain)

        common: dict[str, Any] = {
            "output": output,
            "images": images,
            "corruptions": corruptions,
            "severities": severity or SEVERITIES,
            "seed": seed,
            "parameters": parameters,
            "workers": workers,
            "progress": hear,
        }
        if target in PUBLISHED:
            made = make_published(target, root=root, format=cast("Format | None", format), **common)
        else:
            made = make_folder(target, size=size, format=cast("Format", format or "png"), **common)
    there = f", {made.present} {'was' if made.present == 1 else 'were'} there" if made.present else ""
    say(f"{count(made.new, 'image')} made{there}: {made.folder}")
    reader = READERS.get(target, READ_FOLDER)
    if images is not None:
        console.print(f"Made of the first {count(made.sources, 'image')}, not the whole set.")
        reader = READ_FOLDER if target not in PUBLISHED[:2] else READ_ARRAY
    shown = reader.format(folder=made.folder, corruption=corruptions[0], severity=(severity or SEVERITIES)[-1])
    say(f"Read it with {shown}")


def _check_frost(corruptions: list[str], check_first: Callable[[], object]) -> None:
    """Told before the work, with what to type in order to do without; what is more amiss is told first."""
    from cretta.data.corruptions import check_corruption

    if "frost" not in corruptions:
        return
    try:
        check_corruption("frost", 1, 0, None)
    except OptionError as missing:
        check_first()
        rest = " ".join(f"--corruption {each}" for each in corruptions if each != "frost")
        without = f"To leave it out: {rest}" if rest else "There is nothing else to make"
        raise OptionError(f"{missing}. {without}") from None
