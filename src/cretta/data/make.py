"""Corrupted versions of datasets, written to disk in the layouts in which the benchmarks are published.

An image is the one of `CorruptedDataset`, for any number of threads and any number of interruptions.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from cretta.data.corrupted import CorruptedDataset
from cretta.data.corruptions import CORRUPTIONS, SEVERITIES, check_corruption
from cretta.data.dataset import ArrayDataset, FileDataset, ImageDataset, Size, count_workers
from cretta.data.folder import existing_folder, image_folder, images_in
from cretta.data.imagenet import tiny_imagenet
from cretta.data.output import open_output
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
"""Image files that a thread makes before it reports progress."""
# Of Pillow's levels of PNG, this one takes a third of the default's time and 5 % more space.
_SAVE: dict[Format, dict[str, Any]] = {"jpeg": {"quality": 85, "optimize": True}, "png": {"compress_level": 3}}
_JPEG_SUFFIXES = (".jpg", ".jpeg")


@dataclass(frozen=True)
class Made:
    """The folder, and the numbers of images that are new, and that were there before."""

    folder: Path
    new: int
    present: int


@dataclass(frozen=True)
class Maker:
    """Makes corrupted versions with the options of `corrupt`, on ``workers`` threads; they are checked before any work.

    A call that was interrupted is continued by the same call.
    """

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

    def published(
        self,
        name: str,
        output: str | Path | None = None,
        *,
        root: str | Path | None = None,
        format: Format | None = None,
    ) -> Made:
        """Make CIFAR-10-C, CIFAR-100-C or Tiny-ImageNet-C from the clean images below the data ``root``."""
        if name not in PUBLISHED:
            raise OptionError(f"{name!r}: give one of {', '.join(PUBLISHED)}, or a folder of images.")
        folder = data_root(root) / release(name).folder if output is None else Path(output)
        clean = name.removesuffix("-c")
        if name != "tiny-imagenet-c":
            if format is not None or tuple(self.severities) != SEVERITIES:
                raise OptionError(
                    f"{name} is published as arrays that hold all five severities: leave format and severity out."
                )
            source = dataset(clean).open("test", Path(root) if root else None, None)
            assert isinstance(source, ArrayDataset)
            return self.arrays(source, folder)
        home = dataset_path(clean, root)
        files = tiny_imagenet(home, "val")
        wnids = sorted((home / "wnids.txt").read_text("utf-8").split())
        paths = [f"{wnids[label]}/{file.name}" for file, label in zip(files.files, files.labels, strict=True)]
        return self.files(files, paths, folder, format=format or "jpeg")

    def folder(
        self,
        source: str | Path,
        output: str | Path | None = None,
        *,
        size: Size = None,
        format: Format = "png",
    ) -> Made:
        """Write the images of a folder as ``<output>/<corruption>/<severity>/<path in the folder>``.

        By default, the output is beside the folder. Images keep their size, unless ``size`` is set as for
        :class:`FileDataset`. They are numbered as in :func:`image_folder`, so the result is that of `CorruptedDataset`
        (with PNG, which has no loss, to the bit).
        """
        folder = existing_folder(source).absolute()
        target = folder.with_name(f"{folder.resolve().name}-C") if output is None else Path(output).absolute()
        if target.resolve().is_relative_to(folder.resolve()):
            raise OptionError(f"{target} is in {folder}, whose images are to be corrupted: give an output beside it.")
        clean = image_folder(folder, labeled=False if images_in(folder) else None, size=size)
        paths = [file.relative_to(folder).as_posix() for file in clean.files]
        return self.files(clean, paths, target, format=format)

    def arrays(self, dataset: ArrayDataset, output: str | Path) -> Made:
        """Write ``<corruption>.npy`` files, with the severities 1 to 5 one after the other, and ``labels.npy``."""
        names = tuple(dict.fromkeys(self.corruptions))
        count, rows = len(dataset), len(SEVERITIES) * len(dataset)
        source: list[bytes | memoryview] = [np.ascontiguousarray(dataset.images).data, dataset.labels.tobytes()]
        with open_output(output, self._settings(source, count, format="npy")) as folder:
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
                        shifted = self._corrupted(dataset, name, severity)
                        for start in range(0, count, _ROWS):
                            images = shifted.read(range(start, min(start + _ROWS, count)), workers=self.workers)
                            file.write(images.data)
                            self.progress(f"{name}/{severity}", len(images), len(missing) * rows)
            return Made(folder.folder, len(missing) * rows, (len(names) - len(missing)) * rows)

    def files(self, dataset: FileDataset, paths: Sequence[str], output: str | Path, *, format: Format = "png") -> Made:
        """Write an image file ``<corruption>/<severity>/<path>`` for each image, with the suffix of its format.

        JPEG has the quality of the published files, 85.
        """
        if format not in get_args(Format):
            raise OptionError(f"format={format!r}: give one of {', '.join(get_args(Format))}.")
        names = _output_names(paths, format)
        sizes = (f"{path}\t{file.stat().st_size}\n".encode() for path, file in zip(paths, dataset.files, strict=True))
        domains = {
            f"{name}/{severity}": self._corrupted(dataset, name, severity)
            for name in self.corruptions
            for severity in self.severities
        }
        with open_output(output, self._settings(sizes, len(dataset), size=dataset.size, format=format)) as folder:
            missing = {
                domain: [index for index, name in enumerate(names) if folder.lacks(f"{domain}/{name}")]
                for domain in domains
            }
            new = sum(map(len, missing.values()))
            jobs = (
                (domain, indices[start : start + _FILES])
                for domain, indices in missing.items()
                for start in range(0, len(indices), _FILES)
            )

            def make(job: tuple[str, list[int]]) -> tuple[str, int]:
                domain, indices = job
                for index in indices:
                    image, _ = domains[domain][index]
                    with folder.writing(f"{domain}/{names[index]}") as file:
                        Image.fromarray(image).save(file, format, **_SAVE[format])
                return domain, len(indices)

            # A thread decodes, corrupts and writes image by image: all cores work, with few images in memory.
            threads = count_workers(self.workers)
            for domain, count in prefetch(make, jobs, depth=4 * threads, threads=threads):
                self.progress(domain, count, new)
            return Made(folder.folder, new, len(domains) * len(names) - new)

    def _corrupted(self, dataset: ImageDataset, corruption: str, severity: int) -> CorruptedDataset:
        return CorruptedDataset(dataset, corruption, severity, self.seed, self.parameters)

    def _settings(self, source: Iterable[bytes | memoryview], images: int, **others: object) -> dict[str, object]:
        """Return everything that the content of the output depends on."""
        digest = hashlib.sha256()
        for part in source:
            digest.update(part)
        settings = {"source": digest.hexdigest()[:16], "images": images, "seed": self.seed}
        return {**settings, "parameters": self.parameters, **others}


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
