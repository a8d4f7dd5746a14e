"""`cretta check`: look at a model and some images, and advise how to adapt."""

from __future__ import annotations

from pathlib import Path

from cretta.cli import options as shared
from cretta.cli import parse
from cretta.cli.app import app
from cretta.cli.console import print_table, say
from cretta.cli.options import IMAGES, argument, option


@app.command()
def check(
    model: str = argument(..., "wrn-40-2-cifar10, timm:NAME, a checkpoint, or module:callable; as for predict."),
    images: Path = argument(..., "A folder of images, or a .npy file; no labels needed."),
    buffer: str | None = option(
        None, "Source images: a file of `cretta buffer build`, or embedded; with labels they tell most."
    ),
    sample: int = option(200, "How many of the first images are looked at.", IMAGES, min=2),
    batch_size: int = option(200, "Images per batch that you intend to use.", min=1),
    size: str | None = option(None, "As for predict.", IMAGES, shown="the model's, if known"),
    architecture: str | None = shared.ARCHITECTURE,
    classes: int | None = shared.CLASSES,
    mean: str | None = shared.MEAN,
    std: str | None = shared.STD,
    device: str = shared.DEVICE,
) -> None:
    """Look at a model, source images and some images of the stream, and advise method, statistics, guard and cost.

    Nothing is adapted or written.

        cretta check wrn-40-2-cifar10 photos/ --buffer embedded
    """
    from cretta.advise import advise
    from cretta.data.dataset import as_batch
    from cretta.predict import open_images

    opened = parse.model(model, architecture, classes, mean, std, device)
    dataset = open_images(images, size=parse.size_for(opened, images, size), labeled=False)
    x = as_batch(dataset.read(range(min(sample, len(dataset)))), parse.device(device))
    source = parse.adapter(opened.net, "source", buffer, None, {})
    advice = advise(opened.net, x, source.buffer, batch_size=batch_size)
    print_table((item.about, f"{item.seen}\n→ {item.do}") for item in advice)
    say("What the numbers mean, and when they are wrong: docs/monitoring.md.")
