"""ImageNet's validation set, ImageNet-C, and image lists in CSV files."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cretta.data.dataset import FileDataset, Size
from cretta.data.folder import class_folders, corrupted_folder, existing, numbered, some, subfolders
from cretta.errors import OptionError, StateError

CLASSES = 1000


def imagenet_validation(
    folder: str | Path, *, wnids: Sequence[str] | None = None, size: Size = 224, shorter: int | None = None
) -> FileDataset:
    """The validation set as class folders: ``<folder>/<wnid>/*.JPEG``. The class is the place among the sorted wnids.

    A part of the classes needs ``wnids``, all in order: from the folders alone, the numbers would be wrong.
    """
    root = existing(folder)
    names = wnids_of(root, wnids, CLASSES)
    files, labels = class_folders(root, names, every=wnids is None)
    return FileDataset("imagenet", files, labels, names, "", size, shorter)


def imagenet_c(
    root: str | Path,
    corruption: str,
    severity: int = 5,
    *,
    wnids: Sequence[str] | None = None,
    size: Size = None,
    shorter: int | None = None,
) -> FileDataset:
    """ImageNet-C, ``<root>/<corruption>/<severity>/<wnid>/*.JPEG``; its images have 224 px already."""
    folder, domain = corrupted_folder(root, corruption, severity)
    names = wnids_of(folder, wnids, CLASSES)
    files, labels = class_folders(folder, names, every=wnids is None)
    return FileDataset("imagenet-c", files, labels, names, domain, size, shorter)


def labelled_csv(
    images: str | Path,
    table: str | Path,
    *,
    classes: Sequence[str] | int | None = None,
    name: str | None = None,
    domain: str = "",
    size: Size = None,
    shorter: int | None = None,
) -> FileDataset:
    """Images of a folder as a CSV file lists them, with the columns ``file`` and ``label``, in its order.

    Labels are numbers from 0, or names of ``classes``. ``classes`` may be how many there are; by default as many as
    the largest number asks for, or the names that occur, sorted.
    """
    root, path = existing(images), Path(table)
    rows = _rows(path)
    written = [label for _, label in rows]
    names = numbered(classes) if isinstance(classes, int | np.integer) else tuple(classes or ())
    # Names may be digits themselves ("3", "8"): where all of them are names, they are not numbers.
    if all(label.isdecimal() for label in written) and not set(written) <= set(names):
        names = names or numbered(max(map(int, written)) + 1)
        places = {label: int(label) for label in written if int(label) < len(names)}
    else:
        names = names or tuple(sorted(set(written)))
        places = {each: place for place, each in enumerate(names)}
    strange = sorted(set(written) - set(places))
    if strange:
        raise StateError(f"{path}: label {some(strange)} is none of the {len(names)} classes ({some(names)}).")
    labels = np.asarray([places[label] for label in written], np.int64)
    files = tuple(root / file for file, _ in rows)
    lost = [str(file) for file in files if not file.is_file()]
    if lost:
        raise StateError(f"{path} lists {len(lost)} images that are not there, such as {lost[0]}: restore them.")
    return FileDataset(name or path.stem, files, labels, names, domain, size, shorter)


def wnids_of(folder: Path, wnids: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """The sorted class folders, or ``wnids`` if given."""
    if wnids is not None:
        if len(set(wnids)) != len(wnids):
            raise OptionError("wnids names a class twice: give each once.")
        return tuple(wnids)
    names = tuple(each.name for each in subfolders(folder))
    if len(names) != count:
        raise StateError(
            f"{folder} holds {len(names)} class folders, not {count}: give the folder that holds them all, or, for a "
            f"part of them, wnids= with all {count} in order."
        )
    return names


def _rows(path: Path) -> list[tuple[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            columns = reader.fieldnames or []
    except (OSError, ValueError, csv.Error) as error:
        raise StateError(f"{path} cannot be read as a CSV file ({error}): restore it.") from error
    if not {"file", "label"} <= set(columns):
        raise StateError(f"{path} has the columns {', '.join(columns) or 'none'}: needed are file and label.")
    if not rows:
        raise StateError(f"{path} lists no images: give a line to each.")
    for number, row in enumerate(rows, 2):
        if not row["file"] or not row["label"]:
            raise StateError(f"{path}, line {number} lacks a file or a label: complete or remove it.")
    return [(row["file"], row["label"].strip()) for row in rows]
