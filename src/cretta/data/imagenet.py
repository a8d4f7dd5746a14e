"""ImageNet's validation set, Tiny-ImageNet, and their corrupted versions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from cretta.data.dataset import FileDataset, Labels, Size
from cretta.data.domains import domain_name
from cretta.data.folder import class_folders, existing_folder, images_in, some, subfolders
from cretta.errors import OptionError, StateError

CLASSES = 1000
TINY_CLASSES = 200
TinySplit = Literal["train", "val"]


def imagenet_validation(folder: str | Path, *, size: Size = 224) -> FileDataset:
    """Return the validation set in class folders: ``<folder>/<wnid>/*.JPEG``. Classes are numbered by sorted wnid."""
    return _all_classes("imagenet", existing_folder(folder), CLASSES, "", size)


def imagenet_c(root: str | Path, corruption: str, severity: int = 5, *, size: Size = None) -> FileDataset:
    """Return a domain of ImageNet-C, ``<root>/<corruption>/<severity>/<wnid>/*.JPEG``; its images have 224 px."""
    return _corrupted("imagenet-c", CLASSES, root, corruption, severity, size)


def tiny_imagenet(root: str | Path, split: TinySplit = "val", *, size: Size = None) -> FileDataset:
    """Return training or validation images of Tiny-ImageNet-200, 64 px. Classes are numbered by sorted wnid.

    That is the numbering of Tiny-ImageNet-C and of models trained on class folders; wnids.txt has another order.
    The validation images come in the official order, or class by class if they were sorted into class folders.
    """
    if split not in get_args(TinySplit):
        raise OptionError(f"split={split!r}: give one of {', '.join(get_args(TinySplit))}.")
    folder = existing_folder(root)
    wnids = sorted(_lines(folder / "wnids.txt"))
    if len(set(wnids)) != len(wnids) or not wnids:
        raise StateError(f"{folder / 'wnids.txt'} is empty or names a class twice: restore it.")
    if split == "val" and (folder / "val" / "images").is_dir():
        files, labels = _annotated(folder / "val", wnids)
    else:
        files, labels = class_folders(existing_folder(folder / split), wnids, require_all=True)
    # The first word of each wnid is unique among the 200; a wnid without words names itself.
    file = folder / "words.txt"
    words = dict(line.split("\t", 1) for line in _lines(file) if "\t" in line) if file.exists() else {}
    names = tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids)
    return FileDataset("tiny-imagenet", files, labels, names, "", size)


def tiny_imagenet_c(root: str | Path, corruption: str, severity: int = 5, *, size: Size = None) -> FileDataset:
    """Return a domain of Tiny-ImageNet-C, in the layout of :func:`imagenet_c`."""
    return _corrupted("tiny-imagenet-c", TINY_CLASSES, root, corruption, severity, size)


def _corrupted(name: str, classes: int, root: str | Path, corruption: str, severity: int, size: Size) -> FileDataset:
    domain = domain_name(corruption, severity)
    folder = existing_folder(Path(root, domain), "the folder that holds <corruption>/<severity>/<class>/")
    return _all_classes(name, folder, classes, domain, size)


def _all_classes(name: str, folder: Path, count: int, domain: str, size: Size) -> FileDataset:
    """Return the images of class folders; raise if a class is missing, because the others would get its number."""
    wnids = tuple(path.name for path in subfolders(folder))
    if len(wnids) != count:
        raise StateError(
            f"{folder} holds {len(wnids)} class folders, not {count}: give the folder that holds them all, or read a "
            f"part of them with image_folder and classes= with all {count} in order."
        )
    files, labels = class_folders(folder, wnids, require_all=True)
    return FileDataset(name, files, labels, wnids, domain, size)


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise StateError(f"{file} cannot be read ({error}): restore it, or give the folder that holds it.") from error


def _annotated(folder: Path, wnids: Sequence[str]) -> tuple[tuple[Path, ...], Labels]:
    table = folder / "val_annotations.txt"
    rows = [line.split("\t") for line in _lines(table)]
    short = [row[0] for row in rows if len(row) < 2]
    if short or not rows:
        raise StateError(f"{table} {f'has no class for {short[0]}' if rows else 'is empty'}: restore it.")
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    unknown = sorted({row[1] for row in rows} - set(numbers))
    if unknown:
        raise StateError(f"{table} names the class {some(unknown)}, which wnids.txt does not: restore both.")
    present = {path.name for path in images_in(folder / "images")}
    listed = {row[0] for row in rows}
    if len(listed) != len(rows) or listed != present:
        raise StateError(
            f"{table} has {len(rows)} lines for {len(present)} images; {len(listed - present)} are missing, "
            f"{len(present - listed)} have no line, such as {some(sorted(listed ^ present)[:1]) or rows[0][0]}. "
            "Restore both."
        )
    labels = np.asarray([numbers[row[1]] for row in rows], np.int64)
    return tuple(folder / "images" / row[0] for row in rows), labels
