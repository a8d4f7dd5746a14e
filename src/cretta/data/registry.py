"""The datasets: one record for each, with its images, its published files, and the settings of the paper.

MD5 sums and sizes are the publishers', as public code states and checks them.
"""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cretta.data import checksums
from cretta.data.cifar import Split, cifar10, cifar100, cifar_c, embedded
from cretta.data.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS
from cretta.data.dataset import FileDataset, ImageDataset
from cretta.data.domains import parse_domain
from cretta.data.folder import image_folder, subfolders
from cretta.data.imagenet import imagenet_c, imagenet_validation, labelled_csv
from cretta.data.pacs import DOMAINS, pacs_domain
from cretta.data.releases import Archive, Release, data_root
from cretta.data.tiny_imagenet import tiny_imagenet_200, tiny_imagenet_c
from cretta.options import unknown

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
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name]


def release(name: str) -> Release:
    """Return a release by its name.

    >>> release("cifar100-c").folder
    'CIFAR-100-C'
    """
    if name not in RELEASES:
        raise unknown("dataset", name, RELEASES)
    return RELEASES[name]


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


def subset(images: FileDataset, keep: Callable[[int], bool]) -> FileDataset:
    """Return the images whose index ``keep`` accepts."""
    indices = [index for index in range(len(images)) if keep(index)]
    files = tuple(images.files[index] for index in indices)
    return dataclasses.replace(images, files=files, labels=images.labels[indices])


# The published files


def _toronto(file: str, md5: str, size: int) -> Archive:
    sites = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
    return Archive(file, md5, size, tuple(f"{site}{file}" for site in sites))


def _zenodo(file: str, md5: str, size: int, *records: int, folders: tuple[str, ...] = ()) -> Archive:
    urls = tuple(f"https://zenodo.org/records/{record}/files/{file}?download=1" for record in records)
    return Archive(file, md5, size, urls, folders)


def _has_file(*files: str) -> Callable[[Path], bool]:
    return lambda folder: any((folder / file).is_file() for file in files)


def _has_corruption(folder: Path) -> bool:
    return any((folder / name).is_dir() for name in (*CORRUPTIONS, *VALIDATION_CORRUPTIONS))


def _has_wnid(folder: Path) -> bool:
    return any(re.fullmatch(r"n\d{8}", child.name) for child in subfolders(folder))


def _square(size: int | None) -> tuple[int, int] | None:
    """Scale the complete image, not its center."""
    return None if size is None else (size, size)


_CITE_CORRUPTIONS = "the authors ask to cite Hendrycks and Dietterich (2019)"
_IMAGENET_TERMS = "ImageNet's terms of access: research and education, not commercial"


def _cifar_release(number: int, python_md5: str, python_size: int, **fields: Any) -> Release:
    reader = cifar10 if number == 10 else cifar100
    return Release(
        name=f"cifar{number}",
        contents=f"60 000 of 32 px, {number} classes",
        archives=(_toronto(f"cifar-{number}-python.tar.gz", python_md5, python_size),),
        other_archives=(f"cifar-{number}-binary.tar.gz",),
        readable_archive=True,
        open=lambda path, part, size: reader(path, "train" if part == "train" else "test"),
        classes=number,
        images={"train": 50_000, "test": 10_000},
        example=f'cifar{number}(path, "test")',
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        license="no license stated; the authors ask to cite Krizhevsky (2009)",
        unpacked_size=190_000_000,
        **fields,
    )


def _corrupted_release(reader: str, images: int, record: int, **fields: Any) -> Release:
    return Release(
        images=dict.fromkeys(CORRUPTIONS, images),
        corrupted=True,
        example=f'{reader}(path, "fog", severity=5)',
        page=f"https://zenodo.org/records/{record}",
        **fields,
    )


def _cifar_c_release(number: int, md5: str, size: int, record: int, **fields: Any) -> Release:
    return _corrupted_release(
        "cifar_c",
        10_000,
        record,
        name=f"cifar{number}-c",
        contents="test set, 19 corruptions",
        folder=f"CIFAR-{number}-C",
        archives=(_zenodo(f"CIFAR-{number}-C.tar", md5, size, record),),
        is_present=_has_file("labels.npy"),
        open=lambda path, domain, size: cifar_c(path, *parse_domain(domain)),
        classes=number,
        unpacked_size=2_950_000_000,
        **fields,
    )


_CIFAR10 = _cifar_release(
    10,
    "c58f30108f718f92721af3b95e74349a",
    170_498_071,
    folder="cifar-10-batches-py",
    other_folders=("cifar-10-batches-bin",),
    is_present=_has_file("test_batch", "test_batch.bin"),
    file_md5=checksums.CIFAR10,
)
_CIFAR10_C = _cifar_c_release(
    10,
    "56bf5dcef84df0e2308c6dcbcbbd8499",
    2_918_471_680,
    2535967,
    file_md5=checksums.CIFAR10_C,
    license=f"CC BY 4.0; {_CITE_CORRUPTIONS}",
)
_CIFAR100 = _cifar_release(
    100,
    "eb9058c3a382ffc7106e4002c42a8d85",
    169_001_437,
    folder="cifar-100-python",
    other_folders=("cifar-100-binary",),
    is_present=lambda folder: _has_file("test", "test.bin")(folder) and _has_file("train", "train.bin")(folder),
    file_md5=checksums.CIFAR100,
)
_CIFAR100_C = _cifar_c_release(
    100,
    "11f0ed0f1191edbf9fa23466ae6021d3",
    2_918_473_216,
    3555552,
    file_md5=checksums.CIFAR100_C,
    license=f"see its page; {_CITE_CORRUPTIONS}",
)
_TINY_IMAGENET = Release(
    name="tiny-imagenet",
    contents="110 000 of 64 px, 200 classes",
    folder="tiny-imagenet-200",
    archives=(
        Archive(
            "tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            248_100_043,
            ("https://cs231n.stanford.edu/tiny-imagenet-200.zip",),
        ),
    ),
    is_present=_has_file("wnids.txt"),
    open=lambda path, part, size: tiny_imagenet_200(path, "train" if part == "train" else "val", size=_square(size)),
    classes=200,
    images={"train": 100_000, "val": 10_000},
    example='tiny_imagenet_200(path, "val")',
    page="https://cs231n.stanford.edu",
    license=_IMAGENET_TERMS,
    unpacked_size=600_000_000,
)
_TINY_IMAGENET_C = _corrupted_release(
    "tiny_imagenet_c",
    10_000,
    2536630,
    name="tiny-imagenet-c",
    contents="val set, 15 corruptions",
    folder="Tiny-ImageNet-C",
    # The authors' repository names the first record; the second has the same file. A third, 2469796, has another file,
    # of an earlier version.
    archives=(_zenodo("Tiny-ImageNet-C.tar", "f9c9a9dbdc11469f0b850190f7ad8be1", 1_794_775_040, 2536630, 8206060),),
    is_present=_has_corruption,
    open=lambda path, domain, size: tiny_imagenet_c(path, *parse_domain(domain), size=_square(size)),
    classes=200,
    license=f"see its page; {_CITE_CORRUPTIONS}",
    unpacked_size=3_500_000_000,
)
_IMAGENET = Release(
    name="imagenet",
    contents="50 000 to validate on",
    folder="imagenet",
    other_folders=("imagenet/val",),
    archives=(Archive("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622", 6_744_924_160),),
    is_present=_has_wnid,
    open=lambda path, part, size: imagenet_validation(path, size=size or 224),
    classes=1000,
    images={"val": 50_000},
    example="imagenet_validation(path)",
    page="https://image-net.org/download.php",
    license=_IMAGENET_TERMS,
    unpacked_size=6_900_000_000,
    manual="it needs an account at https://image-net.org. Download ILSVRC2012_img_val.tar there. It does not name the "
    "classes, so put a list of them beside it (LOC_val_solution.csv of Kaggle's ImageNet, or valprep.sh). A folder "
    "with the images in class folders is accepted as well.",
)
_IMAGENET_C_ARCHIVES = """
    noise   e80562d7f6c3f8834afb1ecf27252745 22565673785 gaussian_noise shot_noise impulse_noise
    blur    2d8e81fdd8e07fef67b9334fa635e45c  7112704951 defocus_blur glass_blur motion_blur zoom_blur
    weather 33ffea4db4d93fe4a428c40a6ce0c25d 12797438995 snow frost fog brightness
    digital 89157860d7b10d5797849337ca2e5c03  7757510705 contrast elastic_transform pixelate jpeg_compression
    extra   d492dfba5fc162d8ec2c3cd8ee672984 15789490144 speckle_noise spatter gaussian_blur saturate
"""
_IMAGENET_C = _corrupted_release(
    "imagenet_c",
    50_000,
    2235448,
    name="imagenet-c",
    contents="val set, 19 corruptions",
    folder="ImageNet-C",
    archives=tuple(
        _zenodo(f"{group}.tar", md5, int(size), 2235448, folders=tuple(folders))
        for group, md5, size, *folders in map(str.split, _IMAGENET_C_ARCHIVES.strip().splitlines())
    ),
    is_present=_has_corruption,
    open=lambda path, domain, size: imagenet_c(path, *parse_domain(domain), size=size),
    classes=1000,
    license=f"see its page; {_CITE_CORRUPTIONS}",
    unpacked_size=78_000_000_000,
)
_PACS = Release(
    name="pacs",
    contents="9 991 in 4 styles, 7 classes",
    folder="pacs",
    is_present=lambda folder: all((folder / domain).is_dir() for domain in DOMAINS),
    open=lambda path, domain, size: pacs_domain(path, domain, size=_square(size or 224)),
    classes=7,
    images=dict(zip(DOMAINS, (1670, 2048, 2344, 3929), strict=True)),
    balanced=False,
    example='pacs_domain(path, "sketch", size=224)',
    page="https://domaingeneralization.github.io",
    license="see its page; cite Li et al. (2017)",
    unpacked_size=250_000_000,
    manual="its authors share it in a drive, see https://domaingeneralization.github.io. Download it there, as a "
    "folder or a .zip that holds photo, art_painting, cartoon and sketch.",
)


# The datasets


def _open_release(published: Release) -> Opener:
    return lambda split, root, size: published.open(published.path(root), split, size)


def _open_imagenet(split: Split, root: Path | None, size: int | None) -> ImageDataset:
    """Open the validation set or the training set, or a sample of 1 000 classes.

    The sample is ``imagenet-sample/{target,source}``, each with a CSV file of labels beside it.
    """
    home, side = data_root(root), size or 224
    part = "target" if split == "test" else "source"
    sample = home / "imagenet-sample"
    if (sample / f"{part}.csv").is_file() and (split == "train" or not (home / "imagenet").is_dir()):
        return labelled_csv(sample / part, sample / f"{part}.csv", classes=1000, size=side)
    if split == "train":
        return image_folder(home / "imagenet" / "train", labelled=True, size=side)
    return _IMAGENET.open(_IMAGENET.path(root), "val", side)


def _pacs(source: str) -> Dataset:
    """Return PACS with one domain as the source, and the others as shifts."""

    def open_split(split: Split, root: Path | None, size: int | None) -> ImageDataset:
        images = pacs_domain(_PACS.path(root), source, size=_square(size or 224))
        # Every fifth image is left out of training and of the buffer, to measure the source domain itself.
        return subset(images, lambda index: (index % 5 == 0) == (split == "test"))

    return Dataset(
        name=f"pacs:{source}",
        title="PACS",
        open=open_split,
        clean=_PACS,
        shifted=_PACS,
        domains=tuple(domain for domain in DOMAINS if domain != source),
        generates=False,
        classes=7,
        test_images=9991,
        batch_size=100,
        preset="pacs",
    )


DATASETS: dict[str, Dataset] = {
    record.name: record
    for record in (
        Dataset(
            name="embedded",
            title="CIFAR10-C",
            open=lambda split, root, size: embedded(split),
            classes=10,
            test_images=2000,
            side=32,
            resizable=False,
            preset="cifar10",
        ),
        Dataset(
            name="cifar10",
            title="CIFAR10-C",
            open=_open_release(_CIFAR10),
            clean=_CIFAR10,
            shifted=_CIFAR10_C,
            classes=10,
            test_images=10_000,
            side=32,
            resizable=False,
            preset="cifar10",
        ),
        Dataset(
            name="cifar100",
            title="CIFAR100-C",
            open=_open_release(_CIFAR100),
            clean=_CIFAR100,
            shifted=_CIFAR100_C,
            classes=100,
            test_images=10_000,
            side=32,
            resizable=False,
            preset="cifar100",
        ),
        Dataset(
            name="tiny-imagenet",
            title="TinyImageNet-C",
            open=_open_release(_TINY_IMAGENET),
            clean=_TINY_IMAGENET,
            shifted=_TINY_IMAGENET_C,
            classes=200,
            test_images=10_000,
            side=64,
            batch_size=1000,
            preset="tiny-imagenet",
        ),
        Dataset(
            name="imagenet",
            title="ImageNet-C",
            open=_open_imagenet,
            clean=_IMAGENET,
            shifted=_IMAGENET_C,
            classes=1000,
            test_images=50_000,
            batch_size=64,
            preset="imagenet",
        ),
        *map(_pacs, DOMAINS),
    )
}
"""By name; "pacs:photo" is PACS with the photographs as the source domain."""

RELEASES: dict[str, Release] = {
    published.name: published
    for record in DATASETS.values()
    for published in (record.clean, record.shifted)
    if published is not None
}
"""By name: what `cretta data get` gets."""
