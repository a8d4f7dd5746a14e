"""`cretta predict`: predictions for a folder of images, by a model that adapts to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cretta.cli import options as shared
from cretta.cli import parse
from cretta.cli.app import app, as_options
from cretta.cli.console import note, print_table, say
from cretta.cli.options import ADAPTATION, IMAGES, MODEL, argument, flag, option
from cretta.errors import OptionError
from cretta.options import known

if TYPE_CHECKING:
    from cretta.monitor import MonitorSummary
    from cretta.predict import Summary

LABELS = {"auto": None, "yes": True, "no": False}
ORDERS = ("auto", "files", "random")
WARNINGS = 3
"""Warnings of the guard that are printed; the output has all of them."""


@app.command(resumable=True)
def predict(
    ctx: typer.Context,
    images: Path = argument(..., "A folder of images, flat, nested or with one folder per class; or a .npy file."),
    model: str = option(
        ...,
        "wrn-40-2-cifar10 or wrn-40-2-cifar100 (shipped); timm:NAME, torchvision:NAME or hf:NAME; a checkpoint, with "
        "--architecture and --classes; or module:callable.",
        MODEL,
    ),
    output: Path = option(Path("predictions.parquet"), "File for the predictions (.parquet or .csv)."),
    method: str = shared.METHOD,
    buffer: str | None = option(
        None,
        "Source images for cretta and eata: a file of `cretta buffer build`, or embedded (the CIFAR-10 images that "
        "come with cretta).",
        ADAPTATION,
    ),
    preset: str | None = shared.PRESET,
    option: list[str] | None = shared.OPTION,
    statistics: str | None = shared.statistics("the method's"),
    guard: str | None = shared.GUARD,
    batch_size: int = option(200, "Images per batch.", ADAPTATION, min=1),
    seed: int = shared.SEED,
    continue_from: Path | None = option(None, "Start from a state that --keep-state saved.", ADAPTATION),
    keep_state: Path | None = option(None, "Save the adapted state here at the end (.safetensors)."),
    size: str | None = shared.size("the model's, if known"),
    order: str = option("auto", "files (by name), random, or auto: random if they are in several folders.", IMAGES),
    labels: str = option(
        "auto",
        "Whether folders are classes: yes, no, or auto (if they are classes of the model). A file classes.txt in the "
        "folder or beside it gives their order.",
        IMAGES,
    ),
    class_names: Path | None = shared.CLASS_NAMES,
    on_error: str = option("stop", "If an image cannot be read: stop, or skip it and note it in the output.", IMAGES),
    workers: int | None = option(None, "Threads that read images.", IMAGES, shown="one per core", min=1),
    architecture: str | None = shared.ARCHITECTURE,
    classes: int | None = shared.CLASSES,
    mean: str | None = shared.MEAN,
    std: str | None = shared.STD,
    device: str = shared.DEVICE,
    overwrite: bool = shared.OVERWRITE,
    restart: bool = flag("--restart", "Discard unfinished work and start over."),
    save_every: float = option(10.0, "Seconds between saves of the work so far."),
) -> None:
    r"""Predict a folder of images with a model that adapts to them; no labels needed.

    Every image gets a row: path, batch, prediction, class, confidence, energy, whether the model adapted to its batch
    and, if not, why. If the folders are classes of the model, rows also have label and correct, and accuracy and
    calibration error are printed. **Resumable**: after Ctrl-C, a crash or a full disk, run the same command again; the
    file is the same as without the interruption.

        # your photos, with the model and the source images of cretta
        cretta predict photos/ --model wrn-40-2-cifar10 --buffer embedded

        # your own network, from net.py in this folder, with source images
        # from its training set
        cretta buffer build train/ --output source.safetensors --image-size 224
        cretta predict photos/ --model net:make --buffer source.safetensors \
            --size 224 --output photos.csv

        # without source images, by another method; then the next folder,
        # from the adapted state
        cretta predict monday/ --model net:make --method tent \
            --option lr=0.0005 --keep-state state.safetensors
        cretta predict tuesday/ --model net:make --method tent \
            --option lr=0.0005 --continue-from state.safetensors

        # small batches; without adaptation
        cretta predict photos/ --model net:make --method tent \
            --batch-size 1 --statistics moving
        cretta predict photos/ --model net:make --method source

        # all options of a method
        python -c "import cretta; help(cretta.methods.get('tent'))"
    """
    from cretta.advise import label_order
    from cretta.cli.datasets import note_order
    from cretta.cli.progress import progress_bar, task_updates
    from cretta.data import FileDataset
    from cretta.data.folder import class_file
    from cretta.data.folder import class_names as read_class_names
    from cretta.data.registry import dataset as registered
    from cretta.methods import get
    from cretta.monitor import Monitor
    from cretta.predict import open_images
    from cretta.predict import predict as predict_images
    from cretta.predict.advice import batch_advice, in_folders, label_advice, loose_advice

    def advise(hints: Iterable[str]) -> None:
        for hint in hints:
            note(as_options(hint, ctx.command.params))

    labeled = LABELS[known("--labels", labels, LABELS)]
    known("--order", order, ORDERS)
    if keep_state is not None and keep_state.suffix.lower() != ".safetensors":
        raise OptionError(f"--keep-state {keep_state}: expected a name that ends in .safetensors.")
    action = parse.guard(guard)
    if guard is None and not any(text.startswith("guard=") for text in option or []):
        action = "rollback" if get(method).facts.updates != "nothing" else None
    # A seed of 0 is the default: --option sets another one.
    chosen = parse.options(method, option or [], statistics=statistics, guard=action, seed=seed or None)
    options = {"seed": seed, **chosen}
    with collapses_as_notes():
        opened = parse.model(model, architecture, classes, mean, std, device)
        names = opened.classes if class_names is None else read_class_names(class_names)
        dataset = open_images(images, size=parse.size_for(opened, images, size), labeled=labeled, classes=names)
        adapter = parse.adapter(opened.net, method, buffer, preset, options)
        if continue_from is not None:
            adapter.restore(continue_from)
        loose = [] if labels == "no" else list(loose_advice(dataset, images, names))
        advise([*loose, *batch_advice(adapter, len(dataset), batch_size)])
        monitor = Monitor(adapter, samples=200)
        cifar = registered("cifar10").class_names
        if buffer == "embedded" and opened.classes != cifar and adapter.facts.source_data == "required":
            note("the embedded images are of CIFAR-10: use them only with a model that was trained on it.")
        shuffle = order == "random" or (order == "auto" and in_folders(dataset))
        if shuffle and order == "auto":
            note("the images of several folders are shuffled; --order files keeps the order of the files.")
        with progress_bar() as progress:
            update = task_updates(progress)
            summary = predict_images(
                dataset,
                adapter,
                output=output,
                source=images,
                batch_size=batch_size,
                shuffle=shuffle,
                classes=names,
                labeled=labeled,
                workers=workers,
                on_error=on_error,
                overwrite=overwrite,
                restart=restart,
                save_every=save_every,
                state=keep_state,
                facts={"model": model},
                progress=lambda done: update(method, done, len(dataset)),
            )
    if labels == "auto" and summary.accuracy is None and not loose:
        advise(label_advice(dataset, names))
    elif summary.accuracy is not None and isinstance(dataset, FileDataset) and not names and not class_file(images):
        note_order(images, dataset.classes)
    advise(f"{item.seen}; {item.do}." for item in label_order(monitor.source))
    print_table([*_facts(summary, learns=adapter.facts.updates != "nothing"), *_monitored(monitor.summary())])
    if keep_state is not None:
        say(f"State: {keep_state}")
    say(f"Predictions: {summary.output}")


@contextmanager
def collapses_as_notes() -> Iterator[None]:
    """Print the first few warnings of the guard as notes."""
    import warnings

    from cretta import CollapseWarning

    show_others, collapses = warnings.showwarning, 0

    def show(message: Warning | str, category: type[Warning], *position: Any, **details: Any) -> None:
        nonlocal collapses
        collapses += category is CollapseWarning
        if category is not CollapseWarning:
            show_others(message, category, *position, **details)
        elif collapses <= WARNINGS:
            note(f"{message}{' (others are in the column note)' if collapses == WARNINGS else ''}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", CollapseWarning)
        warnings.showwarning = show
        yield


def _monitored(summary: MonitorSummary) -> Iterator[tuple[str, str]]:
    """Yield rows on how good the predictions of the last images are, as far as that is known without labels."""
    if summary.alarms:
        yield "alarms", f"{summary.alarms}"
    if summary.estimates and summary.source_accuracy is not None:
        shown = ", ".join(f"{summary.estimates[name] * 100:.0f} ({name.upper()})" for name in ("atc", "cot"))
        yield "estimated accuracy %", f"{shown}, source images {100 * summary.source_accuracy:.0f}"


def _facts(summary: Summary, *, learns: bool) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table that is printed at the end."""
    unreadable = f", {summary.unreadable} of them could not be read" if summary.unreadable else ""
    yield "images", f"{summary.images}{unreadable}"
    yield "batches", f"{summary.batches}{f', adapted to {summary.adapted}' if learns else ''}"
    for reason, times in summary.notes.most_common(3):
        yield "", f"{times} × {reason}"
    yield "mean confidence %", f"{100 * summary.mean_confidence:.1f}"
    yield "mean energy", f"{summary.mean_energy:.2f}"
    shares = [
        f"{f'class {number}:' if name in (None, str(number)) else name} "
        f"{100 * count / (summary.images - summary.unreadable):.1f}"
        for (number, name), count in summary.predicted.most_common(5)
    ]
    more = f" and {len(summary.predicted) - 5} more" if len(summary.predicted) > 5 else ""
    yield "predicted %", ", ".join(shares) + more
    if summary.accuracy is not None and summary.calibration_error is not None:
        yield "accuracy %", f"{100 * summary.accuracy:.1f}"
        yield "ECE %", f"{100 * summary.calibration_error:.1f}"
    earlier = f", after {summary.resumed} images done before" if summary.resumed else ""
    if summary.images > summary.resumed:
        yield "speed", f"{summary.images_per_second:.0f} images/s{earlier}"
