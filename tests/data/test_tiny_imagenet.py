import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cretta.data import imagenet, tiny_imagenet, tiny_imagenet_c
from cretta.errors import OptionError, StateError

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "tiny-imagenet-200"
real = pytest.mark.skipif(not REAL.is_dir(), reason="Tiny-ImageNet is not beside the repository")

WNIDS = ("n02124075", "n04067472", "n01443537")  # as the official file, not sorted
VALIDATION = (("val_0.JPEG", "n04067472"), ("val_1.JPEG", "n01443537"), ("val_10.JPEG", "n02124075"))


def save(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), (value, value, value)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (tmp_path / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n")
    for value, wnid in enumerate(WNIDS):
        for number in (0, 10, 2):
            save(tmp_path / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", 50 * value + number)
        (tmp_path / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    lines = [f"{name}\t{wnid}\t0\t32\t44\t62\n" for name, wnid in VALIDATION]
    for value, (name, _) in enumerate(VALIDATION):
        save(tmp_path / "val" / "images" / name, 100 + value)
    (tmp_path / "val" / "val_annotations.txt").write_text("".join(lines))
    return tmp_path


def test_training_images(root: Path) -> None:
    dataset = tiny_imagenet(root, "train")
    assert dataset.name == "tiny-imagenet"
    assert dataset.classes == ("goldfish", "Egyptian cat", "n04067472")
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.read(range(9))[:, 0, 0, 0].tolist() == [100, 102, 110, 0, 2, 10, 50, 52, 60]


def test_validation_images_in_their_order(root: Path) -> None:
    dataset = tiny_imagenet(root)
    assert [file.name for file in dataset.files] == ["val_0.JPEG", "val_1.JPEG", "val_10.JPEG"]
    assert dataset.labels.tolist() == [2, 0, 1]
    assert dataset.read(range(3))[:, 0, 0, 0].tolist() == [100, 101, 102]
    assert tiny_imagenet(root, size=(32, 32))[0][0].shape == (32, 32, 3)


@pytest.mark.parametrize("inner", ["", "images"])
def test_validation_images_in_class_folders(root: Path, inner: str) -> None:
    for name, wnid in VALIDATION:
        (root / "val" / wnid / inner).mkdir(parents=True)
        (root / "val" / "images" / name).rename(root / "val" / wnid / inner / name)
    (root / "val" / "images").rmdir()
    dataset = tiny_imagenet(root, "val")
    assert dataset.labels.tolist() == [0, 1, 2]
    assert [file.name for file in dataset.files] == ["val_1.JPEG", "val_10.JPEG", "val_0.JPEG"]


def test_tiny_imagenet_c(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wnid in enumerate(WNIDS):
        save(root / "glass_blur" / "2" / wnid / "val_7.JPEG", value)
    with pytest.raises(StateError, match="holds 3 class folders, not 200"):
        tiny_imagenet_c(root, "glass_blur", 2)
    monkeypatch.setattr(imagenet, "TINY_CLASSES", 3)
    dataset = tiny_imagenet_c(root, "glass_blur", 2)
    assert (dataset.name, dataset.domain) == ("tiny-imagenet-c", "glass_blur/2")
    assert dataset.labels.tolist() == [0, 1, 2]
    assert dataset.read(range(3))[:, 0, 0, 0].tolist() == [2, 0, 1]
    with pytest.raises(OptionError, match="unknown corruption 'glass'"):
        tiny_imagenet_c(root, "glass", 2)
    with pytest.raises(OptionError, match="severity=6: expected an integer from 1 to 5"):
        tiny_imagenet_c(root, "glass_blur", 6)
    with pytest.raises(StateError, match="glass_blur/5 is not there"):
        tiny_imagenet_c(root, "glass_blur")


def test_words_are_not_needed(root: Path) -> None:
    (root / "words.txt").unlink()
    assert tiny_imagenet(root).classes == tuple(sorted(WNIDS))


def test_missing_files_are_reported(root: Path) -> None:
    with pytest.raises(OptionError, match="'test': give one of train, val"):
        tiny_imagenet(root, "test")  # type: ignore[arg-type]
    (root / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(StateError, match=r"3 lines for 2 images; 1 are missing, 0 have no line, such as val_1\.JPEG"):
        tiny_imagenet(root)
    (root / "val" / "val_annotations.txt").unlink()
    with pytest.raises(StateError, match=r"val_annotations\.txt cannot be read"):
        tiny_imagenet(root)
    shutil.rmtree(root / "train" / WNIDS[0] / "images")
    with pytest.raises(StateError, match=f"of class {WNIDS[0]}"):
        tiny_imagenet(root, "train")
    shutil.rmtree(root / "train")
    with pytest.raises(StateError, match="train is not there"):
        tiny_imagenet(root, "train")
    (root / "wnids.txt").unlink()
    with pytest.raises(StateError, match=r"wnids\.txt cannot be read.*give the folder that holds it"):
        tiny_imagenet(root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("val_0.JPEG\n", "no class for val_0"),
        ("val_0.JPEG\tn00000000\n", "names the class n00000000, which wnids.txt does not"),
        ("val_0.JPEG\tn01443537\n", "1 lines for 3 images; 0 are missing, 2 have no line"),
        ("val_0.JPEG\tn01443537\n" * 4, "4 lines for 3 images"),
    ],
)
def test_damaged_annotations_are_reported(root: Path, text: str, message: str) -> None:
    (root / "val" / "val_annotations.txt").write_text(text)
    with pytest.raises(StateError, match=message):
        tiny_imagenet(root)


@pytest.mark.parametrize("text", ["", "n01443537\nn01443537\n"])
def test_damaged_wnids_are_reported(root: Path, text: str) -> None:
    (root / "wnids.txt").write_text(text)
    with pytest.raises(StateError, match=r"wnids\.txt is empty or names a class twice"):
        tiny_imagenet(root)


@real
def test_the_real_validation_set() -> None:
    dataset = tiny_imagenet(REAL)
    assert np.bincount(dataset.labels).tolist() == [50] * 200
    # Places among the sorted wnids of n03444034, n04067472, n04070727, ….
    assert dataset.labels[:6].tolist() == [107, 139, 140, 69, 69, 161]
    assert (dataset.classes[0], len(set(dataset.classes))) == ("goldfish", 200)
    # Among them gray ones: 168 of the 10 000 are.
    images = dataset.read(range(0, 10_000, 9))
    assert images.shape == (1112, 64, 64, 3)
    assert images[0, 0, 0].tolist() == [38, 49, 53]
    assert images[-1, 0, 0].tolist() == [25, 12, 0]


@real
def test_the_real_training_images() -> None:
    dataset = tiny_imagenet(REAL, "train")
    assert np.bincount(dataset.labels).tolist() == [20] * 200
    assert [file.name for file in dataset.files[:3]] == ["n01443537_0.JPEG", "n01443537_1.JPEG", "n01443537_10.JPEG"]
