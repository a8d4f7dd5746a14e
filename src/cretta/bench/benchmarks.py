"""The benchmarks by name: a dataset's clean, shifted and training images, opened once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from cretta.data import CORRUPTIONS, CorruptedDataset, ImageDataset, image_folder
from cretta.data.domains import CLEAN, Domain
from cretta.data.registry import DATASETS, Dataset
from cretta.data.releases import data_root
from cretta.errors import OptionError, StateError
from cretta.options import unknown


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """The images of a dataset, and how the paper runs it.

    ``clean`` and ``training`` read or list the images once, however often they are called.
    """

    name: str
    clean: Callable[[], ImageDataset]
    """Test images like those of the source."""
    training: Callable[[], ImageDataset]
    """The images that buffers are drawn from."""
    shifted: Callable[[Domain], ImageDataset]
    """The images of a domain other than "clean"."""
    domains: tuple[str, ...]
    """The shifts that the paper averages over; corruptions without their severity."""
    batch_size: int = 200
    preset: str = ""
    """The name under which methods have the paper's options for it, if they have some."""
    corruptions: str = "generated"
    """Whether corrupted images are generated, published, or none: the domains are not corruptions."""

    def images(self, domain: Domain) -> ImageDataset:
        """Return the images of any domain."""
        return self.clean() if domain.name == CLEAN else self.shifted(domain)


def benchmark(name: str, root: Path | None = None, size: int | None = None) -> Benchmark:
    """Return the benchmark of a dataset of the registry, such as "pacs:photo", or of the user's own folder.

    Such a folder holds ``train/<class>/…`` and ``test/<class>/…``. ``size`` scales and crops images that are files.
    """
    if name in DATASETS:
        return _registered(DATASETS[name], root, size)
    if is_folder(name):
        return _folder(Path(name), size)
    raise OptionError(f"{unknown('dataset', name, DATASETS)} Or a folder with train/CLASS/ and test/CLASS/.")


def is_folder(name: str) -> bool:
    """Return whether a benchmark is the user's own folder."""
    return name not in DATASETS and not name.startswith("pacs:") and Path(name).is_dir()


def _registered(dataset: Dataset, root: Path | None, size: int | None) -> Benchmark:
    if size is not None and not dataset.resizable:
        raise OptionError(f"size={size} for {dataset.name}: its images have {dataset.side} px; leave it out.")
    clean = cache(partial(dataset.open, "test", root, size))
    release = dataset.shifted
    published = dataset.generates and release is not None and (data_root(root) / release.folder).is_dir()

    def shifted(domain: Domain) -> ImageDataset:
        if release is None or (dataset.generates and not published):
            return CorruptedDataset(clean(), *domain.corruption)
        path = data_root(root) / release.folder if published else release.path(root)
        return release.open(path, str(domain), size)

    return Benchmark(
        dataset.name,
        clean,
        cache(partial(dataset.open, "train", root, size)),
        shifted,
        dataset.domains,
        dataset.batch_size,
        dataset.preset,
        "none" if not dataset.generates else "published" if published else "generated",
    )


def _folder(folder: Path, size: int | None) -> Benchmark:
    if not (folder / "train").is_dir() or not (folder / "test").is_dir():
        raise StateError(
            f"{folder}: expected the folders train/<class>/ and test/<class>/ in it; make them, or give another folder."
        )
    training = cache(partial(image_folder, folder / "train", labeled=True, size=size))
    test = cache(lambda: image_folder(folder / "test", labeled=True, classes=training().classes, size=size))
    return Benchmark(
        str(folder), test, training, lambda domain: CorruptedDataset(test(), *domain.corruption), CORRUPTIONS
    )
