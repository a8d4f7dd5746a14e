"""`cretta data make`: corrupted twins of datasets, in the published layouts."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from cretta.cli.console import check_folder, count, say
from cretta.cli.data import data_app
from cretta.cli.options import ROOT, SEED, argument, flag, option
from cretta.errors import OptionError


@data_app.command("make", resumable=True)
def data_make(
    target: str = argument(
        ..., "cifar10-c, cifar100-c or tiny-imagenet-c, from the clean images below --root; or a folder of images."
    ),
    output: Path | None = option(None, "Folder for the images.", shown="below --root, or FOLDER-C beside the folder"),
    root: Path | None = ROOT,
    corruption: list[str] | None = option(None, "A corruption to make; can be repeated.", shown="the fifteen"),
    severity: list[int] | None = option(None, "A severity from 1 to 5, for image files; can be repeated.", shown="all"),
    validation: bool = flag("--validation", "Also make the four corruptions that are meant for tuning."),
    seed: int = SEED,
    parameters: str | None = option(None, "Strengths: cifar, tiny or imagenet.", shown="by the size of the image"),
    format: str | None = option(
        None,
        "Image files as png, without loss, or as jpeg of quality 85, as the published ones are.",
        shown="png; for tiny-imagenet-c jpeg",
    ),
    size: int | None = option(
        None, "Scale and crop the images of a folder to this side first.", shown="unchanged", min=1
    ),
    workers: int | None = option(None, "Threads.", shown="one per core", min=1),
) -> None:
    """Make corrupted images: a published benchmark from its clean images, or your own folder's.

    An image depends only on the seed and on its position; the number of threads and interruptions change nothing.
    **Resumable**: run the same command again; files that are complete are not made again.

        # CIFAR-10-C beside CIFAR-10 (2.3 GB)
        cretta data make cifar10-c

        # fill photos-C/fog/3
        cretta data make photos --corruption fog --severity 3

        # ImageNet-C
        cretta data make imagenet/val --output ImageNet-C --size 224 --format jpeg
    """
    from cretta.cli.progress import progress_bar
    from cretta.data.corruptions import CORRUPTIONS, SEVERITIES, VALIDATION_CORRUPTIONS
    from cretta.data.make import PUBLISHED, Format, Maker

    corruptions = list(dict.fromkeys((corruption or list(CORRUPTIONS)) + list(VALIDATION_CORRUPTIONS) * validation))
    if target not in PUBLISHED and not Path(target).is_dir():
        raise OptionError(f"{target}: expected one of {', '.join(PUBLISHED)}, or a folder that exists.")
    if output is not None:
        check_folder(output, "--output")
    if target in PUBLISHED and size is not None:
        raise OptionError(f"--size {size}: {target} has the size it is published with; leave it out.")
    with progress_bar() as progress:
        task = progress.add_task("reading", total=None)

        def show(domain: str, count: int, total: int) -> None:
            progress.update(task, advance=count, total=total, description=domain)

        maker = Maker(corruptions, severity or SEVERITIES, seed, parameters, workers, show)
        if target in PUBLISHED:
            made = maker.published(target, output, root=root, format=cast("Format | None", format))
        else:
            made = maker.folder(target, output, size=size, format=cast("Format", format or "png"))
    there = f", {made.present} {'was' if made.present == 1 else 'were'} there" if made.present else ""
    say(f"{count(made.new, 'image')} made{there}: {made.folder}")
