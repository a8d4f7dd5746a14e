"""The user's own images: a folder per class, one folder without labels, a list in a CSV file, or a numpy file."""

import csv
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cretta.data.dataset import ArrayDataset, FileDataset, Labels, Size, integer_labels
from cretta.errors import OptionError, StateError

CLASSES = "classes.txt"
"""A file that names the classes of a folder, one per line, in their order."""
EXTENSIONS = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"))
_EXTENSIONS = ", ".join(sorted(EXTENSIONS))


def image_folder(
    folder: str | Path,
    *,
    labeled: bool | None = None,
    classes: Sequence[str] | None = None,
    size: Size = None,
) -> FileDataset:
    """Return the images in ``<class>/…`` folders, or all images of a folder without labels (-1).

    By default, the content of the folder shows which of both it is; ``labeled=False`` takes all images below it,
    without labels. Classes are numbered as in ``classes``, which must then name every class folder, else as in a file
    classes.txt in the folder or beside it, else in alphabetical order. Images come in natural order: 2.png before
    10.png.
    """
    root = existing_folder(folder)
    flat = images_in(root)
    folders = subfolders(root)
    if labeled is None:
        if flat and any(images_below(child) for child in folders):
            raise StateError(
                f"{root} holds images both beside and inside of folders: pass labeled=False to take all without "
                "labels, or labeled=True to take those in folders."
            )
        labeled = not flat
    name = root.resolve().name
    if not labeled:
        files = tuple(images_below(root))
        if not files:
            raise StateError(f"{root} holds no images ({_EXTENSIONS}): give another folder.")
        return FileDataset(name, files, np.full(len(files), -1, np.int64), (), "", size)
    if not folders and flat:
        raise StateError(
            f"{root} holds images ({len(flat)}) and no class folders, so there are no labels: move the images into one "
            "folder per class."
        )
    if not folders:
        raise StateError(f"{root} holds neither images ({_EXTENSIONS}) nor folders of them: give another folder.")
    listed = class_file(root) if classes is None else None
    if listed is not None:
        classes = class_names(listed)
    names = tuple(child.name for child in folders) if classes is None else tuple(classes)
    files, labels = class_folders(root, names, require_all=classes is None)
    return FileDataset(name, files, labels, names, "", size)


def class_file(folder: str | Path) -> Path | None:
    """Return the file classes.txt in a folder, or beside it if it names all folders in it; None if there is none."""
    root = Path(folder).resolve()
    inside, beside = root / CLASSES, root.parent / CLASSES
    if inside.is_file():
        return inside
    applies = beside.is_file() and {child.name for child in subfolders(root)} <= set(class_names(beside))
    return beside if applies else None


def class_names(file: Path) -> tuple[str, ...]:
    """Return the lines of a text file, without numbers in front if all lines have one, as "1 001.Albatross"."""
    try:
        names = [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error  # without the path, which the message has
        raise StateError(
            f"{file} cannot be read ({reason}): give a text file with the name of one class per line."
        ) from error
    if all(re.match(r"\d+\s", name) for name in names):
        names = [name.split(maxsplit=1)[1] for name in names]
    if len(set(names)) != len(names) or not names:
        raise OptionError(
            f"{file} names {'a class twice' if names else 'no class'}: give the name of one class per line."
        )
    return tuple(names)


def labeled_csv(images: str | Path, table: str | Path, *, classes: int | None = None, size: Size = None) -> FileDataset:
    """Return the images of a folder that a CSV file lists in the columns ``file`` and ``label``, in its order.

    Labels are integers from 0; ``classes`` is the number of classes, if it does not follow from the largest label.
    """
    root, path = existing_folder(images), Path(table)
    rows = _csv_rows(path)
    labels = np.asarray([label for _, label in rows], np.int64)
    files = tuple(root / file for file, _ in rows)
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise StateError(f"{path} lists {len(missing)} images that are not there, such as {missing[0]}: restore them.")
    return FileDataset(path.stem, files, labels, numbered(classes or int(labels.max()) + 1), "", size)


def numpy_file(path: str | Path, labels: str | Path | None = None) -> ArrayDataset:
    """Return the images uint8 (N, H, W, 3) of a .npy file, mapped into memory.

    ``labels`` is another .npy file, of integers; by default all are -1. Classes are named by their number.
    """
    file = Path(path)
    images = mapped(file)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise StateError(f"{file} holds {images.dtype} of shape {images.shape}: expected images, uint8 (N, H, W, 3).")
    values = np.full(len(images), -1, np.int64)
    if labels is not None:
        values = integer_labels(mapped(Path(labels)), str(labels))
    if len(values) != len(images):
        raise StateError(f"{file} holds {len(images)} images, but there are {len(values)} labels: give one per image.")
    return ArrayDataset(file.stem, images, values, numbered(int(values.max(initial=-1)) + 1))


def existing_folder(folder: str | Path, remedy: str = "a folder that exists") -> Path:
    """Return ``folder`` as a path; raise if there is no such folder: ``remedy`` says what to give."""
    root = Path(folder)
    if not root.is_dir():
        raise StateError(f"{root} is {'a file' if root.exists() else 'not there'}: give {remedy}.")
    return root


def natural(path: Path | str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key under which 2.png comes before 10.png."""
    text = str(path)
    parts = re.split(r"([0-9]+)", text)
    return tuple(int(part) if number % 2 else part for number, part in enumerate(parts)), text


def subfolders(root: Path) -> list[Path]:
    """Return the folders directly below ``root`` by name, without hidden ones."""
    return sorted((path for path in root.iterdir() if path.is_dir() and path.name[0] != "."), key=lambda p: p.name)


def images_in(folder: Path) -> list[Path]:
    """Return the images directly below ``folder``, in natural order."""
    images = [path for path in folder.iterdir() if _is_image(path.name) and path.is_file()]
    return sorted(images, key=lambda path: natural(path.name))


def images_below(folder: Path) -> list[Path]:
    """Return the images at any depth below ``folder``, in natural order."""
    images = []
    # os.walk distinguishes files from folders without a system call for each, which is faster for ImageNet.
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "."]
        images += [Path(parent, file) for file in files if _is_image(file)]
    return sorted(images, key=lambda path: natural(path.as_posix()))


def class_folders(root: Path, classes: Sequence[str], *, require_all: bool) -> tuple[tuple[Path, ...], Labels]:
    """Return the images and labels of ``<class>/…`` below ``root``; raise if a class that is required has no image."""
    folders = {path.name: path for path in subfolders(root)}
    unknown = sorted(set(folders) - set(classes))
    if unknown:
        raise StateError(
            f"{root}: expected folders named after the {len(classes)} classes ({some(classes)}), got {some(unknown)}; "
            f"remove what is not a class, or list all classes in their order in {CLASSES}."
        )
    members = [images_below(folders[name]) if name in folders else [] for name in classes]
    empty = [name for name, files in zip(classes, members, strict=True) if not files]
    if (require_all and empty) or len(empty) == len(classes):
        raise StateError(f"{root}: no images ({_EXTENSIONS}) of class {some(empty)}; fill or remove their folders.")
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(files) for files in members])
    return tuple(file for files in members for file in files), labels


def mapped(file: Path) -> NDArray[Any]:
    """Return the array of a .npy file, which is read from disk where it is used."""
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).partition(". If you trust")[0]  # and allow pickles, which are not read here
        raise StateError(f"{file} cannot be read as a numpy array ({reason}): restore the file.") from error
    if not isinstance(array, np.ndarray):
        raise StateError(f"{file} is not a single numpy array: save it with numpy.save.")
    return array


def numbered(count: int) -> tuple[str, ...]:
    """Return names for classes that have none: "0", "1", …."""
    return tuple(str(label) for label in range(count))


def some(names: Sequence[str]) -> str:
    """Return the first names of a list that may be long, for messages."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _csv_rows(path: Path) -> list[tuple[str, int]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            columns = reader.fieldnames or []
    except (OSError, ValueError, csv.Error) as error:
        raise StateError(f"{path} cannot be read as a CSV file ({error}): restore it.") from error
    if not {"file", "label"} <= set(columns):
        raise StateError(f"{path} has the columns {', '.join(columns) or 'none'}: expected file and label.")
    if not rows:
        raise StateError(f"{path} lists no images: give one line per image.")
    for number, row in enumerate(rows, 2):
        if not row["file"] or not (row["label"] or "").strip().isdecimal():
            raise StateError(f"{path}, line {number} lacks a file or a label from 0: complete or remove it.")
    return [(row["file"], int(row["label"])) for row in rows]


def _is_image(name: str) -> bool:
    return name[0] != "." and os.path.splitext(name)[1].lower() in EXTENSIONS
