"""`cretta train`: a source model of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cretta.cli import given
from cretta.cli.console import app, bars, check_output, console, plain_errors, stopping
from cretta.cli.datasets import NAMED
from cretta.data import ImageDataset, image_folder
from cretta.errors import OptionError
from cretta.models import build
from cretta.options import unknown
from cretta.training import News, Recipe, train


@app.command("train")
def train_command(
    dataset: Annotated[
        str, typer.Argument(help="cifar10, cifar100, tiny-imagenet-200, embedded, or a folder of class folders.")
    ],
    output: Annotated[Path, typer.Option(help="Where the weights go (.safetensors).")],
    architecture: Annotated[str, typer.Option(help="wrn-depth-width or resnet-depth[-width].")] = "wrn-40-2",
    epochs: Annotated[float | None, typer.Option(help="How often every image is seen.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Train for so long instead.")] = None,
    root: Annotated[Path | None, typer.Option(help="Where datasets lie.", show_default="as for cretta data")] = None,
    test: Annotated[Path | None, typer.Option(help="For a folder: another one, to test on.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="For a folder: scale and crop images to this side.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = 128,
    lr: Annotated[float, typer.Option(help="The highest learning rate.")] = 0.25,
    weight_decay: Annotated[float, typer.Option(help="Of convolutions and the last layer.")] = 5e-4,
    augmix: Annotated[float, typer.Option(help="Share of the images that AugMix changes.")] = 0.8,
    progressive: Annotated[bool, typer.Option(help="Begin with small images: much faster.")] = True,
    ema: Annotated[float | None, typer.Option(help="Keep an average of the weights with this decay.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="all cores")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "cpu",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
    save_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    r"""Train a source model that is robust to begin with (AugMix), and can be stopped at any time.

    All that is needed to go on is kept beside the output once a minute and on Ctrl-C: the same command goes on where
    it was. With `--epochs` the result does not depend on when it was stopped.

        # try it on the images that come with cretta
        cretta train embedded --architecture resnet-8 --epochs 5 \
            --output tiny.safetensors

        # the WRN-40-2 that comes with cretta took 100 minutes on two cores
        cretta train cifar10 --minutes 100 --output wrn-40-2.safetensors
    """
    with plain_errors(), stopping("what is learnt is kept beside the output"):
        check_output(output, (".safetensors",))
        if output.exists() and not overwrite:
            raise OptionError(f"{output} exists already; choose another name, or pass --overwrite.")
        recipe = Recipe(
            epochs=epochs,
            minutes=minutes,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            augmix=augmix,
            progressive=progressive,
            ema=ema,
            seed=seed,
        )
        if threads is not None:
            torch.set_num_threads(threads)
        training, testing = _datasets(dataset, root, test, size)
        torch.manual_seed(seed)
        model = build(architecture, classes=len(training.classes))
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[details]}"),
        )
        with bars(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task(f"{architecture} on {training.name}", total=1.0, details="")

            def hear(news: News) -> None:
                details = f"epoch {news.epoch:.2f} · loss {news.loss:.3f} · {news.side} px"
                bar.update(task, completed=news.share, details=details)

            facts = {"architecture": architecture, "classes": list(training.classes), "dataset": training.name}
            trained = train(
                training,
                model,
                recipe,
                output,
                test=testing,
                facts=facts,
                device=given.device(device),
                save_every=save_every,
                progress=hear,
            )
    told = f"{trained.epochs:.1f} epochs in {trained.minutes:.1f} minutes"
    if testing is not None:
        told += (
            f"; {testing.name}, {len(testing)} images: accuracy {100 * trained.accuracy:.2f} %, "
            f"ECE {100 * trained.calibration_error:.2f} %"
        )
    console.print(f"{told}.\nWeights: {output}", soft_wrap=True)


def _datasets(
    name: str, root: Path | None, test: Path | None, size: int | None
) -> tuple[ImageDataset, ImageDataset | None]:
    """What to train and what to test on."""
    if name in NAMED:
        training, testing = NAMED[name]
        return training(root), testing(root)
    if not Path(name).is_dir():
        raise unknown("dataset or folder", name, NAMED)
    mine = image_folder(name, labelled=True, size=size)
    return mine, image_folder(test, labelled=True, classes=mine.classes, size=size) if test else None
