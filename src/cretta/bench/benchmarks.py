"""The benchmarks by name: their clean, shifted and source images, and the paper's settings for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path

from cretta.data import (
    CORRUPTIONS,
    FileDataset,
    ImageDataset,
    cifar10,
    cifar100,
    cifar_c,
    corrupted,
    embedded,
    image_folder,
    imagenet_c,
    imagenet_validation,
    labelled_csv,
    pacs,
    pacs_domain,
    tiny_imagenet_200,
    tiny_imagenet_c,
)
from cretta.data.catalogue import place, root_of
from cretta.errors import OptionError, StateError
from cretta.options import unknown

CLEAN = "clean"


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A source, its shifts, and how the paper runs it."""

    name: str
    title: str
    clean: Callable[[], ImageDataset]
    """Test images like the source's."""
    training: Callable[[], ImageDataset]
    """Where buffers come from."""
    shifted: Callable[[str], ImageDataset]
    """The images of a domain other than "clean"."""
    domains: tuple[str, ...]
    """The shifts that the paper averages over; corruptions without their severity."""
    batch_size: int = 200
    preset: str = ""
    """The preset that methods have for it, those that do."""
    architecture: str = "wrn-40-2"
    """The paper's backbone."""
    corruptions: str = "generated"
    """Whether shifted images are made here or those published."""

    def __post_init__(self) -> None:
        # Read or listed once, however often they are asked for.
        for name in ("clean", "training"):
            object.__setattr__(self, name, cache(getattr(self, name)))

    def images(self, domain: str) -> ImageDataset:
        """The images of any domain."""
        return self.clean() if domain == CLEAN else self.shifted(domain)


FIXED = ("embedded", "cifar10", "cifar100")
"""Whose images have 32 px and no other size."""
NAMES = ("embedded", "cifar10", "cifar100", "tiny-imagenet", "imagenet")


def benchmark(name: str, root: Path | None = None, size: int | None = None) -> Benchmark:
    """The benchmark of that name; "pacs:photo" has photographs as its source; a path is a folder of one's own.

    Such a folder holds ``train/<class>/…`` and ``test/<class>/…``. ``size`` scales and crops images that come as files.
    """
    if size is not None and name in FIXED:
        raise OptionError(f"size={size} for {name}: its images have 32 px; leave it out.")
    if name == "embedded":
        test = cache(lambda: embedded("test"))
        return Benchmark(
            name,
            "CIFAR-10, the embedded slice",
            test,
            lambda: embedded("train"),
            lambda domain: corrupted(test(), *split(domain)),
            CORRUPTIONS,
            preset="cifar10",
        )
    if name in ("cifar10", "cifar100"):
        return _cifar(name, root)
    if name == "tiny-imagenet":
        return _tiny(root, size)
    if name == "imagenet":
        return _imagenet(root, size)
    if name.startswith("pacs:"):
        return _pacs(name, root, size)
    if is_folder(name):
        return _folder(Path(name), size)
    raise unknown("benchmark", name, (*NAMES, "pacs:photo", "pacs:art_painting", "pacs:cartoon", "pacs:sketch"))


def is_folder(name: str) -> bool:
    """Whether a benchmark is a folder of one's own."""
    return name not in NAMES and not name.startswith("pacs:") and Path(name).is_dir()


def split(domain: str) -> tuple[str, int]:
    """("fog", 5) of "fog/5"."""
    corruption, _, severity = domain.partition("/")
    if not severity.isdecimal():
        raise OptionError(f"domain {domain!r}: give a corruption and its severity, such as fog/5, or {CLEAN}.")
    return corruption, int(severity)


def _cifar(name: str, root: Path | None) -> Benchmark:
    read = cifar10 if name == "cifar10" else cifar100
    folder = root_of(root) / ("CIFAR-10-C" if name == "cifar10" else "CIFAR-100-C")
    published = folder.is_dir()

    @cache
    def clean() -> ImageDataset:
        return read(place(name, root), "test")

    def shifted(domain: str) -> ImageDataset:
        return cifar_c(folder, *split(domain)) if published else corrupted(clean(), *split(domain))

    return Benchmark(
        name,
        "CIFAR-10-C" if name == "cifar10" else "CIFAR-100-C",
        clean,
        lambda: read(place(name, root), "train"),
        shifted,
        CORRUPTIONS,
        preset=name,
        corruptions="published" if published else "generated",
    )


def _tiny(root: Path | None, size: int | None) -> Benchmark:
    folder = root_of(root) / "Tiny-ImageNet-C"
    published = folder.is_dir()
    sides = None if size is None else (size, size)  # of the whole image, not of its middle

    @cache
    def clean() -> ImageDataset:
        return tiny_imagenet_200(place("tiny-imagenet-200", root), "val", size=sides)

    return Benchmark(
        "tiny-imagenet",
        "TinyImageNet-C",
        clean,
        lambda: tiny_imagenet_200(place("tiny-imagenet-200", root), "train", size=sides),
        lambda domain: (
            tiny_imagenet_c(folder, *split(domain), size=sides) if published else corrupted(clean(), *split(domain))
        ),
        CORRUPTIONS,
        batch_size=1000,
        preset="tiny_imagenet",
        architecture="wrn-28-10",
        corruptions="published" if published else "generated",
    )


def _imagenet(root: Path | None, size: int | None) -> Benchmark:
    """The validation set, or a sample of it: ``imagenet-sample/{target,source}`` with a CSV file of labels each."""
    base, side = root_of(root), size or 224
    folder, sample = base / "ImageNet-C", base / "imagenet-sample"
    published = folder.is_dir()

    @cache
    def clean() -> ImageDataset:
        if sample.is_dir() and not (base / "imagenet").is_dir():
            return labelled_csv(sample / "target", sample / "target.csv", classes=1000, size=side)
        return imagenet_validation(place("imagenet", root), size=side)

    def training() -> ImageDataset:
        if (sample / "source.csv").is_file():
            return labelled_csv(sample / "source", sample / "source.csv", classes=1000, size=side)
        return image_folder(base / "imagenet" / "train", labelled=True, size=side)

    def shifted(domain: str) -> ImageDataset:
        return imagenet_c(folder, *split(domain), size=size) if published else corrupted(clean(), *split(domain))

    return Benchmark(
        "imagenet",
        "ImageNet-C",
        clean,
        training,
        shifted,
        CORRUPTIONS,
        batch_size=64,
        preset="imagenet",
        architecture="",
        corruptions="published" if published else "generated",
    )


def _pacs(name: str, root: Path | None, size: int | None) -> Benchmark:
    source = name.removeprefix("pacs:")
    if source not in pacs.DOMAINS:
        raise unknown("domain of PACS", source, pacs.DOMAINS)
    side = size or 224

    def domain(called: str) -> FileDataset:
        return pacs_domain(place("pacs", root), called, size=(side, side))

    # Every fifth image is kept from training and from the buffer, to measure the source itself.
    return Benchmark(
        name,
        f"PACS, source {source.replace('_', ' ')}",
        lambda: subset(domain(source), lambda index: index % 5 == 0),
        lambda: subset(domain(source), lambda index: index % 5 != 0),
        domain,
        tuple(each for each in pacs.DOMAINS if each != source),
        batch_size=100,
        preset="pacs",
        architecture="",
        corruptions="none",
    )


def _folder(folder: Path, size: int | None) -> Benchmark:
    @cache
    def test() -> ImageDataset:
        return image_folder(folder / "test", labelled=True, classes=training().classes, size=size)

    @cache
    def training() -> ImageDataset:
        return image_folder(folder / "train", labelled=True, size=size)

    if not (folder / "train").is_dir() or not (folder / "test").is_dir():
        raise StateError(
            f"{folder}: expected the folders train/<class>/ and test/<class>/ in it; make them, or give another folder."
        )
    return Benchmark(
        str(folder), folder.name, test, training, lambda domain: corrupted(test(), *split(domain)), CORRUPTIONS
    )


def subset(dataset: FileDataset, chosen: Callable[[int], bool]) -> FileDataset:
    """The images at the chosen places."""
    places = [index for index in range(len(dataset)) if chosen(index)]
    return dataclasses.replace(
        dataset, files=tuple(dataset.files[index] for index in places), labels=dataset.labels[places]
    )
