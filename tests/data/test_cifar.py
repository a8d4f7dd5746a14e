import json
import os
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cretta.data import ArrayDataset, cifar, cifar10, cifar100, cifar_c, embedded
from cretta.data.cifar import Split
from cretta.data.fetch.unpack import unpack
from cretta.errors import OptionError, StateError

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "cifar-100-python.tar.xz"
real = pytest.mark.skipif(not REAL.is_file(), reason="CIFAR-100 is not beside the repository")


@pytest.fixture
def embedded_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "embedded"
    shutil.copytree(str(cifar.EMBEDDED), copy)
    monkeypatch.setattr(cifar, "EMBEDDED", copy)
    return copy


@pytest.mark.parametrize(("split", "count"), [("test", 2000), ("train", 1000)])
def test_holds_what_it_says(split: Split, count: int) -> None:
    dataset = embedded(split)
    assert len(dataset) == count
    assert dataset.images.shape == (count, 32, 32, 3)
    assert dataset.images.dtype == np.uint8
    assert dataset.labels.shape == (count,)
    assert dataset.labels.dtype == np.int64
    assert dataset.name == "cifar10"
    assert dataset.classes[0] == "airplane"
    assert dataset.classes[9] == "truck"
    assert len(dataset.classes) == 10
    # torch.from_numpy warns about arrays that must not be written to, and warnings are errors here.
    assert torch.from_numpy(dataset.images).shape == dataset.images.shape


def test_test_images_are_in_the_official_order() -> None:
    dataset = embedded("test")
    assert dataset.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    # First and last pixel of the first test image (a cat), as in the official files.
    image, label = dataset[0]
    assert image[0, 0].tolist() == [158, 112, 49]
    assert image[31, 31].tolist() == [21, 67, 110]
    assert (label, type(label)) == (3, int)
    # Close to the channel means of the whole set: no channel or value range was mixed up.
    means = dataset.images.mean((0, 1, 2)) / 255
    assert np.abs(means - [0.4914, 0.4822, 0.4465]).max() < 0.015


def test_any_ten_training_images_in_a_row_are_balanced() -> None:
    labels = embedded("train").labels
    assert labels.tolist() == list(range(10)) * 100
    positions = json.loads((cifar.EMBEDDED / "index.json").read_text("utf-8"))["splits"]["train"]["positions"]
    assert len(set(positions)) == 1000
    # Within a class the official order is kept; the first training images are frog, truck, truck, deer.
    assert all(positions[label::10] == sorted(positions[label::10]) for label in range(10))
    assert (positions[6], positions[9], positions[19], positions[4]) == (0, 1, 2, 3)


def test_tiles_are_cut_as_a_loop_would_cut_them() -> None:
    with (cifar.EMBEDDED / "train.png").open("rb") as file, Image.open(file) as sheet:
        columns = sheet.width // 32
        tiles = [
            np.asarray(sheet.crop((32 * column, 32 * row, 32 * column + 32, 32 * row + 32)))
            for row in range(2)
            for column in range(columns)
        ]
    assert np.array_equal(embedded("train").images[: 2 * columns], np.stack(tiles))


def test_every_image_has_a_different_content() -> None:
    for split in ("test", "train"):
        assert len({image.tobytes() for image in embedded(split).images}) == len(embedded(split))


def test_each_call_gives_arrays_of_its_own() -> None:
    first = embedded("train")
    first.images[:] = 0
    assert embedded("train").images.any()


def test_all_images_of_a_split_are_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    decode = Image.open
    monkeypatch.setattr(Image, "open", lambda file: opened.append(file) or decode(file))  # type: ignore[func-returns-value]
    assert len(embedded("test")) == 2000
    assert len(opened) == 1


def test_a_changed_pixel_is_noticed(embedded_copy: Path) -> None:
    with Image.open(embedded_copy / "train.png") as opened:
        pixels = np.array(opened)
    pixels[100, 100, 1] ^= 1
    Image.fromarray(pixels).save(embedded_copy / "train.png")
    with pytest.raises(StateError, match=r"train images are damaged.*Reinstall"):
        embedded("train")
    assert len(embedded("test")) == 2000


@pytest.mark.parametrize("keep", [0, 20, 1_000_000])
def test_a_cut_sheet_is_noticed(keep: int, embedded_copy: Path) -> None:
    file = embedded_copy / "test.png"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(StateError, match="reinstall"):
        embedded("test")


def test_a_flipped_byte_in_the_sheet_is_noticed(embedded_copy: Path) -> None:
    file = embedded_copy / "train.png"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(StateError, match=r"(?i)reinstall"):
        embedded("train")


def test_a_lost_file_is_noticed(embedded_copy: Path) -> None:
    (embedded_copy / "train.png").unlink()
    with pytest.raises(StateError, match="reinstall"):
        embedded("train")
    (embedded_copy / "index.json").unlink()
    with pytest.raises(StateError, match="reinstall"):
        embedded("test")


def test_refuses_other_splits() -> None:
    with pytest.raises(OptionError, match=r"'val'.*train, test"):
        embedded("val")  # type: ignore[arg-type]


# The dataset class


def bytes_and_labels(count: int = 3) -> tuple[Any, Any]:
    return np.zeros((count, 4, 5, 3), np.uint8), np.arange(count, dtype=np.int64)


def test_dataset_is_a_sequence_of_pairs() -> None:
    images, labels = bytes_and_labels()
    images[2] = 7
    dataset = ArrayDataset("toy", images, labels, ("a", "b", "c"), domain="sketch")
    pairs = [dataset[index] for index in range(len(dataset))]
    assert [label for _, label in pairs] == [0, 1, 2]
    assert (pairs[2][0] == 7).all()
    assert pairs[0][0].shape == (4, 5, 3)
    assert dataset.domain == "sketch"
    with pytest.raises(IndexError):
        dataset[3]
    with pytest.raises(AttributeError):
        dataset.name = "other"  # type: ignore[misc]


def test_dataset_may_be_empty() -> None:
    assert len(ArrayDataset("none", *bytes_and_labels(0), classes=())) == 0


def test_dataset_refuses_what_does_not_belong_together() -> None:
    images, labels = bytes_and_labels()
    with pytest.raises(OptionError, match=r"float32.*give uint8 of shape \(N, H, W, 3\)"):
        ArrayDataset("toy", images.astype(np.float32), labels, ("a", "b", "c"))
    with pytest.raises(OptionError, match=r"\(3, 3, 4, 5\)"):
        ArrayDataset("toy", images.transpose(0, 3, 1, 2), labels, ("a", "b", "c"))
    with pytest.raises(OptionError, match=r"give int64 of shape \(3,\)"):
        ArrayDataset("toy", images, labels[:2], ("a", "b", "c"))
    with pytest.raises(OptionError, match="int32"):
        ArrayDataset("toy", images, labels.astype(np.int32), ("a", "b", "c"))
    with pytest.raises(OptionError, match="run from 0 to 2: give 0 to 1"):
        ArrayDataset("toy", images, labels, ("a", "b"))


# The published files, with 20 images where they have 10 000

ROWS = 20
SPLITS: tuple[Split, Split] = ("train", "test")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "BATCH", ROWS)


def batch(count: int, classes: int, seed: int) -> tuple[Any, list[int]]:
    """Rows as published, the red plane first, and labels."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, 3072), dtype=np.uint8), generator.integers(0, classes, count).tolist()


def published(folder: Path, kind: str) -> dict[Split, tuple[Any, list[int]]]:
    """Writes a dataset as published and returns its rows and labels."""
    folder.mkdir(parents=True)
    ten = "-10-" in kind
    names = {f"data_batch_{n}": batch(ROWS, 10, n) for n in range(1, 6)} | {"test_batch": batch(ROWS, 10, 6)}
    if not ten:
        names = {"train": batch(5 * ROWS, 100, 7), "test": batch(ROWS, 100, 8)}
    for name, (rows, labels) in names.items():
        if kind.endswith(("py", "python")):
            held = {b"data": rows, b"labels" if ten else b"fine_labels": labels, b"coarse_labels": [0] * len(labels)}
            (folder / name).write_bytes(pickle.dumps(held, 2))
        else:
            columns = [np.array(labels, np.uint8)[:, None], rows]
            coarse = [] if ten else [np.full((len(labels), 1), 19, np.uint8)]
            (folder / f"{name}.bin").write_bytes(np.hstack(coarse + columns).tobytes())
    test = names["test_batch" if ten else "test"]
    parts = [value for name, value in names.items() if "test" not in name]
    return {
        "train": (np.vstack([rows for rows, _ in parts]), [label for _, each in parts for label in each]),
        "test": test,
    }


KINDS = ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar-100-python", "cifar-100-binary")


def load(root: Path, kind: str, split: Split = "test") -> ArrayDataset:
    return (cifar10 if "-10-" in kind else cifar100)(root, split)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
def test_every_published_form_holds_the_same(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "sets" / kind
    expected = published(folder, kind)
    shutil.copytree(folder, tmp_path / "renamed")
    roots = [folder, folder.parent, tmp_path / "renamed"]
    for split in SPLITS:
        rows, labels = expected[split]
        for root in roots:
            dataset = load(root, kind, split)
            assert dataset.labels.tolist() == labels
            assert dataset.name == ("cifar10" if "-10-" in kind else "cifar100")
            # Pixel by pixel as the description says: 1 024 red values, then green, then blue, row by row.
            for image, row, column in ((0, 0, 0), (3, 5, 9), (len(labels) - 1, 31, 30)):
                place = 32 * row + column
                assert (
                    dataset.images[image, row, column].tolist()
                    == rows[image, [place, 1024 + place, 2048 + place]].tolist()
                )
            assert dataset.images.flags.c_contiguous
            assert dataset.images.flags.writeable


@pytest.mark.usefixtures("small")
def test_pickles_of_other_pythons_and_orders(tmp_path: Path) -> None:
    rows, labels = batch(ROWS, 10, 0)
    for held in (
        {"data": rows, "labels": labels},
        {b"data": np.asfortranarray(rows), b"labels": labels, b"filenames": [b"a.png"]},
    ):
        for protocol in (0, 2, 3, 4):
            (tmp_path / "test_batch").write_bytes(pickle.dumps(held, protocol))
            assert cifar10(tmp_path).images[7, 1, 2].tolist() == rows[7, [34, 1058, 2082]].tolist()


class Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)

    def __init__(self, folder: Path) -> None:
        self.folder = folder


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_cannot_run_code(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Attack(tmp_path / "owned")}, protocol))
    with pytest.raises(StateError, match=r"test_batch .*it asks for (posix|nt)\.mkdir, which no CIFAR file does"):
        cifar10(tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([1, 2], "does not hold a dictionary"),
        ({}, "expected data and labels, got nothing"),
        ({b"data": batch(20, 10, 0)[0]}, "expected data and labels, got data"),
        ({b"data": [1], b"labels": [1]}, "expected data and labels"),
        ({b"data": batch(20, 10, 0)[0], b"labels": [0] * 19}, r"shape \(20, 3072\), not \(19, 3072\)"),
        ({b"data": np.zeros((20, 3071), np.uint8), b"labels": [0] * 20}, r"shape \(20, 3071\)"),
        ({b"data": np.zeros((20, 3072), np.float32), b"labels": [0] * 20}, "not bytes"),
        ({b"data": np.full((20, 3072), None), b"labels": [0] * 20}, "not bytes"),
        ({b"data": batch(20, 10, 0)[0], b"labels": [0.5] * 20}, "expected integers"),
        ({b"data": batch(20, 10, 0)[0], b"labels": [10] * 20}, "labels from 10 to 10: expected 0 to 9"),
        ({b"data": batch(19, 10, 0)[0], b"labels": [0] * 19}, "19 images and 19 labels: expected 20"),
    ],
)
def test_pickles_that_are_no_cifar(tmp_path: Path, held: object, message: str) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(held, 2))
    with pytest.raises(StateError, match=message):
        cifar10(tmp_path)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
def test_cut_files_are_noticed(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    published(folder, kind)
    test = next(file for file in folder.iterdir() if file.name.startswith("test"))
    content = test.read_bytes()
    for size in (5, 500, len(content) - 100):
        test.write_bytes(content[:size])
        with pytest.raises(StateError, match=rf"{test.name} of .* cannot be read .*: download it again"):
            load(tmp_path, kind)


@pytest.mark.usefixtures("small")
def test_missing_files_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    published(folder, folder.name)
    (folder / "data_batch_3").unlink()
    with pytest.raises(StateError, match="lacks data_batch_3"):
        cifar10(tmp_path, "train")
    with pytest.raises(StateError, match=r"does not hold cifar-100-python/test or cifar-100-binary/test\.bin"):
        cifar100(tmp_path)
    with pytest.raises(StateError, match="is a file: give a folder"):
        cifar10(folder / "test_batch")
    with pytest.raises(StateError, match="not there"):
        cifar10(tmp_path / "lost")
    with pytest.raises(OptionError, match=r"'val'.*train, test"):
        cifar10(tmp_path, "val")  # type: ignore[arg-type]


@real
def test_the_real_cifar100(tmp_path: Path) -> None:
    unpack(REAL, tmp_path / "unpacked", lambda activity, done, total: None)
    dataset = cifar100(tmp_path / "unpacked", "test")
    assert np.bincount(dataset.labels).tolist() == [100] * 100
    # Read off with the plain pickle module.
    assert dataset.labels[:10].tolist() == [49, 33, 72, 51, 71, 92, 15, 14, 23, 0]
    assert dataset.images[0, 0, 0].tolist() == [199, 215, 249]
    assert dataset.images[0, 31, 31].tolist() == [176, 164, 183]
    assert dataset.images[-1, 0, 0].tolist() == [246, 246, 242]
    assert dataset.images.mean((0, 1, 2)) == pytest.approx([129.74308525, 124.28521836, 112.69526387])
    with tarfile.open(REAL, "r|*") as archive:
        meta = next(member for member in archive if member.name.endswith("meta"))
        held = archive.extractfile(meta)
        assert held is not None
        assert tuple(pickle.load(held, encoding="latin1")["fine_label_names"]) == dataset.classes


# CIFAR-C


def corrupted(folder: Path, classes: int) -> tuple[Any, Any]:
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (5 * ROWS, 32, 32, 3), dtype=np.uint8)
    labels = np.tile(np.linspace(0, classes - 1, ROWS).astype(np.uint8), 5)
    np.save(folder / "fog.npy", images)
    np.save(folder / "labels.npy", labels)
    return images, labels


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("classes", "name"), [(10, "cifar10-c"), (100, "cifar100-c")])
def test_cifar_c(tmp_path: Path, classes: int, name: str) -> None:
    images, labels = corrupted(tmp_path / "c", classes)
    for severity in range(1, 6):
        dataset = cifar_c(tmp_path / "c", "fog", severity)
        window = slice((severity - 1) * ROWS, severity * ROWS)
        assert isinstance(dataset.images, np.memmap)
        assert np.array_equal(dataset.images, images[window])
        assert dataset.labels.tolist() == labels[window].tolist()
        assert (dataset.name, dataset.domain, len(dataset.classes)) == (name, f"fog/{severity}", classes)
    assert torch.from_numpy(dataset[0][0]).tolist() == images[4 * ROWS].tolist()
    assert np.array_equal(cifar_c(tmp_path / "c", "fog").images, dataset.images)


def test_a_severity_may_be_a_small_number_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "BATCH", 300)  # more than fits into a byte
    images = np.repeat(np.arange(5, dtype=np.uint8), 300 * 3072).reshape(-1, 32, 32, 3)
    np.save(tmp_path / "fog.npy", images)
    np.save(tmp_path / "labels.npy", np.zeros(1500, np.uint8))
    severity: Any = np.uint8(4)
    dataset = cifar_c(tmp_path, "fog", severity)
    assert dataset.domain == "fog/4"
    assert (dataset.images == 3).all()


@pytest.mark.usefixtures("small")
def test_errors_of_cifar_c(tmp_path: Path) -> None:
    images, labels = corrupted(tmp_path / "c", 10)
    root = tmp_path / "c"
    with pytest.raises(OptionError, match="unknown corruption 'mist'"):
        cifar_c(root, "mist", 1)
    for severity in (0, 6, True, 1.0):
        with pytest.raises(OptionError, match=r"severity=.*: expected an integer from 1 to 5"):
            cifar_c(root, "fog", severity)  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"snow\.npy cannot be read"):
        cifar_c(root, "snow", 1)
    for wrong in (images[:-1], images.astype(np.float32), images.transpose(0, 3, 1, 2)):
        np.save(root / "fog.npy", wrong)
        with pytest.raises(StateError, match=r"fog\.npy holds .*expected uint8 of shape \(100, 32, 32, 3\)"):
            cifar_c(root, "fog", 1)
    np.save(root / "fog.npy", images)
    for wrong, message in (
        (labels[:-1], "100 images and 99 labels: expected 100; download cifar10-c again"),
        (labels[:0], "100 images and 0 labels"),
        (labels.astype(int) - 1, "labels from -1 to 8: expected 0 to 9"),
        (labels + 100, "labels from 100 to 109: expected 0 to 99; download cifar100-c again"),
        (labels / 2, "float64"),
    ):
        np.save(root / "labels.npy", wrong)
        with pytest.raises(StateError, match=message):
            cifar_c(root, "fog", 1)
    (root / "labels.npy").unlink()
    with pytest.raises(StateError, match=r"has no labels\.npy"):
        cifar_c(root, "fog", 1)


# The npm package


@pytest.mark.usefixtures("small")
def test_the_npm_package(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    sheets = generator.integers(0, 256, (6, ROWS, 1024, 3), dtype=np.uint8)
    for sheet, name in zip(sheets, [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"], strict=True):
        Image.fromarray(sheet).save(tmp_path / f"{name}.png")
    labels = generator.integers(0, 10, 6 * ROWS).tolist()
    (tmp_path / "train_lables.json").write_text(json.dumps(labels[: 5 * ROWS]))
    (tmp_path / "test_lables.json").write_text(json.dumps(labels[5 * ROWS :]))
    train, test = cifar10(tmp_path, "train"), cifar10(tmp_path)
    assert train.labels.tolist() + test.labels.tolist() == labels
    assert (train.name, train.classes) == ("cifar10", embedded("test").classes)
    assert train.images[ROWS + 3, 2, 5].tolist() == sheets[1, 3, 69].tolist()
    assert test.images[4, 31, 31].tolist() == sheets[5, 4, 1023].tolist()

    (tmp_path / "test_lables.json").write_text(json.dumps(labels[5 * ROWS + 1 :]))
    with pytest.raises(StateError, match="20 images and 19 labels"):
        cifar10(tmp_path)
    (tmp_path / "test_lables.json").write_text("[1,")
    with pytest.raises(StateError, match=r"test_batch\.png of .* cannot be read \(Expecting value"):
        cifar10(tmp_path)
    (tmp_path / "test_lables.json").unlink()
    with pytest.raises(StateError, match=r"test_batch\.png of .* cannot be read \(.*test_lables\.json"):
        cifar10(tmp_path)
    (tmp_path / "data_batch_4.png").write_bytes(b"")
    with pytest.raises(StateError, match=r"data_batch_4\.png of .* cannot be read"):
        cifar10(tmp_path, "train")
    Image.new("RGB", (1024, 7)).save(tmp_path / "test_batch.png")
    (tmp_path / "test_lables.json").write_text("[1]")
    with pytest.raises(StateError, match="holds 7 images and 1 labels: expected 20"):
        cifar10(tmp_path)
