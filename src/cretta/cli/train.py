"""`cretta train`: a source model of one's own."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cretta.cli import parse
from cretta.cli.console import app, check_output, console
from cretta.cli.options import DeviceOption, OverwriteOption, RootOption, SeedOption
from cretta.errors import OptionError
from cretta.options import unknown

if TYPE_CHECKING:
    from cretta.data import ImageDataset
    from cretta.training import Progress, Trained


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is trained on what: all that a checkpoint needs to resume with one command."""

    dataset: str
    architecture: str
    init: str | None
    root: str | None
    test: str | None
    size: int | None
    threads: int | None
    recipe: dict[str, Any]


@app.command("train", resumable=True)
def train_command(
    output: Annotated[Path, typer.Option(help="Where the weights go (.safetensors).")],
    dataset: Annotated[
        str | None,
        typer.Argument(help="cifar10, cifar100, tiny-imagenet, pacs, embedded, or a folder of class folders."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the unfinished training of --output with its own settings.")
    ] = False,
    architecture: Annotated[
        str, typer.Option(help="wrn-depth-width, resnet-depth[-width], efficientnet-lite0.")
    ] = "wrn-40-2",
    init: Annotated[
        str | None, typer.Option(help="Start from these weights: a shipped model's name, a file, or module:callable.")
    ] = None,
    learn: Annotated[str, typer.Option(help="all parameters, or only those of 'norm and head'.")] = "all",
    epochs: Annotated[float | None, typer.Option(help="Passes over the training images.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Train for this long instead, over all restarts.")] = None,
    root: RootOption = None,
    test: Annotated[Path | None, typer.Option(help="For a folder: another one, to test on.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="For a folder: scale and crop images to this side.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = 128,
    lr: Annotated[float, typer.Option(help="The highest learning rate.")] = 0.25,
    warmup: Annotated[float, typer.Option(help="Share of the budget in which the learning rate rises.")] = 0.15,
    weight_decay: Annotated[float, typer.Option(help="Of convolutions and the last layer.")] = 5e-4,
    augmix: Annotated[float, typer.Option(help="Share of the images that AugMix changes.")] = 0.8,
    jsd: Annotated[
        float, typer.Option(help="Weight of AugMix's Jensen-Shannon loss (paper: 12); three times the work.")
    ] = 0.0,
    progressive: Annotated[
        float, typer.Option(help="Share of the budget trained on smaller images, which is much faster.")
    ] = 0.75,
    average: Annotated[float, typer.Option(help="Average the weights over this last share of the budget.")] = 0.0,
    holdout: Annotated[int, typer.Option(help="Training images to measure on after each epoch.")] = 0,
    best: Annotated[bool, typer.Option("--best", help="Keep the epoch that was best on the held-out images.")] = False,
    backend: Annotated[
        str, typer.Option(help="auto (times them and takes the fastest), plain, kernels or bfloat16.")
    ] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="all cores")] = None,
    device: DeviceOption = "cpu",
    overwrite: OverwriteOption = False,
    save_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 60.0,
    seed: SeedOption = 0,
) -> None:
    r"""Train a source model that is robust before any adaptation (AugMix), and can be stopped at any time.

    The whole state is saved beside the output once a minute and on Ctrl-C: run the same command again, or
    `cretta train --resume --output …`, to resume. With `--epochs` the result does not depend on where it was stopped.
    Beside the weights lie a log (.csv) and the training curve (.png).

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
    from cretta.training import Recipe, checkpoint_settings

    check_output(output, (".safetensors",))
    if output.exists() and not overwrite:
        raise OptionError(f"{output} exists already; choose another name, or pass --overwrite.")
    if resume:
        if dataset is not None:
            raise OptionError(f"--resume takes the dataset from the checkpoint: leave out {dataset!r}.")
        settings = Settings(**checkpoint_settings(output))
    else:
        if dataset is None:
            raise OptionError(f"no dataset: give one of {', '.join(NAMED)}, a folder, or --resume.")
        recipe = Recipe(
            epochs=epochs,
            minutes=minutes,
            batch_size=batch_size,
            lr=lr,
            warmup=warmup,
            weight_decay=weight_decay,
            augmix=augmix,
            jsd=jsd,
            progressive=progressive,
            average=average,
            holdout=holdout,
            learn=learn,
            best=best,
            backend=backend,
            seed=seed,
        )
        places = [str(path) if path else None for path in (root, test)]
        settings = Settings(
            dataset, architecture, init, places[0], places[1], size, threads, dataclasses.asdict(recipe)
        )
    if settings.dataset == "pacs":
        _train_each_domain(settings, output, device, save_every)
    else:
        _report(*_train(settings, output, device, save_every), output)


def _train_each_domain(settings: Settings, output: Path, device: str, save_every: float) -> None:
    """Train one model on each domain of PACS that has none yet."""
    from cretta.data.pacs import DOMAINS as PACS_DOMAINS
    from cretta.data.registry import dataset_path

    if "{source}" not in output.name:
        raise OptionError(
            f"--output {output}: for pacs, give a name with {{source}}, as in pacs-{{source}}.safetensors."
        )
    folder = dataset_path("pacs", Path(settings.root) if settings.root else None)
    for domain in PACS_DOMAINS:
        weights = output.with_name(output.name.replace("{source}", domain))
        if not weights.exists():
            mine = dataclasses.replace(settings, dataset=str(folder / domain))
            _report(*_train(mine, weights, device, save_every), weights)


def _report(trained: Trained, testing: ImageDataset | None, output: Path) -> None:
    message = f"{trained.epochs:.1f} epochs in {trained.minutes:.1f} minutes"
    if trained.log and not math.isnan(trained.log[-1].accuracy):
        message += f"; held-out images: accuracy {100 * max(row.accuracy for row in trained.log):.2f} % at best"
    if testing is not None:
        message += (
            f"; {testing.name}, {len(testing)} images: accuracy {100 * trained.accuracy:.2f} %, "
            f"ECE {100 * trained.calibration_error:.2f} %"
        )
    console.print(f"{message}.\nWeights: {output}", soft_wrap=True)


def _train(settings: Settings, output: Path, device: str, save_every: float) -> tuple[Trained, ImageDataset | None]:
    import torch
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from cretta.cli.progress import bars
    from cretta.models import build
    from cretta.models.classifier import Classifier
    from cretta.models.open import open_model
    from cretta.models.weights import warm_start
    from cretta.training import Recipe, train
    from cretta.training.curve import draw_curve

    recipe = Recipe(**settings.recipe)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    training, testing = _datasets(settings)
    torch.manual_seed(recipe.seed)
    model = build(settings.architecture, classes=len(training.classes))
    if settings.init is not None:
        source = open_model(settings.init).net
        if not isinstance(source, Classifier):
            raise OptionError(f"--init {settings.init}: expected a WideResNet or ResNet of cretta.models.")
        replaced = warm_start(model, source)
        if replaced:
            console.print(f"not taken from {settings.init}, for their shape differs: {', '.join(replaced)}")
    columns = BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[details]}")
    with bars(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(f"{settings.architecture} on {training.name}", total=1.0, details="")

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
                "architecture": settings.architecture,
                "classes": list(training.classes),
                "dataset": training.name,
                "init": settings.init,
            },
            settings=dataclasses.asdict(settings),
            device=parse.device(device),
            save_every=save_every,
            progress=show,
        )
    draw_curve(trained.log, output.with_suffix(".png"), f"{settings.architecture} on {training.name}")
    return trained, testing


def _datasets(settings: Settings) -> tuple[ImageDataset, ImageDataset | None]:
    """Return the training images, and those to test on."""
    from cretta.cli.datasets import NAMED
    from cretta.data import image_folder
    from cretta.data.registry import DATASETS

    name, root = settings.dataset, Path(settings.root) if settings.root else None
    if name in NAMED:
        record = DATASETS[name]
        return record.open("train", root, None), record.open("test", root, None)
    if not Path(name).is_dir():
        raise unknown("dataset", name, (*NAMED, "or a folder"))
    mine = image_folder(name, labelled=True, size=settings.size)
    if settings.test is None:
        return mine, None
    return mine, image_folder(settings.test, labelled=True, classes=mine.classes, size=settings.size)
