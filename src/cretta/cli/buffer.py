"""`cretta buffer`: source images for methods that compare with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cretta.cli import options as shared
from cretta.cli import parse
from cretta.cli.app import App, app
from cretta.cli.console import check_output, console, note, print_table, say
from cretta.cli.options import argument, option
from cretta.errors import OptionError
from cretta.options import known

if TYPE_CHECKING:
    from cretta.buffer import SourceBuffer

buffer_app = App("Build and show buffers: small, class-balanced sets of source images.")
app.add_typer(buffer_app, name="buffer")


@buffer_app.command()
def build(
    dataset: str = argument(
        ...,
        "Training images: a folder, with or without one folder per class; a .npy file; or embedded "
        "(1 000 CIFAR-10 images that come with cretta), cifar10, cifar100 or tiny-imagenet.",
    ),
    output: Path = option(..., "File for the buffer (.safetensors)."),
    size: str = option("0.1", "A share of the images, 0.1, or a number, 1000."),
    augment: str = option("rotate", "Augmentation of the images when they are used: none, rotate or cifar100."),
    image_size: str | None = option(
        None,
        "Size that the model expects: 224 scales the shorter side to 256 and crops the center; 32x32 scales to exactly "
        "that.",
        shown="unchanged",
    ),
    root: Path | None = shared.ROOT,
    seed: int = shared.SEED,
    overwrite: bool = shared.OVERWRITE,
) -> None:
    r"""Sample source images, the same number of every class, for `cretta predict --buffer`.

    The paper uses one image in ten, and reports nearly the same accuracy with one in a hundred.

    Class folders are numbered in alphabetical order, or as a file classes.txt in the folder or beside it lists them:
    one class per line, in the model's order.

        # the images that come with cretta
        cretta buffer build embedded --output source.safetensors
        cretta buffer show source.safetensors

        # your own training images, in the size that the model expects
        cretta buffer build train/ --output source.safetensors --image-size 224
    """
    from cretta.augment import AUGMENTATIONS
    from cretta.buffer import SourceBuffer
    from cretta.cli.datasets import NAMED, note_order, without_size
    from cretta.data import FileDataset
    from cretta.data.folder import class_file
    from cretta.data.registry import DATASETS
    from cretta.predict import open_images
    from cretta.predict.advice import loose_advice

    check_output(output, (".safetensors",), overwrite=overwrite)
    known("--augment", augment, AUGMENTATIONS)
    share = parse.share_or_count(size)
    if dataset not in NAMED:
        images = open_images(dataset, size=parse.size(image_size, "--image-size"))
        for hint in loose_advice(images, Path(dataset)):
            note(hint)
        if isinstance(images, FileDataset) and images.classes:
            note_order(Path(dataset), images.classes, class_file(dataset))
    else:
        without_size(dataset, "--image-size", image_size)
        images = DATASETS[dataset].open("train", root, None)
    buffer = SourceBuffer.sample(images, share, seed=seed, augment=augment)
    buffer.save(output)
    print_table(_facts(buffer, output))
    say(f"Buffer: {output}")


@buffer_app.command()
def show(file: Path = argument(..., "A file of `cretta buffer build` or SourceBuffer.save.")) -> None:
    """Show the contents of a buffer.

    The number of images, their size and classes, and how they are augmented.

        cretta buffer show source.safetensors
    """
    from cretta.buffer import SourceBuffer

    try:
        buffer = SourceBuffer.load(file)
    except OptionError:  # an augmentation that is a function, which the file cannot hold
        buffer = SourceBuffer.load(file, augment="none")
        console.print("The augmentation is a callable, which is not in the file: pass it again in Python.")
    print_table(_facts(buffer, file))


def _facts(buffer: SourceBuffer, file: Path) -> Iterator[tuple[str, str]]:
    shape = " x ".join(map(str, buffer.images.shape[1:]))
    yield "images", f"{len(buffer)}, each {shape} of {str(buffer.images.dtype).removeprefix('torch.')}"
    yield "augmented", "not at all" if buffer.augment == "none" else f"{buffer.augment}, once"
    yield "seed", str(buffer.seed)
    yield "file", f"{file.stat().st_size / 1000:.0f} kB"
    counts = Counter([] if buffer.labels is None else buffer.labels.tolist())
    if not counts:
        yield "classes", "not known"
        return
    least, most = min(counts.values()), max(counts.values())
    yield "classes", f"{len(counts)}; images of each: {least if least == most else f'{least} to {most}'}"
