"""`cretta train`: train a source model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cretta.cli import parse
from cretta.cli.app import app
from cretta.cli.console import check_output, console, say
from cretta.cli.options import OVERWRITE, ROOT, SEED, argument, flag, option
from cretta.errors import OptionError
from cretta.options import unknown

if TYPE_CHECKING:
    from cretta.data import ImageDataset
    from cretta.report.content import Chart
    from cretta.training import Progress, Recipe, Row, Trained


NOT_RESUMED = ("output", "resume", "device", "overwrite", "save_every")
"""Options that `--resume` does not take from the checkpoint."""


@app.command(resumable=True)
def train(
    ctx: typer.Context,
    output: Path = option(..., "File for the weights (.safetensors)."),
    dataset: str | None = argument(
        None, "cifar10, cifar100, tiny-imagenet, pacs, embedded, or a folder of class folders."
    ),
    resume: bool = flag("--resume", "Continue the unfinished training of --output with its own settings."),
    architecture: str = option("wrn-40-2", "wrn-depth-width, resnet-depth[-width], efficientnet-lite0."),
    init: str | None = option(None, "Start from these weights: a shipped model's name, a file, or module:callable."),
    learn: str = option("all", "Parameters that are trained: all, or 'norm and head'."),
    epochs: float | None = option(None, "Passes over the training images; give these or --minutes."),
    minutes: float | None = option(None, "Train for this long instead, over all restarts."),
    root: Path | None = ROOT,
    test: Path | None = option(None, "For a folder: another folder, to test on."),
    size: int | None = option(None, "For a folder: scale and crop images to this side.", min=1),
    batch_size: int = option(128, "Images per step."),
    lr: float = option(0.25, "The highest learning rate."),
    warmup: float = option(0.15, "Share of the budget in which the learning rate rises."),
    weight_decay: float = option(5e-4, "Weight decay of convolutions and the last layer."),
    augmix: float = option(0.8, "Share of the images that AugMix changes."),
    jsd: float = option(0.0, "Weight of AugMix's Jensen-Shannon loss (paper: 12); three times the work."),
    label_smoothing: float = option(0.0, "Share of each label that is spread over all classes."),
    progressive: float = option(0.75, "Share of the budget trained on smaller images, which is much faster."),
    average: float = option(0.0, "Average the weights over this last share of the budget."),
    holdout: int = option(0, "Training images that are held out, to evaluate on after each epoch."),
    best: bool = flag("--best", "Save the epoch that was best on the held-out images."),
    backend: str = option("auto", "auto (times them and takes the fastest), plain, kernels or bfloat16."),
    threads: int | None = option(None, "CPU threads.", shown="all cores", min=1),
    device: str = option("cpu", "auto (a GPU if there is one), cpu, cuda or cuda:1."),
    overwrite: bool = OVERWRITE,
    save_every: float = option(60.0, "Seconds between checkpoints.", min=0),
    seed: int = SEED,
) -> None:
    r"""Train a source model that is robust before any adaptation (AugMix).

    **Resumable**: the state is saved beside the output once a minute; run the same command again, or `cretta train
    --resume --output …`. With `--epochs` the result does not depend on interruptions. A log (.csv) and the training
    curve (.png) are written beside the weights.

        # try it on the images that come with cretta
        cretta train embedded --architecture resnet-8 --epochs 5 \
            --output tiny.safetensors

        cretta train cifar10 --minutes 100 --output wrn-40-2.safetensors

        # one model per domain of PACS: {source} stands for the domain
        cretta train pacs --size 224 --architecture efficientnet-lite0 \
            --init cretta.models.imagenet:efficientnet_lite0 \
            --learn "norm and head" --holdout 84 --best --epochs 10 \
            --batch-size 32 --lr 0.03 --augmix 0 --progressive 0 \
            --output 'pacs-{source}.safetensors'
    """
    from cretta.cli.datasets import NAMED
    from cretta.data.pacs import DOMAINS
    from cretta.data.registry import dataset_path
    from cretta.training import Recipe, checkpoint_settings

    check_output(output, (".safetensors",), overwrite=overwrite)
    if resume and dataset is not None:
        raise OptionError(f"--resume takes the dataset from the checkpoint: leave out {dataset!r}.")
    if not resume and dataset is None:
        raise OptionError(f"no dataset: give one of {', '.join(NAMED)}, pacs, a folder, or --resume.")
    settings: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in ctx.params.items()
        if name not in NOT_RESUMED
    }
    if resume:
        settings = checkpoint_settings(output)
    recipe = Recipe(**{name: settings[name] for name in Recipe.names() if name in settings})
    if settings["dataset"] != "pacs":
        _train(settings, recipe, output, device, save_every)
        return
    if "{source}" not in output.name:
        raise OptionError(
            f"--output {output}: for pacs, give a name with {{source}}, as in pacs-{{source}}.safetensors."
        )
    folder = dataset_path("pacs", settings["root"])
    for domain in DOMAINS:
        weights = output.with_name(output.name.replace("{source}", domain))
        if not weights.exists():
            _train({**settings, "dataset": str(folder / domain)}, recipe, weights, device, save_every)


def _train(settings: dict[str, Any], recipe: Recipe, output: Path, device: str, save_every: float) -> None:
    """Train one model with progress on the console, and print how good it is."""
    import torch

    from cretta.cli.progress import detail_bars
    from cretta.models import build, open_model
    from cretta.models.classifier import Classifier
    from cretta.models.weights import warm_start
    from cretta.report.charts import write_chart
    from cretta.training import train

    architecture, init = settings["architecture"], settings["init"]
    if settings["threads"] is not None:
        torch.set_num_threads(settings["threads"])
    training, testing = _datasets(settings)
    torch.manual_seed(recipe.seed)
    model = build(architecture, classes=len(training.classes))
    if init is not None:
        source = open_model(init).net
        if not isinstance(source, Classifier):
            raise OptionError(f"--init {init}: expected a WideResNet or ResNet of cretta.models.")
        replaced = warm_start(model, source)
        if replaced:
            console.print(f"not taken from {init}, because their shapes differ: {', '.join(replaced)}")
    title = f"{architecture} on {training.name}"
    with detail_bars() as bar:
        task = bar.add_task(title, total=1.0, details="")

        def show(progress: Progress) -> None:
            accuracy = "" if math.isnan(progress.accuracy) else f" · held out {100 * progress.accuracy:.1f} %"
            details = f"epoch {progress.epoch:.2f} · loss {progress.loss:.3f}{accuracy} · {progress.side} px"
            bar.update(task, completed=progress.share, details=f"{details} · {progress.rate:.0f} images/s")

        trained = train(
            training,
            model,
            recipe,
            output,
            test=testing,
            facts={
                "architecture": architecture,
                "classes": list(training.classes),
                "dataset": training.name,
                "init": init,
            },
            settings=settings,
            device=parse.device(device),
            save_every=save_every,
            progress=show,
        )
    write_chart(training_curve(trained.log, title), output.with_suffix(".png"))
    say(f"{_results(trained, testing)}.\nWeights: {output}")


def training_curve(log: Sequence[Row], title: str) -> Chart:
    """Return the training loss and the accuracy on held-out images over epochs."""
    from cretta.report.content import Chart, Panel, Series

    epochs = tuple(row.epoch for row in log)
    curves = [("training loss", "loss", tuple(row.loss for row in log))]
    if not any(math.isnan(row.accuracy) for row in log):
        curves.append(("held-out images", "accuracy, %", tuple(100 * row.accuracy for row in log)))
    panels = [Panel(label, "epoch", y, "line", (Series(label, epochs, values),)) for label, y, values in curves]
    return Chart("training", title, tuple(panels))


def _results(trained: Trained, testing: ImageDataset | None) -> str:
    message = f"{trained.epochs:.1f} epochs in {trained.minutes:.1f} minutes"
    if trained.log and not math.isnan(trained.log[-1].accuracy):
        message += f"; held-out images: accuracy {100 * max(row.accuracy for row in trained.log):.2f} % at best"
    if testing is not None:
        message += (
            f"; {testing.name}, {len(testing)} images: accuracy {100 * trained.accuracy:.2f} %, "
            f"ECE {100 * trained.calibration_error:.2f} %"
        )
    return message


def _datasets(settings: dict[str, Any]) -> tuple[ImageDataset, ImageDataset | None]:
    """Return the training images, and the test images if there are any."""
    from cretta.cli.datasets import NAMED, without_size
    from cretta.data import image_folder
    from cretta.data.registry import DATASETS

    name, root, size = settings["dataset"], Path(settings["root"]) if settings["root"] else None, settings["size"]
    if name in NAMED:
        without_size(name, "--size", size)
        if settings["test"] is not None:
            raise OptionError(f"--test {settings['test']}: {name} has test images of its own; leave it out.")
        record = DATASETS[name]
        return record.open("train", root, None), record.open("test", root, None)
    if not Path(name).is_dir():
        raise OptionError(
            f"{unknown('dataset', name, (*NAMED, 'pacs'))} Or give a folder of class folders that exists."
        )
    training = image_folder(name, labeled=True, size=size)
    if settings["test"] is None:
        return training, None
    return training, image_folder(settings["test"], labeled=True, classes=training.classes, size=size)
