from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cretta.data import image_folder, numpy_file
from cretta.data.folder import class_names
from cretta.errors import OptionError, StateError


def save(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (value, value, value)).save(path)


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    for name, value in (("dog/10.png", 10), ("dog/2.PNG", 2), ("cat/deep/3.png", 3), ("10/x.bmp", 4)):
        save(tmp_path / name, value)
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    save(tmp_path / "dog" / "._2.png")
    save(tmp_path / ".cache" / "1.png")
    dataset = image_folder(tmp_path)
    assert dataset.classes == ("10", "cat", "dog")
    assert dataset.labels.tolist() == [0, 1, 2, 2]
    assert dataset.read(range(4))[:, 0, 0, 0].tolist() == [4, 3, 2, 10]
    assert (dataset.name, dataset.domain) == (tmp_path.name, "")


def test_classes_in_an_order_of_ones_own(tmp_path: Path) -> None:
    save(tmp_path / "dog" / "1.png")
    save(tmp_path / "cat" / "1.png")
    dataset = image_folder(tmp_path, classes=["dog", "fox", "cat"], size=2)
    assert dataset.classes == ("dog", "fox", "cat")
    assert dataset.labels.tolist() == [0, 2]
    assert dataset[0][0].shape == (2, 2, 3)
    with pytest.raises(StateError, match=r"expected folders named after the 2 classes \(dog, fox\), got cat; remove"):
        image_folder(tmp_path, classes=["dog", "fox"])


@pytest.mark.parametrize("text", ["dog\nfox\ncat\n", "1 dog\n2 fox\n3 cat\n"])
@pytest.mark.parametrize("place", ["pets/classes.txt", "classes.txt"])
def test_a_file_states_the_order_of_classes(tmp_path: Path, place: str, text: str) -> None:
    for name in ("cat", "dog"):
        save(tmp_path / "pets" / name / "1.png")
    (tmp_path / place).write_text(text)
    dataset = image_folder(tmp_path / "pets")
    assert dataset.classes == ("dog", "fox", "cat")
    assert [(file.parent.name, label) for file, label in zip(dataset.files, dataset.labels, strict=True)] == [
        ("dog", 0),
        ("cat", 2),
    ]
    assert image_folder(tmp_path / "pets", classes=["cat", "dog"]).classes == ("cat", "dog")
    save(tmp_path / "pets" / "owl" / "1.png")
    if place == "classes.txt":  # a list of something else
        assert image_folder(tmp_path / "pets").classes == ("cat", "dog", "owl")
        return
    with pytest.raises(
        StateError, match=r"expected folders named after the 3 classes .*, got owl; .* in their order in classes\.txt"
    ):
        image_folder(tmp_path / "pets")
    for wrong, message in (("dog\ndog\n", "a class twice"), ("\n", "no class")):
        (tmp_path / place).write_text(wrong)
        with pytest.raises(OptionError, match=message):
            image_folder(tmp_path / "pets")


def test_images_without_class_folders_have_no_labels(tmp_path: Path) -> None:
    save(tmp_path / "1.png")
    with pytest.raises(StateError, match=r"holds images \(1\) and no class folders.* one folder per class"):
        image_folder(tmp_path, labeled=True)


def test_a_flat_folder_in_natural_order(tmp_path: Path) -> None:
    for name in ("image10.png", "image9.png", "image9b.png", "10.png", "9.png", "٣.png"):
        save(tmp_path / name)
    (tmp_path / "empty").mkdir()
    dataset = image_folder(tmp_path)
    assert [file.name for file in dataset.files] == [
        "9.png",
        "10.png",
        "image9.png",
        "image9b.png",
        "image10.png",
        "٣.png",
    ]
    assert (dataset.labels == -1).all()
    assert dataset.classes == ()
    assert dataset[0][1] == -1


def test_images_beside_and_inside_of_folders(tmp_path: Path) -> None:
    save(tmp_path / "1.png")
    save(tmp_path / "dog" / "2.png")
    with pytest.raises(StateError, match="labeled=False"):
        image_folder(tmp_path)
    assert image_folder(tmp_path, labeled=False).labels.tolist() == [-1, -1]
    assert image_folder(tmp_path, labeled=True).labels.tolist() == [0]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="neither images"):
        image_folder(tmp_path)
    with pytest.raises(StateError, match="no images"):
        image_folder(tmp_path, labeled=False)
    save(tmp_path / "dog" / "1.png")
    (tmp_path / "cat").mkdir()
    with pytest.raises(StateError, match=r"no images .* of class cat"):
        image_folder(tmp_path)
    with pytest.raises(StateError, match="not there"):
        image_folder(tmp_path / "lost")
    with pytest.raises(StateError, match="is a file"):
        image_folder(tmp_path / "dog" / "1.png")


# numpy files


def images(count: int = 6) -> Any:
    return np.arange(count * 4 * 5 * 3, dtype=np.uint8).reshape(count, 4, 5, 3)


def test_an_array_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "own.npy", images())
    dataset = numpy_file(tmp_path / "own.npy")
    assert isinstance(dataset.images, np.memmap)
    assert dataset.name == "own"
    assert dataset.labels.tolist() == [-1] * 6
    # torch warns about arrays that must not be written to, and warnings are errors here.
    assert torch.from_numpy(dataset[2][0]).tolist() == images()[2].tolist()
    read = dataset.read([5, 0])
    assert type(read) is np.ndarray
    assert torch.from_numpy(read).tolist() == images()[[5, 0]].tolist()


def test_labels_beside_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "own.npy", images())
    np.save(tmp_path / "labels.npy", np.array([0, 1, 2, 0, 1, 2], np.uint8))
    for labels in (tmp_path / "labels.npy", str(tmp_path / "labels.npy")):
        dataset = numpy_file(tmp_path / "own.npy", labels)
        assert dataset.labels.tolist() == [0, 1, 2, 0, 1, 2]
        assert dataset.labels.dtype == np.int64
        assert dataset.classes == ("0", "1", "2")


def test_arrays_that_are_no_images(tmp_path: Path) -> None:
    path = tmp_path / "own.npy"
    for array in (images().astype(np.float32), images().transpose(0, 3, 1, 2), images()[0]):
        np.save(path, array)
        with pytest.raises(StateError, match=r"expected images, uint8 \(N, H, W, 3\)"):
            numpy_file(path)
    np.save(path, images())
    np.save(tmp_path / "labels.npy", [0] * 5)
    with pytest.raises(StateError, match="6 images, but there are 5 labels"):
        numpy_file(path, tmp_path / "labels.npy")
    np.save(tmp_path / "labels.npy", np.full(6, 0.5))
    with pytest.raises(StateError, match=r"labels\.npy holds labels of type float64"):
        numpy_file(path, tmp_path / "labels.npy")
    with pytest.raises(StateError, match=r"lost\.txt cannot be read \(No such file or directory\): give a text file"):
        class_names(tmp_path / "lost.txt")
    with pytest.raises(StateError, match=r"lost\.npy cannot be read"):
        numpy_file(path, tmp_path / "lost.npy")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StateError, match=r"own\.npy cannot be read"):
        numpy_file(path)
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(StateError, match=r"own\.npy cannot be read"):
        numpy_file(path)
    (tmp_path / "own.txt").write_text("text")
    with pytest.raises(StateError, match=r"own\.txt cannot be read as a numpy array \([^.]*\): restore the file\.$"):
        numpy_file(tmp_path / "own.txt")
