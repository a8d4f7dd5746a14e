"""Tiny-ImageNet-200 in its official layout, and Tiny-ImageNet-C."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from cretta.data.dataset import FileDataset, Labels, Size
from cretta.data.folder import class_folders, corrupted_folder, existing, images_in, some
from cretta.data.imagenet import wnids_of
from cretta.errors import OptionError, StateError

Split = Literal["train", "val"]

CLASSES = 200


def tiny_imagenet_200(root: str | Path, split: Split = "val", *, size: Size = None) -> FileDataset:
    """Training or validation images of Tiny-ImageNet-200, 64 px. The class is the place among the sorted wnids.

    That is the numbering of Tiny-ImageNet-C and of models trained on class folders; wnids.txt has another order.
    The validation images come in the official order, or class by class if they were sorted into class folders.
    """
    if split not in get_args(Split):
        raise OptionError(f"split={split!r}: give one of {', '.join(get_args(Split))}.")
    folder = existing(root)
    wnids = sorted(_lines(folder / "wnids.txt"))
    if len(set(wnids)) != len(wnids) or not wnids:
        raise StateError(f"{folder / 'wnids.txt'} is empty or names a class twice: restore it.")
    names = _names(folder / "words.txt", wnids)
    if split == "val" and (folder / "val" / "images").is_dir():
        files, labels = _annotated(folder / "val", wnids)
    else:
        files, labels = class_folders(existing(folder / split), wnids, every=True)
    return FileDataset("tiny-imagenet", files, labels, names, "", size)


def tiny_imagenet_c(
    root: str | Path, corruption: str, severity: int = 5, *, wnids: Sequence[str] | None = None, size: Size = None
) -> FileDataset:
    """Tiny-ImageNet-C, ``<root>/<corruption>/<severity>/<wnid>/*.JPEG``; ``wnids`` as in :func:`imagenet_c`."""
    folder, domain = corrupted_folder(root, corruption, severity)
    names = wnids_of(folder, wnids, CLASSES)
    files, labels = class_folders(folder, names, every=wnids is None)
    return FileDataset("tiny-imagenet-c", files, labels, names, domain, size)


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise StateError(f"{file} cannot be read ({error}): restore it, or give the folder that holds it.") from error


def _names(file: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """The first word for each wnid, which is unique among the 200; the wnid itself where there is none."""
    words = dict(line.split("\t", 1) for line in _lines(file) if "\t" in line) if file.exists() else {}
    return tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids)


def _annotated(folder: Path, wnids: Sequence[str]) -> tuple[tuple[Path, ...], Labels]:
    table = folder / "val_annotations.txt"
    rows = [line.split("\t") for line in _lines(table)]
    short = [row[0] for row in rows if len(row) < 2]
    if short or not rows:
        raise StateError(f"{table} {f'has no class for {short[0]}' if rows else 'is empty'}: restore it.")
    places = {wnid: place for place, wnid in enumerate(wnids)}
    unknown = sorted({row[1] for row in rows} - set(places))
    if unknown:
        raise StateError(f"{table} names the class {some(unknown)}, which wnids.txt does not: restore both.")
    there = {path.name for path in images_in(folder / "images")}
    listed = {row[0] for row in rows}
    if len(listed) != len(rows) or listed != there:
        raise StateError(
            f"{table} has {len(rows)} lines for {len(there)} images; {len(listed - there)} are lost, "
            f"{len(there - listed)} have no line, such as {some(sorted(listed ^ there)[:1]) or rows[0][0]}. "
            "Restore both."
        )
    labels = np.asarray([places[row[1]] for row in rows], np.int64)
    return tuple(folder / "images" / row[0] for row in rows), labels
