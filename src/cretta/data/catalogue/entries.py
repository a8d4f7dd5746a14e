"""The datasets by name, and who publishes them.

MD5 sums and sizes are those of the publishers, as public code states and checks them.
"""

from cretta.data import cifar, imagenet, sums
from cretta.data import tiny_imagenet as tiny
from cretta.errors import OptionError

from .holdings import corrupted, domains, has, has_corruptions, has_domains, has_wnids, splits
from .records import Archive, Entry

_TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
_NO_TERMS = "no licence stated; the authors ask to cite Krizhevsky (2009)"
_IMAGENET_TERMS = "ImageNet's terms of access: research and education, not commercial"
_CORRUPTED_TERMS = "see its page; the authors ask to cite Hendrycks and Dietterich (2019)"
_IMAGENET_C = """
    noise   e80562d7f6c3f8834afb1ecf27252745 22565673785 gaussian_noise shot_noise impulse_noise
    blur    2d8e81fdd8e07fef67b9334fa635e45c  7112704951 defocus_blur glass_blur motion_blur zoom_blur
    weather 33ffea4db4d93fe4a428c40a6ce0c25d 12797438995 snow frost fog brightness
    digital 89157860d7b10d5797849337ca2e5c03  7757510705 contrast elastic_transform pixelate jpeg_compression
    extra   d492dfba5fc162d8ec2c3cd8ee672984 15789490144 speckle_noise spatter gaussian_blur saturate
"""


def names() -> tuple[str, ...]:
    """The datasets there are.

    >>> names()[:3]
    ('cifar10', 'cifar10-c', 'cifar100')
    """
    return tuple(ENTRIES)


def entry(name: str) -> Entry:
    """A dataset by its name.

    >>> entry("cifar100-c").folder
    'CIFAR-100-C'
    """
    if name not in ENTRIES:
        raise OptionError(f"no dataset {name!r}: give one of {', '.join(ENTRIES)}.")
    return ENTRIES[name]


def _toronto(file: str, md5: str, size: int) -> Archive:
    return Archive(file, md5, size, tuple(f"{site}{file}" for site in _TORONTO))


def _zenodo(file: str, md5: str, size: int, *records: int, folders: tuple[str, ...] = ()) -> Archive:
    addresses = tuple(f"https://zenodo.org/records/{each}/files/{file}?download=1" for each in records)
    return Archive(file, md5, size, addresses, folders)


ENTRIES = {
    each.name: each
    for each in (
        Entry(
            name="cifar10",
            title="60 000 of 32 px, 10 classes",
            folder="cifar-10-batches-py",
            also=("cifar-10-batches-bin",),
            archives=(_toronto("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),),
            alternatives=(_toronto("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),),
            files=sums.CIFAR10,
            marks=has("test_batch", "test_batch.bin"),
            parts=lambda path: splits(path, cifar.cifar10, 10, train=5 * cifar.BATCH, test=cifar.BATCH),
            read='cifar10(path, "test")',
            page="https://www.cs.toronto.edu/~kriz/cifar.html",
            terms=_NO_TERMS,
            room=190_000_000,
            readable_packed=True,
        ),
        Entry(
            name="cifar10-c",
            title="test set, 19 corruptions",
            folder="CIFAR-10-C",
            archives=(_zenodo("CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499", 2_918_471_680, 2535967),),
            files=sums.CIFAR10_C,
            marks=has("labels.npy"),
            parts=lambda path: corrupted(path, cifar.cifar_c, 10, cifar.BATCH, ".npy"),
            read='cifar_c(path, "fog", severity=5)',
            page="https://zenodo.org/records/2535967",
            terms="CC BY 4.0; the authors ask to cite Hendrycks and Dietterich (2019)",
            room=2_950_000_000,
        ),
        Entry(
            name="cifar100",
            title="60 000 of 32 px, 100 classes",
            folder="cifar-100-python",
            also=("cifar-100-binary",),
            archives=(_toronto("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),),
            alternatives=(_toronto("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),),
            files=sums.CIFAR100,
            marks=lambda folder: has("test", "test.bin")(folder) and has("train", "train.bin")(folder),
            parts=lambda path: splits(path, cifar.cifar100, 100, train=5 * cifar.BATCH, test=cifar.BATCH),
            read='cifar100(path, "test")',
            page="https://www.cs.toronto.edu/~kriz/cifar.html",
            terms=_NO_TERMS,
            room=190_000_000,
            readable_packed=True,
        ),
        Entry(
            name="cifar100-c",
            title="test set, 19 corruptions",
            folder="CIFAR-100-C",
            archives=(_zenodo("CIFAR-100-C.tar", "11f0ed0f1191edbf9fa23466ae6021d3", 2_918_473_216, 3555552),),
            files=sums.CIFAR100_C,
            marks=has("labels.npy"),
            parts=lambda path: corrupted(path, cifar.cifar_c, 100, cifar.BATCH, ".npy"),
            read='cifar_c(path, "fog", severity=5)',
            page="https://zenodo.org/records/3555552",
            terms=_CORRUPTED_TERMS,
            room=2_950_000_000,
        ),
        Entry(
            name="tiny-imagenet-200",
            title="110 000 of 64 px, 200 classes",
            folder="tiny-imagenet-200",
            archives=(
                Archive(
                    "tiny-imagenet-200.zip",
                    "90528d7ca1a48142e341f4ef8d21d0de",
                    248_100_043,
                    ("https://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                ),
            ),
            marks=has("wnids.txt"),
            parts=lambda path: splits(
                path, tiny.tiny_imagenet_200, tiny.CLASSES, train=500 * tiny.CLASSES, val=50 * tiny.CLASSES
            ),
            read='tiny_imagenet_200(path, "val")',
            page="https://cs231n.stanford.edu",
            terms=_IMAGENET_TERMS,
            room=600_000_000,
        ),
        Entry(
            name="tiny-imagenet-c",
            title="val set, 15 corruptions",
            folder="Tiny-ImageNet-C",
            archives=(
                # The authors' repository names the first record; the second has the same file. A third, 2469796, has
                # another one, of an earlier make.
                _zenodo("Tiny-ImageNet-C.tar", "f9c9a9dbdc11469f0b850190f7ad8be1", 1_794_775_040, 2536630, 8206060),
            ),
            marks=has_corruptions,
            parts=lambda path: corrupted(path, tiny.tiny_imagenet_c, tiny.CLASSES, 50 * tiny.CLASSES),
            read='tiny_imagenet_c(path, "fog", severity=5)',
            page="https://zenodo.org/records/2536630",
            terms=_CORRUPTED_TERMS,
            room=3_500_000_000,
        ),
        Entry(
            name="imagenet",
            title="50 000 to validate on",
            folder="imagenet",
            also=("imagenet/val",),
            archives=(Archive("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622", 6_744_924_160),),
            marks=has_wnids,
            parts=lambda path: splits(
                path, lambda path, _: imagenet.imagenet_validation(path), imagenet.CLASSES, val=50 * imagenet.CLASSES
            ),
            read="imagenet_validation(path)",
            page="https://image-net.org/download.php",
            terms=_IMAGENET_TERMS,
            room=6_900_000_000,
            by_hand="it needs an account at https://image-net.org. Get ILSVRC2012_img_val.tar there; as it names no "
            "classes, put a list of them beside it (LOC_val_solution.csv of Kaggle's ImageNet, or valprep.sh). "
            "A folder with the images in class folders will do as well.",
        ),
        Entry(
            name="imagenet-c",
            title="val set, 19 corruptions",
            folder="ImageNet-C",
            archives=tuple(
                _zenodo(f"{group}.tar", md5, int(size), 2235448, folders=tuple(folders))
                for group, md5, size, *folders in map(str.split, _IMAGENET_C.strip().splitlines())
            ),
            marks=has_corruptions,
            parts=lambda path: corrupted(path, imagenet.imagenet_c, imagenet.CLASSES, 50 * imagenet.CLASSES),
            read='imagenet_c(path, "fog", severity=5)',
            page="https://zenodo.org/records/2235448",
            terms=_CORRUPTED_TERMS,
            room=78_000_000_000,
        ),
        Entry(
            name="pacs",
            title="9 991 in 4 styles, 7 classes",
            folder="pacs",
            archives=(),
            marks=has_domains,
            parts=domains,
            read='pacs_domain(path, "sketch", size=224)',
            page="https://domaingeneralization.github.io",
            terms="see its page; cite Li et al. (2017)",
            room=250_000_000,
            by_hand="its authors share it in a drive, see https://domaingeneralization.github.io. Get it there, as a "
            "folder or a .zip that holds photo, art_painting, cartoon and sketch.",
        ),
    )
}
