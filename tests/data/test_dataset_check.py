import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cretta.data import CORRUPTIONS, cifar, imagenet
from cretta.data.check import Finding, check, md5_of
from cretta.data.registry import release
from cretta.data.releases import Release

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not beside the repository")
ROWS = 20


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR with 20 images where it has 10 000."""
    monkeypatch.setattr(cifar, "BATCH", ROWS)


def small(name: str) -> Release:
    """Return a release of CIFAR with 20 images where it has 10 000."""
    record = release(name)
    return replace(record, images={part: images // 10_000 * ROWS for part, images in record.images.items()})


def bare(name: str) -> Release:
    """Return a small release without the MD5 of files, which made-up images cannot have."""
    return replace(small(name), file_md5={})


def pickled(folder: Path, labels: list[int] | None = None) -> Path:
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        held = {b"data": np.zeros((ROWS, 3072), np.uint8), b"labels": labels or list(range(10)) * 2}
        (folder / name).write_bytes(pickle.dumps(held, 2))
    return folder


def corrupted_arrays(folder: Path, classes: int = 10) -> Path:
    folder.mkdir(parents=True)
    for number, name in enumerate(CORRUPTIONS):
        np.save(folder / f"{name}.npy", np.full((5 * ROWS, 32, 32, 3), number, np.uint8))
    np.save(folder / "labels.npy", np.tile(np.arange(ROWS, dtype=np.uint8) % classes, 5))
    return folder


def picture(path: Path, content: bytes | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        Image.new("RGB", (8, 8)).save(path)
    else:
        path.write_bytes(content)


@pytest.mark.usefixtures("small_batches")
def test_cifar_is_counted(tmp_path: Path) -> None:
    folder = pickled(tmp_path / "cifar-10-batches-py")
    right = [
        Finding("train", "100 images, 10 per class", images=100),
        Finding("test", "20 images, 2 per class", images=20),
    ]
    assert list(check(bare("cifar10"), folder)) == right
    (folder / "data_batch_3").unlink()
    train, test = check(bare("cifar10"), folder)
    assert train.verdict == "damaged"
    assert "lacks data_batch_3" in train.message
    assert test == right[1]


@pytest.mark.usefixtures("small_batches")
def test_uneven_classes_are_noticed(tmp_path: Path) -> None:
    folder = pickled(tmp_path / "cifar-10-batches-py", [0] * 3 + list(range(1, 10)) + list(range(1, 9)))
    train, test = check(bare("cifar10"), folder)
    assert train == Finding("train", "100 images, but class 0, 9 does not have 10", "damaged")
    assert test == Finding("test", "20 images, but class 0, 9 does not have 2", "damaged")


def sums(record: Release, folder: Path) -> dict[str, str]:
    return {name: md5_of(folder / name) for name in record.file_md5 if (folder / name).is_file()}


@pytest.mark.usefixtures("small_batches")
def test_a_file_that_is_not_as_published_is_noticed(tmp_path: Path) -> None:
    folder = pickled(tmp_path / "cifar-10-batches-py")
    published = replace(small("cifar10"), file_md5=sums(small("cifar10"), folder))
    assert list(check(published, folder))[-1] == Finding("MD5", "6 files as published")
    content = bytearray((folder / "data_batch_2").read_bytes())
    content[5000] ^= 1
    (folder / "data_batch_2").write_bytes(content)
    *_, last = check(published, folder)
    found = sums(published, folder)["data_batch_2"]
    assert last == Finding(
        "MD5",
        f"data_batch_2: not as published (the first has {found}, not {published.file_md5['data_batch_2']}); download "
        "cifar10 again.",
        "damaged",
    )


@pytest.mark.usefixtures("small_batches")
def test_a_corrupted_set_may_be_generated_but_not_damaged(tmp_path: Path) -> None:
    folder = corrupted_arrays(tmp_path / "CIFAR-10-C")
    *parts, last = check(small("cifar10-c"), folder)
    assert [each.part for each in parts] == list(CORRUPTIONS)
    assert {(each.message, each.verdict) for each in parts} == {("100 images in 5 severities, 2 per class", "complete")}
    assert last == Finding("MD5", "not as published: generated, not downloaded")
    published = replace(small("cifar10-c"), file_md5=sums(small("cifar10-c"), folder))
    assert list(check(published, folder))[-1] == Finding("MD5", "16 files as published")
    np.save(folder / "fog.npy", np.zeros((5 * ROWS, 32, 32, 3), np.uint8))
    *_, last = check(published, folder)
    assert last.verdict == "damaged"
    assert last.message.startswith("fog.npy: not as published")
    (folder / "fog.npy").unlink()
    found = {each.part: each for each in check(published, folder)}
    assert found["fog"] == Finding("fog", "is not there", "incomplete")
    assert found["MD5"].verdict == "complete"


@pytest.mark.usefixtures("small_batches")
def test_another_number_of_classes_is_detected(tmp_path: Path) -> None:
    folder = corrupted_arrays(tmp_path / "CIFAR-100-C", classes=10)
    first, *_ = check(small("cifar100-c"), folder)
    assert first.verdict == "damaged"
    folder = corrupted_arrays(tmp_path / "CIFAR-10-C", classes=20)
    first, *_ = check(small("cifar10-c"), folder)
    assert first == Finding("gaussian_noise", "100 images in 5 severities of 20 classes, not 10", "damaged")


def test_an_image_that_does_not_decode_is_noticed(tmp_path: Path) -> None:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        for label in ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"):
            picture(tmp_path / domain / label / "a.png")
    picture(tmp_path / "cartoon" / "dog" / "a.png", b"nothing")
    picture(tmp_path / "sketch" / "person" / "a.png", b"nothing")
    photo, art, cartoon, sketch = check(release("pacs"), tmp_path)
    assert photo == Finding("photo", "7 images, not 1 670", "incomplete", 7)
    assert art == Finding("art_painting", "7 images, not 2 048", "incomplete", 7)
    assert cartoon.verdict == sketch.verdict == "damaged"
    assert "a.png cannot be read as an image" in cartoon.message


@pytest.mark.parametrize(("name", "constant"), [("imagenet-c", "CLASSES"), ("tiny-imagenet-c", "TINY_CLASSES")])
def test_corrupted_folders(name: str, constant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, constant, 2)
    record = replace(release(name), classes=2, images=dict.fromkeys(CORRUPTIONS, 100))
    for corruption in ("fog", "spatter"):
        for severity in range(1, 6):
            for wnid in ("n01440764", "n01443537"):
                for number in range(50):
                    picture(
                        tmp_path / corruption / str(severity) / wnid / f"{number}.JPEG", b"" if number % 49 else None
                    )
    found = {each.part: each for each in check(record, tmp_path)}
    assert set(found) == {*CORRUPTIONS, "spatter"}
    assert found["fog"] == Finding("fog", "500 images in 5 severities, 50 per class", images=500)
    assert found["spatter"].verdict == "complete"
    assert found["snow"] == Finding("snow", "is not there", "incomplete")
    (tmp_path / "fog" / "3" / "n01440764" / "7.JPEG").unlink()
    picture(tmp_path / "fog" / "4" / "n01440764" / "more.JPEG")
    found = {each.part: each for each in check(record, tmp_path)}
    assert found["fog"] == Finding("fog", "500 images in 5 severities, not 100 in each", "incomplete", 500)


@real
def test_the_real_tiny_imagenet() -> None:
    heard: list[str] = []
    train, val = check(release("tiny-imagenet"), SHARED / "tiny-imagenet-200", heard.append)
    assert train == Finding("train", "4 000 images, not 100 000", "incomplete", 4000)
    assert val == Finding("val", "10 000 images, 50 per class", images=10_000)
    assert heard == ["train", "val"]
