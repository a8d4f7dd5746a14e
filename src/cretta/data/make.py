"""Corrupted twins of datasets, written to disk in the layouts in which the benchmarks are published.

An image is the one that `corrupted` gives, whatever the number of threads and however often the work was interrupted.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cretta.data.cifar import cifar10, cifar100
from cretta.data.corruptions import CORRUPTIONS, SEVERITIES, check_corruption, corrupt
from cretta.data.dataset import ArrayDataset, FileDataset, Pixels, Size, count_workers, is_whole
from cretta.data.folder import existing, image_folder, images_in
from cretta.data.output import Output
from cretta.data.registry import dataset_path, release
from cretta.data.releases import data_root
from cretta.data.tiny_imagenet import tiny_imagenet_200
from cretta.errors import OptionError
from cretta.prefetch import prefetch

Format = Literal["png", "jpeg"]
Progress = Callable[[str, int, int], None]
"""Hears which domain gets how many images more, and how many are to be made in all."""

PUBLISHED = ("cifar10-c", "cifar100-c", "tiny-imagenet-c")

_ROWS = 1000
"""Images of an array made at once."""
_FILES = 8
"""Image files that a thread takes at once: few, for they may be large."""
_JPEG_NAMES = (".jpg", ".jpeg")


@dataclass(frozen=True)
class Made:
    """What was done: the folder, how many images are new, how many were there, and of how many sources."""

    folder: Path
    new: int
    there: int
    sources: int


def silent(domain: str, images: int, total: int) -> None:
    """Progress that nobody wants to hear."""


def make_published(
    name: str,
    output: str | Path | None = None,
    *,
    root: str | Path | None = None,
    images: int | None = None,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    parameters: str | None = None,
    format: Format | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> Made:
    """CIFAR-10-C, CIFAR-100-C or Tiny-ImageNet-C from the clean images below the data ``root``, which it joins.

    ``images`` takes the first ones only, into a folder beside: the readers expect the published number.
    """
    if name not in PUBLISHED:
        raise OptionError(f"{name!r}: give one of {', '.join(PUBLISHED)}, or a folder of images.")
    short = "" if images is None else f"-{images}"
    folder = data_root(root) / f"{release(name).folder}{short}" if output is None else Path(output)
    common: dict[str, Any] = {
        "corruptions": corruptions,
        "seed": seed,
        "parameters": parameters,
        "workers": workers,
        "progress": progress,
    }
    if name != "tiny-imagenet-c":
        if format is not None or tuple(severities) != SEVERITIES:
            raise OptionError(
                f"{name} is published as arrays that hold all five severities: leave format and severity out."
            )
        _check(corruptions, SEVERITIES, seed, parameters)
        source = (cifar10 if name == "cifar10-c" else cifar100)(dataset_path(name.removesuffix("-c"), root))
        count = _count(len(source), images)
        part = ArrayDataset(source.name, source.images[:count], source.labels[:count], source.classes)
        return make_arrays(part, folder, **common)
    _check(corruptions, severities, seed, parameters)
    home = dataset_path("tiny-imagenet", root)
    clean = tiny_imagenet_200(home, "val")
    wnids = sorted((home / "wnids.txt").read_text("utf-8").split())
    paths = [f"{wnids[label]}/{file.name}" for file, label in zip(clean.files, clean.labels, strict=True)]
    count = _count(len(clean), images)
    clean = replace(clean, files=clean.files[:count], labels=clean.labels[:count])
    return make_files(clean, paths[:count], folder, severities=severities, format=format or "jpeg", **common)


def make_folder(
    source: str | Path,
    output: str | Path | None = None,
    *,
    images: int | None = None,
    size: Size = None,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    parameters: str | None = None,
    format: Format = "png",
    workers: int | None = None,
    progress: Progress = silent,
) -> Made:
    """The images of a folder as ``<output>/<corruption>/<severity>/<path in the folder>``, by default beside it.

    Images keep their size, unless ``size`` is given as for :class:`FileDataset`. They are numbered as in
    :func:`image_folder`, so that the result is that of `corrupted` (in PNG, which loses nothing, to the bit).
    """
    _check(corruptions, severities, seed, parameters)
    folder = existing(source).absolute()
    target = folder.with_name(f"{folder.resolve().name}-C") if output is None else Path(output).absolute()
    if target.resolve().is_relative_to(folder.resolve()):
        raise OptionError(f"{target} lies in {folder}, whose images are to be corrupted: give an output beside it.")
    clean = image_folder(folder, labelled=False if images_in(folder) else None, size=size)
    count = _count(len(clean), images)
    clean = replace(clean, files=clean.files[:count], labels=clean.labels[:count])
    return make_files(
        clean,
        [file.relative_to(folder).as_posix() for file in clean.files],
        target,
        corruptions=corruptions,
        severities=severities,
        seed=seed,
        parameters=parameters,
        format=format,
        workers=workers,
        progress=progress,
    )


def make_arrays(
    dataset: ArrayDataset,
    output: str | Path,
    *,
    corruptions: Sequence[str] = CORRUPTIONS,
    seed: int = 0,
    parameters: str | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> Made:
    """One ``<corruption>.npy`` each with the severities 1 to 5 one after the other, and ``labels.npy``."""
    chosen = _check(corruptions, SEVERITIES, seed, parameters)
    count, rows = len(dataset), len(SEVERITIES) * len(dataset)
    settings = {
        "source": _digest([np.ascontiguousarray(dataset.images).data, dataset.labels.tobytes()]),
        "images": count,
        "seed": seed,
        "parameters": parameters,
        "format": "npy",
    }
    with Output(output, settings) as folder:
        if folder.lacks("labels.npy"):
            with folder.writing("labels.npy", sync=True) as file:
                # In bytes, as published.
                np.save(file, np.tile(dataset.labels, len(SEVERITIES)).astype(np.uint8))
        lost = [name for name in chosen if folder.lacks(f"{name}.npy")]
        for name in lost:
            with folder.writing(f"{name}.npy", sync=True) as file:
                _begin_array(file, (rows, *dataset.images.shape[1:]))
                for severity in SEVERITIES:
                    for start in range(0, count, _ROWS):
                        clean = dataset.images[start : start + _ROWS]
                        made = corrupt(clean, name, severity, seed, parameters=parameters, start=start, workers=workers)
                        file.write(made.data)
                        progress(f"{name}/{severity}", len(made), len(lost) * rows)
        return Made(folder.folder, len(lost) * rows, (len(chosen) - len(lost)) * rows, count)


def make_files(
    dataset: FileDataset,
    paths: Sequence[str],
    output: str | Path,
    *,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    parameters: str | None = None,
    format: Format = "png",
    workers: int | None = None,
    progress: Progress = silent,
) -> Made:
    """An image file ``<corruption>/<severity>/<path>`` for each image, with the ending of its format.

    JPEG has the quality of the published files, 85.
    """
    chosen = _check(corruptions, severities, seed, parameters)
    if format not in get_args(Format):
        raise OptionError(f"format={format!r}: give one of {', '.join(get_args(Format))}.")
    names = [_named(path, format) for path in paths]
    _check_apart(paths, names)
    settings = {
        "source": _digest(f"{path}\t{file.stat().st_size}\n".encode() for path, file in _pairs(paths, dataset)),
        "images": len(dataset),
        "size": dataset.size,
        "seed": seed,
        "parameters": parameters,
        "format": format,
    }
    with Output(output, settings) as folder:
        lost = {
            (corruption, severity): _lost(folder, f"{corruption}/{severity}", names)
            for corruption in chosen
            for severity in dict.fromkeys(severities)
        }
        new = sum(map(len, lost.values()))

        def make(corruption: str, severity: int, indices: list[int]) -> tuple[str, int]:
            for places, clean in _of_one_size(dataset, indices):
                made = corrupt(clean, corruption, severity, seed, parameters=parameters, indices=places, workers=1)
                for index, image in zip(places, made, strict=True):
                    with folder.writing(f"{corruption}/{severity}/{names[index]}") as file:
                        _save(image, file, format)
            return f"{corruption}/{severity}", len(indices)

        # A thread takes a piece from decoding to writing: that keeps all cores at work and few images in memory.
        threads = count_workers(workers)
        pieces = prefetch(lambda piece: make(*piece), _pieces(lost), depth=4 * threads, threads=threads)
        for domain, count in pieces:
            progress(domain, count, new)
        return Made(folder.folder, new, len(lost) * len(names) - new, len(names))


def _lost(folder: Output, domain: str, names: Sequence[str]) -> NDArray[np.intp]:
    if not (folder.folder / domain).is_dir():
        return np.arange(len(names))
    return np.flatnonzero([folder.lacks(f"{domain}/{name}") for name in names])


def _pieces(lost: Mapping[tuple[str, int], NDArray[np.intp]]) -> Iterator[tuple[str, int, list[int]]]:
    for (corruption, severity), indices in lost.items():
        for at in range(0, len(indices), _FILES):
            yield corruption, severity, indices[at : at + _FILES].tolist()


def _check(corruptions: Sequence[str], severities: Sequence[int], seed: int, parameters: str | None) -> tuple[str, ...]:
    """The corruptions, each once; whatever is wrong is told before any work."""
    if not corruptions or not severities:
        raise OptionError("no corruption or no severity is given: give at least one of each.")
    for name in corruptions:
        for severity in severities:
            check_corruption(name, severity, seed, parameters)
    return tuple(dict.fromkeys(corruptions))


def _count(there: int, images: int | None) -> int:
    if images is not None and not is_whole(images, 1, there):
        raise OptionError(f"images={images!r}: give a whole number from 1 to {there}, as many as there are.")
    return images or there


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:16]


def _pairs(paths: Sequence[str], dataset: FileDataset) -> Iterator[tuple[str, Path]]:
    return zip(paths, dataset.files, strict=True)


def _begin_array(file: IO[bytes], shape: tuple[int, ...]) -> None:
    # Written from front to end and not through a memory map, in which a full disk would end the process.
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def _named(path: str, format: Format) -> str:
    if format == "jpeg":
        return (
            path if PurePosixPath(path).suffix.lower() in _JPEG_NAMES else str(PurePosixPath(path).with_suffix(".jpg"))
        )
    return str(PurePosixPath(path).with_suffix(".png"))


def _check_apart(paths: Sequence[str], names: Sequence[str]) -> None:
    taken: dict[str, str] = {}
    for path, name in zip(paths, names, strict=True):
        if name in taken:
            raise OptionError(f"{taken[name]} and {path} would both become {name}: rename one of them.")
        taken[name] = path


def _of_one_size(dataset: FileDataset, indices: Sequence[int]) -> Iterator[tuple[list[int], Pixels]]:
    """The images, those of a size together."""
    images = {index: dataset[index][0] for index in indices}
    for shape in dict.fromkeys(image.shape for image in images.values()):
        places = [index for index, image in images.items() if image.shape == shape]
        yield places, np.stack([images[index] for index in places])


def _save(image: Pixels, file: IO[bytes], format: Format) -> None:
    if format == "jpeg":
        Image.fromarray(image).save(file, "JPEG", quality=85, optimize=True)
    else:
        # Of Pillow's levels, this one takes a third of the default's time and a twentieth more room.
        Image.fromarray(image).save(file, "PNG", compress_level=3)
