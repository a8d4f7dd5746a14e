"""Images of one's own: a folder for each class, one folder without labels, or a numpy file."""

import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cretta.data.dataset import ArrayDataset, FileDataset, Labels, Size, whole_labels
from cretta.data.domains import domain_name
from cretta.errors import OptionError, StateError

CLASSES = "classes.txt"
"""A file that names the classes of a folder, one per line, in their order."""
EXTENSIONS = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"))


def image_folder(
    folder: str | Path,
    *,
    labelled: bool | None = None,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    domain: str = "",
    size: Size = None,
) -> FileDataset:
    """Images in ``<class>/…`` folders, or lying flat without labels (-1); which of both, the folder shows.

    Classes are numbered as in ``classes``, which must then name every class folder, else as in a file classes.txt in
    the folder or beside it, else in alphabetical order, as is usual. Images come in natural order: 2.png before 10.png.
    ``labelled=False`` takes all images below, unlabelled.
    """
    root = existing(folder)
    flat = images_in(root)
    folders = subfolders(root)
    if labelled is None:
        if flat and any(images_below(each) for each in folders):
            raise StateError(
                f"{root} holds images both beside and inside of folders: pass labelled=False to take all without "
                "labels, or labelled=True to take those in folders."
            )
        labelled = not flat
    called = name or root.resolve().name
    if not labelled:
        files = tuple(images_below(root))
        if not files:
            raise StateError(f"{root} holds no images ({_extensions()}): give another folder.")
        return FileDataset(called, files, np.full(len(files), -1, np.int64), (), domain, size)
    if not folders and flat:
        raise StateError(
            f"{root} holds images ({len(flat)}) and no class folders, so there are no labels: move the images into one "
            "folder per class, or read them without labels."
        )
    if not folders:
        raise StateError(f"{root} holds neither images ({_extensions()}) nor folders of them: give another folder.")
    listed = class_file(root) if classes is None else None
    if listed is not None:
        classes = class_names(listed)
    names = tuple(each.name for each in folders) if classes is None else tuple(classes)
    files, labels = class_folders(root, names, every=classes is None)
    return FileDataset(called, files, labels, names, domain, size)


def class_file(folder: str | Path) -> Path | None:
    """The file classes.txt in a folder, or beside it if it names all folders in it; None if there is no such file."""
    root = Path(folder).resolve()
    inside, beside = root / CLASSES, root.parent / CLASSES
    if inside.is_file():
        return inside
    about = beside.is_file() and {each.name for each in subfolders(root)} <= set(class_names(beside))
    return beside if about else None


def class_names(file: Path) -> tuple[str, ...]:
    """The lines of a text file; where all begin with a number, as "1 001.Albatross", what comes after it."""
    try:
        names = [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(
            f"{file} cannot be read ({error}): give a text file with the name of one class per line."
        ) from error
    if all(re.match(r"\d+\s", name) for name in names):
        names = [name.split(maxsplit=1)[1] for name in names]
    if len(set(names)) != len(names) or not names:
        raise OptionError(
            f"{file} names {'a class twice' if names else 'no class'}: give the name of one class per line."
        )
    return tuple(names)


def numpy_file(
    path: str | Path,
    labels: str | Path | Sequence[int] | NDArray[Any] | None = None,
    *,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    domain: str = "",
) -> ArrayDataset:
    """Images uint8 (N, H, W, 3) of a .npy file, mapped into memory, or of a .npz file as ``images`` and ``labels``.

    ``labels`` are numbers or another .npy file; without any, all are -1. Classes without names are called by number.
    """
    file = Path(path)
    if file.suffix not in (".npy", ".npz"):
        raise OptionError(f"{file}: give a file that ends in .npy or .npz.")
    kept: NDArray[Any] | None = None
    if file.suffix == ".npz":
        images, kept = _archived(file)
    else:
        images = mapped(file)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise StateError(f"{file} holds {images.dtype} of shape {images.shape}: needed are images, uint8 (N, H, W, 3).")
    if isinstance(labels, str | Path):
        found = whole_labels(mapped(Path(labels)), str(labels))
    elif labels is not None or kept is not None:
        found = whole_labels(kept if labels is None else labels, f"labels of {file}")
    else:
        found = np.full(len(images), -1, np.int64)
    if len(found) != len(images):
        raise StateError(f"{file} holds {len(images)} images, but there are {len(found)} labels: give one an image.")
    if classes is None:
        classes = numbered(int(found.max(initial=-1)) + 1)
    return ArrayDataset(name or file.stem, images, found, tuple(classes), domain)


def existing(folder: str | Path) -> Path:
    """``folder`` as a path, if there is such a folder."""
    root = Path(folder)
    if not root.is_dir():
        raise StateError(f"{root} is {'a file' if root.exists() else 'not there'}: give a folder that exists.")
    return root


def natural(path: Path | str) -> tuple[tuple[str | int, ...], str]:
    """Sort key under which 2.png comes before 10.png."""
    text = str(path)
    parts = re.split(r"([0-9]+)", text)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), text


def subfolders(root: Path) -> list[Path]:
    """Folders right below ``root``, hidden ones left out, by name."""
    return sorted((each for each in root.iterdir() if each.is_dir() and each.name[0] != "."), key=lambda p: p.name)


def images_in(folder: Path) -> list[Path]:
    """Images right below ``folder``, in natural order."""
    return sorted((each for each in folder.iterdir() if _is_image(each)), key=lambda path: natural(path.name))


def images_below(folder: Path) -> list[Path]:
    """Images at any depth below ``folder``, in natural order."""
    found = []
    # os.walk knows files from folders without asking for each, which counts with the images of ImageNet.
    for place, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each[0] != "."]
        found += [Path(place, file) for file in files if file[0] != "." and Path(file).suffix.lower() in EXTENSIONS]
    return sorted(found, key=lambda path: natural(path.as_posix()))


def class_folders(root: Path, classes: Sequence[str], *, every: bool = False) -> tuple[tuple[Path, ...], Labels]:
    """Images and labels of ``<class>/…`` below ``root``; with ``every``, each class must have some."""
    found = {each.name: each for each in subfolders(root)}
    unknown = sorted(set(found) - set(classes))
    if unknown:
        raise StateError(
            f"{root}: folder {some(unknown)} is none of the {len(classes)} classes ({some(classes)}); remove it, or "
            f"list all classes in their order in {CLASSES}."
        )
    members = [images_below(found[each]) if each in found else [] for each in classes]
    empty = [each for each, files in zip(classes, members, strict=True) if not files]
    if (every and empty) or len(empty) == len(classes):
        raise StateError(f"{root}: no images ({_extensions()}) of class {some(empty)}; fill or remove their folders.")
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(files) for files in members])
    return tuple(file for files in members for file in files), labels


def corrupted_folder(root: str | Path, corruption: str, severity: int) -> tuple[Path, str]:
    """The folder ``<corruption>/<severity>`` below ``root``, and the domain's name."""
    domain = domain_name(corruption, severity)
    folder = existing(root) / corruption / str(severity)
    if not folder.is_dir():
        raise StateError(f"{folder} is not there: give the folder that holds <corruption>/<severity>/<class>/.")
    return folder, domain


def mapped(file: Path) -> NDArray[Any]:
    """A .npy file's array, read from disk only where it is used."""
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StateError(f"{file} cannot be read as a numpy array ({error}): restore the file.") from error
    if not isinstance(array, np.ndarray):
        raise StateError(f"{file} is not a single numpy array: save it with numpy.save.")
    return array


def numbered(count: int) -> tuple[str, ...]:
    """Names for classes that have none: "0", "1", …."""
    return tuple(str(label) for label in range(count))


def some(names: Sequence[str]) -> str:
    """The first names of a list that may be long."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _archived(file: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    try:
        # Opened here, for numpy leaves a damaged file open.
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
            if "images" not in archive:
                raise StateError(f"{file} holds {some(archive.files)}: needed is an array called images.")
            return archive["images"], archive.get("labels")
    except StateError:
        raise
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise StateError(f"{file} cannot be read as a .npz archive ({error}): restore the file.") from error


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS and path.name[0] != "." and path.is_file()


def _extensions() -> str:
    return ", ".join(sorted(EXTENSIONS))
