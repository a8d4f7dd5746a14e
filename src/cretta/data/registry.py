"""The datasets: one record for each, with its images, its published files, and the settings of the paper.

Names, files, licenses and settings are in datasets.toml; how images are opened is here.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cretta.data.cifar import Split, cifar10, cifar100, cifar_c, embedded
from cretta.data.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS
from cretta.data.dataset import ImageDataset
from cretta.data.domains import Domain
from cretta.data.folder import image_folder, labeled_csv, subfolders
from cretta.data.imagenet import imagenet_c, imagenet_validation, tiny_imagenet, tiny_imagenet_c
from cretta.data.pacs import DOMAINS, pacs_domain
from cretta.data.releases import FACTS, Archive, Release, data_root
from cretta.options import known

Opener = Callable[[Split, Path | None, int | None], ImageDataset]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Images to train and to test on, their shifted versions, and the paper's settings for both."""

    name: str
    title: str
    """The shifted dataset as the paper calls it."""
    open: Opener
    """Open the images of a split, below a data root or the default one, scaled to a size where one is set."""
    clean: Release | None = None
    """The published files; None if they come with the package."""
    shifted: Release | None = None
    """The published shifted images; None if there are none."""
    domains: tuple[str, ...] = CORRUPTIONS
    """The shifts that the paper averages over; corruptions without their severity."""
    generates: bool = True
    """Whether corruptions are generated from the test images where ``shifted`` is not there."""
    classes: int
    class_names: tuple[str, ...] = ()
    """In the order of the labels; empty if the files name them."""
    test_images: int
    side: int | None = None
    """The height and width of all images, if they have the same."""
    resizable: bool = True
    batch_size: int = 200
    preset: str
    """The name under which methods have the paper's options for it, if they have some."""


def dataset(name: str) -> Dataset:
    """Return a dataset by its name.

    >>> dataset("tiny-imagenet").batch_size
    1000
    """
    return DATASETS[known("dataset", name, DATASETS)]


def release(name: str) -> Release:
    """Return a release by its name.

    >>> release("cifar100-c").folder
    'CIFAR-100-C'
    """
    return RELEASES[known("dataset", name, RELEASES)]


def dataset_path(name: str, root: str | Path | None = None) -> Path:
    """Return where a release is below the data root, to be passed to its reader; raise if it is not there."""
    return release(name).path(root)


def locate(record: Release, folder: Path, depth: int = 3) -> Path | None:
    """Return the folder of a release in or below ``folder``; archives contain it at different depths."""
    others = {other.folder for other in RELEASES.values()} - {record.folder}
    level = [*(folder / name for name in (record.folder, *record.other_folders)), folder]
    for _ in range(depth):
        level = [path for path in level if path.is_dir()]
        for path in level:
            if record.is_present(path):
                return path
        level = [child for path in level for child in subfolders(path) if child.name not in others]
    return None


_Open = Callable[[Path, str, int | None], ImageDataset]


def _square(size: int | None) -> tuple[int, int] | None:
    """Scale the complete image, not its center."""
    return None if size is None else (size, size)


def _cifar(reader: Callable[[Path, Split], ImageDataset]) -> _Open:
    return lambda path, part, size: reader(path, "train" if part == "train" else "test")


_OPEN: dict[str, _Open] = {
    "cifar10": _cifar(cifar10),
    "cifar10-c": lambda path, domain, size: cifar_c(path, *Domain.parse(domain).corruption),
    "cifar100": _cifar(cifar100),
    "cifar100-c": lambda path, domain, size: cifar_c(path, *Domain.parse(domain).corruption),
    "tiny-imagenet": lambda path, part, size: tiny_imagenet(
        path, "train" if part == "train" else "val", size=_square(size)
    ),
    "tiny-imagenet-c": lambda path, domain, size: tiny_imagenet_c(
        path, *Domain.parse(domain).corruption, size=_square(size)
    ),
    "imagenet": lambda path, part, size: imagenet_validation(path, size=size or 224),
    "imagenet-c": lambda path, domain, size: imagenet_c(path, *Domain.parse(domain).corruption, size=size),
    "pacs": lambda path, domain, size: pacs_domain(path, domain, size=_square(size or 224)),
}


def _release(
    name: str,
    *,
    archives: Sequence[dict[str, Any]] = (),
    images: dict[str, int] | None = None,
    images_per_severity: int = 0,
    markers: Sequence[Sequence[str]] = (),
    **facts: Any,
) -> Release:
    """Return the record of a table of datasets.toml; without ``markers``, each corruption has a folder."""
    markers = markers or [[folder] for folder in (*CORRUPTIONS, *VALIDATION_CORRUPTIONS)]
    return Release(
        name=name,
        archives=tuple(Archive(**{key: _frozen(value) for key, value in archive.items()}) for archive in archives),
        images=images or dict.fromkeys(CORRUPTIONS, images_per_severity),
        corrupted=images is None,
        markers=tuple(map(tuple, markers)),
        open=_OPEN[name],
        **{key: _frozen(value) for key, value in facts.items()},
    )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


RELEASES: dict[str, Release] = {name: _release(name, **facts) for name, facts in FACTS["releases"].items()}
"""By name: what `cretta data get` gets."""


def _open_imagenet(split: Split, root: Path | None, size: int | None) -> ImageDataset:
    """Open the validation set or the training set, or a sample of 1 000 classes.

    The sample is ``imagenet-sample/{target,source}``, each with a CSV file of labels beside it.
    """
    home, side = data_root(root), size or 224
    part = "target" if split == "test" else "source"
    sample = home / "imagenet-sample"
    if (sample / f"{part}.csv").is_file() and (split == "train" or not (home / "imagenet").is_dir()):
        return labeled_csv(sample / part, sample / f"{part}.csv", classes=1000, size=side)
    if split == "train":
        return image_folder(home / "imagenet" / "train", labeled=True, size=side)
    return RELEASES["imagenet"].open(dataset_path("imagenet", root), "val", side)


def _open_pacs(source: str) -> Opener:
    """Open the source domain; every fifth image is left out of training and of the buffer, to measure it."""

    def open_split(split: Split, root: Path | None, size: int | None) -> ImageDataset:
        images = pacs_domain(dataset_path("pacs", root), source, size=_square(size or 224))
        chosen = [index for index in range(len(images)) if (index % 5 == 0) == (split == "test")]
        files = tuple(images.files[index] for index in chosen)
        return dataclasses.replace(images, files=files, labels=images.labels[chosen])

    return open_split


def _dataset(name: str, facts: dict[str, Any]) -> Dataset:
    """Return the record of a table of datasets.toml."""
    clean, shifted = RELEASES.get(facts.get("clean", "")), RELEASES.get(facts.get("shifted", ""))

    def open_split(split: Split, root: Path | None, size: int | None) -> ImageDataset:
        return embedded(split) if clean is None else clean.open(clean.path(root), split, size)

    fields = {key: _frozen(value) for key, value in facts.items()} | {"clean": clean, "shifted": shifted}
    return Dataset(**fields, name=name, open=_open_imagenet if name == "imagenet" else open_split)


def _datasets() -> Iterator[Dataset]:
    for name, facts in FACTS["datasets"].items():
        record = _dataset(name, facts)
        if name != "pacs":
            yield record
            continue
        for source in DOMAINS:
            shifts = tuple(domain for domain in DOMAINS if domain != source)
            yield dataclasses.replace(record, name=f"pacs:{source}", open=_open_pacs(source), domains=shifts)


DATASETS: dict[str, Dataset] = {record.name: record for record in _datasets()}
"""By name; "pacs:photo" is PACS with the photographs as the source domain."""
