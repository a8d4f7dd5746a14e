import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cretta.data import ArrayDataset, cifar, embedded
from cretta.data.cifar import Split
from cretta.errors import OptionError, StateError


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


def test_loads_fast() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        embedded("test")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3


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
