import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cretta.data import image_folder, imagenet, imagenet_c, imagenet_validation, labeled_csv
from cretta.errors import OptionError, StateError

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "imagenet-sample"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the sample of ImageNet is not beside the repository")

WNIDS = ("n01440764", "n01443537", "n01484850")


def save(path: Path, value: int, size: tuple[int, int] = (9, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


def class_folders(root: Path) -> Path:
    for value, wnid in enumerate(reversed(WNIDS)):
        for number in (10, 9):
            save(root / wnid / f"ILSVRC2012_val_{number}.JPEG", 50 * value + number)
    return root


@pytest.fixture
def three_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "CLASSES", 3)


@pytest.mark.usefixtures("three_classes")
def test_the_validation_set(tmp_path: Path) -> None:
    dataset = imagenet_validation(class_folders(tmp_path))
    assert dataset.classes == WNIDS
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.name == "imagenet"
    images = dataset.read(range(6))
    assert images.shape == (6, 224, 224, 3)
    assert images[:, 100, 100, 0].tolist() == [109, 110, 59, 60, 9, 10]
    assert imagenet_validation(tmp_path, size=4).read([1]).shape == (1, 4, 4, 3)


@pytest.mark.usefixtures("three_classes")
def test_imagenet_c(tmp_path: Path) -> None:
    class_folders(tmp_path / "fog" / "3")
    dataset = imagenet_c(tmp_path, "fog", 3)
    assert (dataset.name, dataset.domain, dataset.classes) == ("imagenet-c", "fog/3", WNIDS)
    assert dataset.read([0]).shape == (1, 8, 9, 3)
    with pytest.raises(OptionError, match="unknown corruption 'mist'"):
        imagenet_c(tmp_path, "mist", 3)
    for severity in (0, 6, True, 2.5):
        with pytest.raises(OptionError, match=r"severity=.*: expected an integer from 1 to 5"):
            imagenet_c(tmp_path, "fog", severity)  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"fog/4 is not there"):
        imagenet_c(tmp_path, "fog", 4)


def test_a_part_of_the_classes_needs_their_numbers(tmp_path: Path) -> None:
    class_folders(tmp_path)
    with pytest.raises(StateError, match=r"holds 3 class folders, not 1000.*image_folder and classes="):
        imagenet_validation(tmp_path)
    wnids = ["n00000001", *WNIDS, "n99999999"]
    assert image_folder(tmp_path, classes=wnids).labels.tolist() == [1, 1, 2, 2, 3, 3]


@pytest.mark.usefixtures("three_classes")
def test_an_empty_class_is_noticed(tmp_path: Path) -> None:
    class_folders(tmp_path)
    for file in (tmp_path / WNIDS[1]).iterdir():
        file.unlink()
    with pytest.raises(StateError, match="of class n01443537"):
        imagenet_validation(tmp_path)


# Lists


def listed(folder: Path, text: str) -> Path:
    for number in range(3):
        save(folder / "images" / f"{number}.png", number)
    (folder / "list.csv").write_text(text)
    return folder / "list.csv"


def test_a_list_with_numbers(tmp_path: Path) -> None:
    table = listed(tmp_path, "label,file,note\n7,2.png,x\n0,0.png,y\n")
    dataset = labeled_csv(tmp_path / "images", table)
    assert dataset.labels.tolist() == [7, 0]
    assert dataset.classes == tuple("01234567")
    assert dataset.read([0, 1])[:, 0, 0, 0].tolist() == [2, 0]
    assert dataset.name == "list"
    assert len(labeled_csv(tmp_path / "images", table, classes=10).classes) == 10
    with pytest.raises(OptionError, match="run from 0 to 7: give 0 to 4, one for each of the 5 classes"):
        labeled_csv(tmp_path / "images", table, classes=5)


def test_a_list_with_a_byte_order_mark(tmp_path: Path) -> None:
    table = listed(tmp_path, "\ufefffile,label\n0.png, 1\n1.png,0\n")
    assert labeled_csv(tmp_path / "images", table).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\n0.png,1\n", "columns name, label: expected file and label"),
        ("", "columns none"),
        ("file,label\n", "lists no images"),
        ("file,label\n0.png,1\n1.png\n", "line 3 lacks"),
        ("file,label\n0.png,1\n1.png,cat\n", "line 3 lacks a file or a label from 0"),
        ("file,label\n0.png,-1\n", "line 2 lacks"),
        ("file,label\n0.png,1\n9.png,1\n", r"1 images that are not there, such as .*9\.png"),
    ],
)
def test_a_damaged_list(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StateError, match=message):
        labeled_csv(tmp_path / "images", listed(tmp_path, text))


def test_a_lost_list(tmp_path: Path) -> None:
    listed(tmp_path, "")
    with pytest.raises(StateError, match=r"lost\.csv cannot be read"):
        labeled_csv(tmp_path / "images", tmp_path / "lost.csv")


@real
def test_the_real_sample() -> None:
    target = labeled_csv(REAL / "target", REAL / "target.csv", classes=1000)
    assert len(target) == 1000
    assert len(target.classes) == 1000
    counts = np.bincount(target.labels)
    assert ((counts > 0).sum(), counts.max(), len(counts)) == (430, 5, 996)
    assert target.labels[:6].tolist() == [388, 576, 326, 137, 90, 981]
    images = target.read(range(20))
    assert images.shape == (20, 224, 224, 3)
    assert images[0, 0, 0].tolist() == [80, 69, 51]


@real
def test_wnids_in_order_are_the_classes(tmp_path: Path) -> None:
    """The files of the source sample are called by wnid, and its list has their classes."""
    with (REAL / "source.csv").open() as file:
        classes = {Path(row["file"]).stem: int(row["label"]) for row in csv.DictReader(file)}
    for wnid in classes:
        (tmp_path / wnid).mkdir()
        (tmp_path / wnid / f"{wnid}.jpg").symlink_to(REAL / "source" / f"{wnid}.jpg")
    dataset = imagenet_validation(tmp_path)
    assert [classes[file.stem] for file in dataset.files] == dataset.labels.tolist() == list(range(1000))
    assert image_folder(tmp_path).labels.tolist() == list(range(1000))
    assert imagenet_validation(tmp_path, size=None)[0][0][0, 0].tolist() == [74, 91, 85]
