"""Corrupted versions of datasets, written to disk in the layouts in which the benchmarks are published.

An image is the one that `corrupted` returns, for any number of threads and any number of interruptions.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Literal, TypedDict, Unpack, get_args

import numpy as np
from PIL import Image

from cretta.data.corruptions import CORRUPTIONS, SEVERITIES, check_corruption, corrupt
from cretta.data.dataset import ArrayDataset, FileDataset, Pixels, Size, count_workers, is_integer
from cretta.data.folder import existing_folder, image_folder, images_in
from cretta.data.imagenet import tiny_imagenet
from cretta.data.output import Output
from cretta.data.registry import dataset, dataset_path, release
from cretta.data.releases import data_root
from cretta.errors import OptionError
from cretta.prefetch import prefetch

Format = Literal["png", "jpeg"]
Progress = Callable[[str, int, int], None]
"""Called with a domain, the number of images that were added to it, and the number that is to be made in total."""

PUBLISHED = ("cifar10-c", "cifar100-c", "tiny-imagenet-c")

_ROWS = 1000
"""Images of an array that are corrupted at once."""
_FILES = 8
"""Image files that a thread corrupts at once: few, because they may be large."""
_JPEG_SUFFIXES = (".jpg", ".jpeg")


class Options(TypedDict, total=False):
    """Options of all functions here: those of `corrupt`, threads, and progress."""

    corruptions: Sequence[str]
    severities: Sequence[int]
    seed: int
    parameters: str | None
    workers: int | None
    progress: Progress


@dataclass(frozen=True)
class _Plan:
    """The defaults of the options, and their check before any work."""

    corruptions: Sequence[str] = CORRUPTIONS
    severities: Sequence[int] = SEVERITIES
    seed: int = 0
    parameters: str | None = None
    workers: int | None = None
    progress: Progress = lambda domain, images, total: None

    def __post_init__(self) -> None:
        if not self.corruptions or not self.severities:
            raise OptionError("corruptions or severities are empty: give at least one of each.")
        for name in self.corruptions:
            for severity in self.severities:
                check_corruption(name, severity, self.seed, self.parameters)

    def settings(self, source: Iterable[bytes | memoryview], images: int, **others: object) -> dict[str, object]:
        """Return everything that the content of the output depends on."""
        digest = hashlib.sha256()
        for part in source:
            digest.update(part)
        settings = {"source": digest.hexdigest()[:16], "images": images, "seed": self.seed}
        return {**settings, "parameters": self.parameters, **others}


@dataclass(frozen=True)
class Made:
    """The folder, and the numbers of images that are new, that were there before, and of the source."""

    folder: Path
    new: int
    present: int
    sources: int


def make_published(
    name: str,
    output: str | Path | None = None,
    *,
    root: str | Path | None = None,
    images: int | None = None,
    format: Format | None = None,
    **options: Unpack[Options],
) -> Made:
    """Make CIFAR-10-C, CIFAR-100-C or Tiny-ImageNet-C from the clean images below the data ``root``, beside them.

    ``images`` uses the first images only, and another folder: the readers expect the published number.
    """
    if name not in PUBLISHED:
        raise OptionError(f"{name!r}: give one of {', '.join(PUBLISHED)}, or a folder of images.")
    plan = _Plan(**options)
    suffix = "" if images is None else f"-{images}"
    folder = data_root(root) / f"{release(name).folder}{suffix}" if output is None else Path(output)
    clean = name.removesuffix("-c")
    if name != "tiny-imagenet-c":
        if format is not None or tuple(plan.severities) != SEVERITIES:
            raise OptionError(
                f"{name} is published as arrays that hold all five severities: leave format and severity out."
            )
        source = dataset(clean).open("test", Path(root) if root else None, None)
        indices = np.arange(_count(len(source), images))
        return make_arrays(
            ArrayDataset(source.name, source.read(indices), source.labels[indices], source.classes), folder, **options
        )
    home = dataset_path(clean, root)
    files = tiny_imagenet(home, "val")
    wnids = sorted((home / "wnids.txt").read_text("utf-8").split())
    files = _first(files, images)
    paths = [f"{wnids[label]}/{file.name}" for file, label in zip(files.files, files.labels, strict=True)]
    return make_files(files, paths, folder, format=format or "jpeg", **options)


def make_folder(
    source: str | Path,
    output: str | Path | None = None,
    *,
    images: int | None = None,
    size: Size = None,
    format: Format = "png",
    **options: Unpack[Options],
) -> Made:
    """Write the images of a folder as ``<output>/<corruption>/<severity>/<path in the folder>``, by default beside it.

    Images keep their size, unless ``size`` is set as for :class:`FileDataset`. They are numbered as in
    :func:`image_folder`, so the result is that of `corrupted` (with PNG, which has no loss, to the bit).
    """
    _Plan(**options)
    folder = existing_folder(source).absolute()
    target = folder.with_name(f"{folder.resolve().name}-C") if output is None else Path(output).absolute()
    if target.resolve().is_relative_to(folder.resolve()):
        raise OptionError(f"{target} is in {folder}, whose images are to be corrupted: give an output beside it.")
    clean = _first(image_folder(folder, labeled=False if images_in(folder) else None, size=size), images)
    paths = [file.relative_to(folder).as_posix() for file in clean.files]
    return make_files(clean, paths, target, format=format, **options)


def make_arrays(dataset: ArrayDataset, output: str | Path, **options: Unpack[Options]) -> Made:
    """Write ``<corruption>.npy`` files, with the severities 1 to 5 one after the other, and ``labels.npy``."""
    plan = _Plan(**options)
    names = tuple(dict.fromkeys(plan.corruptions))
    count, rows = len(dataset), len(SEVERITIES) * len(dataset)
    source: list[bytes | memoryview] = [np.ascontiguousarray(dataset.images).data, dataset.labels.tobytes()]
    with Output(output, plan.settings(source, count, format="npy")) as folder:
        if folder.lacks("labels.npy"):
            with folder.writing("labels.npy", sync=True) as file:
                # In bytes, as published.
                np.save(file, np.tile(dataset.labels, len(SEVERITIES)).astype(np.uint8))
        missing = [name for name in names if folder.lacks(f"{name}.npy")]
        for name in missing:
            with folder.writing(f"{name}.npy", sync=True) as file:
                # Written from front to end: in a memory map, a full disk would end the process.
                header = {"descr": "|u1", "fortran_order": False, "shape": (rows, *dataset.images.shape[1:])}
                np.lib.format.write_array_header_1_0(file, header)
                for severity in SEVERITIES:
                    for start in range(0, count, _ROWS):
                        corrupted = corrupt(
                            dataset.images[start : start + _ROWS],
                            name,
                            severity,
                            plan.seed,
                            parameters=plan.parameters,
                            start=start,
                            workers=plan.workers,
                        )
                        file.write(corrupted.data)
                        plan.progress(f"{name}/{severity}", len(corrupted), len(missing) * rows)
        return Made(folder.folder, len(missing) * rows, (len(names) - len(missing)) * rows, count)


def make_files(
    dataset: FileDataset,
    paths: Sequence[str],
    output: str | Path,
    *,
    format: Format = "png",
    **options: Unpack[Options],
) -> Made:
    """Write an image file ``<corruption>/<severity>/<path>`` for each image, with the suffix of its format.

    JPEG has the quality of the published files, 85.
    """
    plan = _Plan(**options)
    if format not in get_args(Format):
        raise OptionError(f"format={format!r}: give one of {', '.join(get_args(Format))}.")
    names = _output_names(paths, format)
    sizes = (f"{path}\t{file.stat().st_size}\n".encode() for path, file in zip(paths, dataset.files, strict=True))
    domains = [(name, level) for name in dict.fromkeys(plan.corruptions) for level in dict.fromkeys(plan.severities)]
    with Output(output, plan.settings(sizes, len(dataset), size=dataset.size, format=format)) as folder:
        missing = {domain: _missing(folder, "{}/{}".format(*domain), names) for domain in domains}
        new = sum(map(len, missing.values()))
        jobs = (
            (domain, indices[start : start + _FILES])
            for domain, indices in missing.items()
            for start in range(0, len(indices), _FILES)
        )

        def make(job: tuple[tuple[str, int], list[int]]) -> tuple[str, int]:
            (corruption, severity), indices = job
            for group, clean in _by_size(dataset, indices):
                corrupted = corrupt(
                    clean, corruption, severity, plan.seed, parameters=plan.parameters, indices=group, workers=1
                )
                for index, image in zip(group, corrupted, strict=True):
                    with folder.writing(f"{corruption}/{severity}/{names[index]}") as file:
                        _save(image, file, format)
            return f"{corruption}/{severity}", len(indices)

        # A thread decodes, corrupts and writes a few images: all cores work, with few images in memory.
        threads = count_workers(plan.workers)
        for domain, count in prefetch(make, jobs, depth=4 * threads, threads=threads):
            plan.progress(domain, count, new)
        return Made(folder.folder, new, len(domains) * len(names) - new, len(names))


def _missing(folder: Output, domain: str, names: Sequence[str]) -> list[int]:
    if not (folder.folder / domain).is_dir():
        return list(range(len(names)))
    return [index for index, name in enumerate(names) if folder.lacks(f"{domain}/{name}")]


def _count(available: int, images: int | None) -> int:
    if images is not None and not is_integer(images, 1, available):
        raise OptionError(f"images={images!r}: give an integer from 1 to {available}, the number of images.")
    return images or available


def _first(dataset: FileDataset, images: int | None) -> FileDataset:
    count = _count(len(dataset), images)
    return replace(dataset, files=dataset.files[:count], labels=dataset.labels[:count])


def _output_names(paths: Sequence[str], format: Format) -> list[str]:
    """Return the paths with the suffix of the format; raise if two become the same."""
    sources: dict[str, str] = {}
    for path in paths:
        suffix = PurePosixPath(path).suffix
        is_jpeg = format == "jpeg" and suffix.lower() in _JPEG_SUFFIXES
        new = suffix if is_jpeg else ".jpg" if format == "jpeg" else ".png"
        name = str(PurePosixPath(path).with_suffix(new))
        if name in sources:
            raise OptionError(f"{sources[name]} and {path} would both become {name}: rename one of them.")
        sources[name] = path
    return list(sources)


def _by_size(dataset: FileDataset, indices: Sequence[int]) -> Iterator[tuple[list[int], Pixels]]:
    """Group images that have the same size."""
    images = {index: dataset[index][0] for index in indices}
    for shape in dict.fromkeys(image.shape for image in images.values()):
        group = [index for index, image in images.items() if image.shape == shape]
        yield group, np.stack([images[index] for index in group])


def _save(image: Pixels, file: IO[bytes], format: Format) -> None:
    if format == "jpeg":
        Image.fromarray(image).save(file, "JPEG", quality=85, optimize=True)
    else:
        # Of Pillow's levels, this one takes a third of the default's time and 5 % more space.
        Image.fromarray(image).save(file, "PNG", compress_level=3)
