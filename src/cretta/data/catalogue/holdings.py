"""What tells a dataset's folder, and what it should hold."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from cretta.data import pacs
from cretta.data.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS
from cretta.data.dataset import ImageDataset
from cretta.data.folder import subfolders

from .records import Part

SEVERITIES = range(1, 6)

Reader = Callable[..., ImageDataset]


def splits(path: Path, read: Reader, classes: int, **images: int) -> Iterator[Part]:
    """The splits by name, with so many images, equally many of each class."""
    for split, count in images.items():
        yield Part(split, [partial(read, path, split)], classes, count, count // classes)


def corrupted(path: Path, read: Reader, classes: int, images: int, ending: str = "") -> Iterator[Part]:
    """The fifteen corruptions that must be there, and those to validate on that are."""
    extra = [name for name in VALIDATION_CORRUPTIONS if (path / f"{name}{ending}").exists()]
    for name in (*CORRUPTIONS, *extra):
        sets = [partial(read, path, name, severity) for severity in SEVERITIES]
        yield Part(name, sets, classes, images, images // classes)


def domains(path: Path) -> Iterator[Part]:
    """Those of PACS, whose classes differ in size."""
    for domain, images in zip(pacs.DOMAINS, (1670, 2048, 2344, 3929), strict=True):
        yield Part(domain, [partial(pacs.pacs_domain, path, domain)], len(pacs.CLASSES), images)


def has(*files: str) -> Callable[[Path], bool]:
    """Whether one of these files is there."""
    return lambda folder: any((folder / file).is_file() for file in files)


def has_corruptions(folder: Path) -> bool:
    """Whether one corruption or more has a folder."""
    return any((folder / name).is_dir() for name in (*CORRUPTIONS, *VALIDATION_CORRUPTIONS))


def has_wnids(folder: Path) -> bool:
    """Whether there are folders for ImageNet's classes."""
    return any(re.fullmatch(r"n\d{8}", each.name) for each in subfolders(folder))


def has_domains(folder: Path) -> bool:
    """Whether all of PACS' domains are there."""
    return all((folder / domain).is_dir() for domain in pacs.DOMAINS)
