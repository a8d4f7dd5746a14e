"""`cretta predict`: predictions for a folder of images, by a model that adapts to them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cretta.cli import parse
from cretta.cli.console import app, console, note
from cretta.cli.options import (
    ADAPTATION,
    IMAGES,
    MODEL,
    ArchitectureOption,
    ClassesOption,
    DeviceOption,
    MeanOption,
    OverwriteOption,
    SeedOption,
    ShorterOption,
    StdOption,
)
from cretta.errors import OptionError
from cretta.options import unknown

if TYPE_CHECKING:
    from rich.progress import TaskID
    from rich.table import Table

    from cretta.adapter import Adapter
    from cretta.buffer import SourceBuffer
    from cretta.data import ImageDataset
    from cretta.models.open import OpenedModel
    from cretta.predict import Summary

LABELS = {"auto": None, "yes": True, "no": False}
ORDERS = ("auto", "files", "random")
SHOWN = 3
"""Warnings of the guard that are printed; the output has all of them."""


@app.command(resumable=True)
def predict(
    images: Annotated[
        Path,
        typer.Argument(
            help="A folder of images, flat, nested or with a folder a class; or a .npy, .npz or .parquet file.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="wrn-40-2-cifar10 (comes with cretta); a checkpoint, with --architecture and --classes; "
            "module:callable; or a file of torch.export.save (.pt2).",
            rich_help_panel=MODEL,
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option(help="File for the predictions (.parquet or .csv).")] = Path(
        "predictions.parquet"
    ),
    method: Annotated[str, typer.Option(help="How to adapt; source does not.", rich_help_panel=ADAPTATION)] = "cretta",
    buffer: Annotated[
        str | None,
        typer.Option(
            help="Source images for cretta and eata: a file that `cretta buffer build` made, or embedded (the CIFAR-10 "
            "images that come with cretta).",
            rich_help_panel=ADAPTATION,
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="A named set of options: cifar100, …", rich_help_panel=ADAPTATION, show_default=False),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the method, key=value; may be given several times.",
            rich_help_panel=ADAPTATION,
            show_default=False,
        ),
    ] = None,
    statistics: Annotated[
        str | None,
        typer.Option(
            help="What BatchNorm normalises with: batch, running, mixture or moving.",
            rich_help_panel=ADAPTATION,
            show_default="the method's",
        ),
    ] = None,
    guard: Annotated[
        str | None,
        typer.Option(
            help="When the model collapses: warn, rollback or reset.", rich_help_panel=ADAPTATION, show_default="off"
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="How many images at once.", rich_help_panel=ADAPTATION)] = 200,
    seed: SeedOption = 0,
    continue_from: Annotated[
        Path | None,
        typer.Option(
            help="Begin with the state that an earlier run kept by --keep-state.",
            rich_help_panel=ADAPTATION,
            show_default=False,
        ),
    ] = None,
    keep_state: Annotated[
        Path | None,
        typer.Option(help="Save the adapted state here at the end (.safetensors).", show_default=False),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="224: scale the shorter side to 256, cut out the centre. 32x32: scale to just that.",
            rich_help_panel=IMAGES,
            show_default="the model's, if known",
        ),
    ] = None,
    shorter: ShorterOption = None,
    order: Annotated[
        str,
        typer.Option(
            help="files (by name), random, or auto: random if images lie in folders, which hold like images.",
            rich_help_panel=IMAGES,
        ),
    ] = "auto",
    labels: Annotated[
        str,
        typer.Option(
            help="Whether folders are classes: yes, no, or auto, if they fit the model. classes.txt in the folder or "
            "beside it gives their order.",
            rich_help_panel=IMAGES,
        ),
    ] = "auto",
    class_names: Annotated[
        Path | None,
        typer.Option(
            help="A text file with the names of the model's classes, one per line, in the model's order.",
            rich_help_panel=MODEL,
            show_default=False,
        ),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(help="At an image that cannot be read: stop, or skip it with a note.", rich_help_panel=IMAGES),
    ] = "stop",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Threads for reading.", rich_help_panel=IMAGES, show_default="one a core"),
    ] = None,
    architecture: ArchitectureOption = None,
    classes: ClassesOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    device: DeviceOption = "auto",
    overwrite: OverwriteOption = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard unfinished work and start over.")] = False,
    save_every: Annotated[float, typer.Option(help="Seconds between saves of the work so far.")] = 10.0,
) -> None:
    r"""Predict a folder of images with a model that adapts to them as it goes; no labels needed.

    Every image gets a row: path, batch, prediction, class, confidence, energy, whether the batch was adapted to and, if
    not, why; for class folders that fit the model also label and correct, and accuracy and calibration error at the
    end. If it is stopped, by Ctrl-C, a crash or a full disk, **the same command goes on where it was**, and the file
    comes out as if nothing had happened.

        # photos of your own, with the model and the source images of cretta
        cretta predict photos/ --model wrn-40-2-cifar10 --buffer embedded

        # your own network, from net.py in this folder, with source images
        # from its training set
        cretta buffer build train/ --output source.safetensors --image-size 224
        cretta predict photos/ --model net:make --buffer source.safetensors \
            --size 224 --output photos.csv

        # without source images, by another method; then the next folder,
        # from where that got to
        cretta predict monday/ --model net.pt2 --method tent \
            --option lr=0.0005 --keep-state state.safetensors
        cretta predict tuesday/ --model net.pt2 --method tent \
            --option lr=0.0005 --continue-from state.safetensors

        # small batches; not adapting at all
        cretta predict photos/ --model net:make --method tent \
            --batch-size 1 --statistics moving
        cretta predict photos/ --model net:make --method source

        # all options of a method
        python -c "import cretta; help(cretta.methods.get('tent'))"
    """
    from cretta import methods
    from cretta.cli.datasets import note_order
    from cretta.cli.progress import progress_bar
    from cretta.data import FileDataset
    from cretta.data.folder import class_file, some, subfolders
    from cretta.data.folder import class_names as read_class_names
    from cretta.models.open import open_model
    from cretta.predict import predict as predict_dataset

    with _warnings_as_notes():
        if labels not in LABELS:
            raise unknown("--labels", labels, LABELS)
        if order not in ORDERS:
            raise unknown("--order", order, ORDERS)
        chosen = parse.options(method, option or [])
        for name, value in (("statistics", statistics), ("guard", guard)):
            if value is not None and name in chosen:
                raise OptionError(f"--{name} and --option {name}=… say the same thing; give one of them.")
            chosen |= {name: value} if value is not None else {}
        chosen.setdefault("seed", seed)
        opened = open_model(
            model,
            architecture=architecture,
            classes=classes,
            mean=parse.numbers(mean, "--mean"),
            std=parse.numbers(std, "--std"),
            device=parse.device(device),
        )
        opened.check(method, chosen.get("statistics"))
        names = opened.classes if class_names is None else read_class_names(class_names)
        if labels == "yes" and images.is_dir() and not subfolders(images):
            raise OptionError(
                f"--labels yes: {images} has no class folders; move the images into one folder per class, or take them "
                "without labels by --labels no."
            )
        dataset = _dataset(images, size, shorter, LABELS[labels], names, opened)
        opened.check_batches(len(dataset), batch_size, source_data=methods.get(method).facts.source_data)
        source = None if buffer is None else open_buffer(buffer, seed)
        adapter = _adapter(opened, method, source, preset, chosen)
        if continue_from is not None:
            adapter.restore(continue_from)
        shuffle = order == "random" or (order == "auto" and _in_folders(dataset))
        _advise(adapter, dataset, opened, buffer, batch_size, shuffle=shuffle and order == "auto")
        with progress_bar() as progress:
            bar: list[TaskID] = []

            def hear(count: int) -> None:
                # Begun only now: images done before would count as speed.
                if not bar:
                    bar.append(progress.add_task(method, total=len(dataset), completed=count))
                progress.update(bar[0], completed=count)

            summary = predict_dataset(
                dataset,
                adapter,
                output=output,
                source=images,
                batch_size=batch_size,
                shuffle=shuffle,
                classes=names,
                labelled=LABELS[labels],
                workers=workers,
                on_error=on_error,
                overwrite=overwrite,
                restart=restart,
                save_every=save_every,
                state=keep_state,
                facts={"model": model, "model file": _file_hash(Path(model))},
                progress=hear,
            )
        if labels == "auto" and summary.accuracy is None and _in_folders(dataset):
            which = f"classes of the model ({some(names)})" if names else "classes of the model"
            remedy = "--class-names FILE, a list of them in the model's order," if names else "--labels yes"
            note(f"the folders are not the {which}, so they are not used as labels; {remedy} makes them labels.")
        elif summary.accuracy is not None and isinstance(dataset, FileDataset) and not names and not class_file(images):
            note_order(images, dataset.classes)
    console.print(_table(summary, learns=adapter.facts.updates != "nothing"))
    if keep_state is not None:
        console.print(f"State: {keep_state}", soft_wrap=True)
    console.print(f"Predictions: {summary.output}", soft_wrap=True)


def open_buffer(spec: str, seed: int) -> SourceBuffer:
    """Return a buffer from a file, or from the images that come with cretta."""
    from cretta.buffer import SourceBuffer
    from cretta.data import embedded

    if spec != "embedded":
        return SourceBuffer.load(spec)
    train = embedded("train")
    return SourceBuffer.sample(train, size=len(train), seed=seed)


def _dataset(
    images: Path,
    size: str | None,
    shorter: int | None,
    labelled: bool | None,
    names: tuple[str, ...],
    opened: OpenedModel,
) -> ImageDataset:
    from cretta.predict import open_images

    sides = parse.size(size)
    if sides is None and images.suffix not in (".npy", ".npz"):
        if len(opened.shape) == 4 and opened.shape[2] is not None and opened.shape[3] is not None:
            sides = (opened.shape[2], opened.shape[3])
        elif opened.side is not None:
            # Images of just that size stay as they are.
            sides, shorter = opened.side, shorter or opened.side
    return open_images(images, size=sides, shorter=shorter, labelled=labelled, classes=names)


def _adapter(
    opened: OpenedModel, method: str, buffer: SourceBuffer | None, preset: str | None, options: dict[str, Any]
) -> Adapter[Any]:
    from cretta import methods

    try:
        return methods.adapt(opened.net, method, buffer=buffer, preset=preset, **options)
    except OptionError as wrong:
        if buffer is None and methods.get(method).facts.source_data and "source samples" in str(wrong):
            raise OptionError(
                f"--method {method} compares with source images: give --buffer FILE (cretta buffer build makes it from "
                "training images), --buffer embedded for the model that comes with cretta, or another method, such as "
                "tent; cretta does without by --option source=target."
            ) from wrong
        raise


def _in_folders(dataset: ImageDataset) -> bool:
    from cretta.data import FileDataset

    return isinstance(dataset, FileDataset) and len({file.parent for file in dataset.files}) > 1


def _advise(
    adapter: Adapter[Any],
    dataset: ImageDataset,
    opened: OpenedModel,
    buffer: str | None,
    batch_size: int,
    *,
    shuffle: bool,
) -> None:
    """What is allowed and probably not meant."""
    last = len(dataset) % batch_size
    if adapter.statistics == "batch" and batch_size < 8:
        note(
            f"statistics of {batch_size} image{'s' * (batch_size > 1)} alone mislead; --statistics moving averages "
            "over the images that came before, --statistics running uses those of training."
        )
    elif adapter.statistics == "batch" and 0 < last < 8 < len(dataset):
        note(f"the last batch has {last} of {batch_size} images: too few for statistics of the batch to be good ones.")
    if buffer == "embedded" and opened.kind != "shipped" and adapter.facts.source_data:
        note("the embedded images are of CIFAR-10: right only for a model that was trained on it.")
    if shuffle:
        note("images of several folders come in random order, so that batches are mixed; --order files keeps theirs.")


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Warnings meant for the user are notes; of the guard's only the first few, for rows have them all."""
    from cretta.monitor.collapse import CollapseWarning

    others, collapses = warnings.showwarning, 0

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        nonlocal collapses
        if category is CollapseWarning:
            collapses += 1
            if collapses <= SHOWN:
                note(f"{message}{' (the column note tells of others)' if collapses == SHOWN else ''}")
        elif category is UserWarning:
            note(str(message))
        else:
            others(message, category, *place, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", CollapseWarning)
        warnings.showwarning = show
        yield


def _file_hash(path: Path) -> str | None:
    import hashlib

    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _table(summary: Summary, *, learns: bool) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    read = summary.images - summary.unreadable
    unreadable = f", {summary.unreadable} of them could not be read" if summary.unreadable else ""
    table.add_row("images", f"{summary.images}{unreadable}")
    table.add_row("batches", f"{summary.batches}{f', {summary.adapted} of them adapted to' if learns else ''}")
    for reason, times in summary.notes.most_common(3):
        table.add_row("", f"{times} × {reason}")
    table.add_row("mean confidence %", f"{100 * summary.mean_confidence:.1f}")
    table.add_row("mean energy", f"{summary.mean_energy:.2f}")
    shares = [
        f"{f'class {number}' if name in (None, str(number)) else name} {100 * count / read:.1f}"
        for (number, name), count in summary.predicted.most_common(5)
    ]
    more = f" and {len(summary.predicted) - 5} more" if len(summary.predicted) > 5 else ""
    table.add_row("predicted %", ", ".join(shares) + more)
    if summary.accuracy is not None and summary.calibration_error is not None:
        table.add_row("accuracy %", f"{100 * summary.accuracy:.1f}")
        table.add_row("ECE %", f"{100 * summary.calibration_error:.1f}")
    earlier = f", after {summary.resumed} images done before" if summary.resumed else ""
    if summary.images > summary.resumed:
        table.add_row("speed", f"{summary.images_per_second:.0f} images/s{earlier}")
    return table
