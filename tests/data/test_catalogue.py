import pickle
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import cretta.data
from cretta.data import CORRUPTIONS, VALIDATION_CORRUPTIONS, catalogue, cifar, imagenet, tiny_imagenet
from cretta.data.catalogue import Entry, Finding, check, entry, find, locate, missing, names, place, root_of
from cretta.errors import OptionError, StateError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not beside the repository")
ROWS = 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR with 20 images where it has 10 000."""
    monkeypatch.setattr(cifar, "BATCH", ROWS)


def bare(name: str) -> Entry:
    """An entry without MD5 sums of files, which made-up images cannot have."""
    return replace(entry(name), files={})


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


# The entries


def test_there_are_those_of_the_paper() -> None:
    assert names() == (
        "cifar10",
        "cifar10-c",
        "cifar100",
        "cifar100-c",
        "tiny-imagenet-200",
        "tiny-imagenet-c",
        "imagenet",
        "imagenet-c",
        "pacs",
    )
    assert len({entry(name).folder for name in names()}) == len(names())
    with pytest.raises(OptionError, match=r"no dataset 'mnist': give one of cifar10, .*, pacs\."):
        entry("mnist")


@pytest.mark.parametrize("name", names())
def test_an_entry_is_complete(name: str) -> None:
    each = entry(name)
    archives = (*each.archives, *each.alternatives)
    for archive in archives:
        assert re.fullmatch(r"[0-9a-f]{32}", archive.md5)
        assert archive.size > 10_000_000
        assert bool(archive.addresses) != bool(each.by_hand)
        for address in archive.addresses:
            host = address.split("/")[2]
            assert address.startswith("https://")
            assert host in ("www.cs.toronto.edu", "cave.cs.toronto.edu", "zenodo.org", "cs231n.stanford.edu")
            assert archive.file in address
    assert len({archive.md5 for archive in archives}) == len(archives)
    assert all(re.fullmatch(r"[0-9a-f]{32}", md5) for md5 in each.files.values())
    assert len(set(each.files.values())) == len(each.files)
    assert each.room > sum(archive.size for archive in each.archives)
    assert len(each.title) <= 29
    assert each.page.startswith("https://")
    assert each.terms
    assert callable(getattr(cretta.data, each.read.split("(")[0]))


def test_imagenet_c_says_what_is_in_which_archive() -> None:
    archives = entry("imagenet-c").archives
    assert sorted(folder for each in archives for folder in each.folders) == sorted(
        (*CORRUPTIONS, *VALIDATION_CORRUPTIONS)
    )
    assert {each.file: len(each.folders) for each in archives} == {
        "noise.tar": 3,
        "blur.tar": 4,
        "weather.tar": 4,
        "digital.tar": 4,
        "extra.tar": 4,
    }


def test_files_of_the_corrupted_sets_are_named_as_their_readers_want_them() -> None:
    wanted = {f"{name}.npy" for name in (*CORRUPTIONS, *VALIDATION_CORRUPTIONS, "labels")}
    assert set(entry("cifar10-c").files) == set(entry("cifar100-c").files) == wanted


# Where they lie


def test_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CRETTA_DATA", raising=False)
    assert root_of() == tmp_path / ".cache" / "cretta"
    monkeypatch.setenv("CRETTA_DATA", "")
    assert root_of() == tmp_path / ".cache" / "cretta"
    monkeypatch.setenv("CRETTA_DATA", "~/data")
    assert root_of() == tmp_path / "data"
    assert root_of(tmp_path / "x") == tmp_path / "x"
    assert root_of("~/y") == tmp_path / "y"


def test_what_is_not_there_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StateError) as raised:
        place("cifar10", tmp_path / "my data")
    assert str(raised.value) == (
        f"cifar10 is not there: looked for {tmp_path}/my data/cifar-10-batches-py and "
        f"{tmp_path}/my data/cifar-10-batches-bin. Get it with: cretta data get cifar10 --root '{tmp_path}/my data'"
    )
    monkeypatch.setenv("CRETTA_DATA", str(tmp_path))
    with pytest.raises(StateError, match=r"Get it with: cretta data get pacs --from PATH$"):
        place("pacs")


@pytest.mark.parametrize("folder", ["cifar-10-batches-py", "cifar-10-batches-bin"])
def test_cifar_in_either_layout(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    assert find(entry("cifar10"), tmp_path) is None, "an empty folder is not the dataset"
    (tmp_path / folder / ("test_batch" + ".bin" * folder.endswith("bin"))).touch()
    assert place("cifar10", tmp_path) == tmp_path / folder


@pytest.mark.parametrize("ending", ["tar.gz", "tar.xz", "tgz", "tar"])
def test_a_cifar_archive_will_do_where_there_is_no_folder(ending: str, tmp_path: Path) -> None:
    archive = tmp_path / f"cifar-100-python.{ending}"
    (tmp_path / "cifar-100-python.zip").touch()
    assert find(entry("cifar100"), tmp_path) is None, "the reader takes no zip"
    archive.touch()
    (tmp_path / "CIFAR-100-C.tar").touch()
    assert place("cifar100", tmp_path) == archive
    with pytest.raises(StateError, match="cifar100-c is not there"):
        place("cifar100-c", tmp_path)
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test"):
        (tmp_path / "cifar-100-python" / name).touch()
    assert place("cifar100", tmp_path) == tmp_path / "cifar-100-python"


def test_imagenet_with_or_without_val(tmp_path: Path) -> None:
    picture(tmp_path / "imagenet" / "val" / "n01440764" / "a.JPEG")
    assert place("imagenet", tmp_path) == tmp_path / "imagenet" / "val"
    picture(tmp_path / "imagenet" / "n01440764" / "a.JPEG")
    assert place("imagenet", tmp_path) == tmp_path / "imagenet"


def test_folders_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    for folder in ("CIFAR-10-C", "CIFAR-100-C"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "labels.npy").touch()
    for folder in ("ImageNet-C", "Tiny-ImageNet-C"):
        (tmp_path / folder / "fog").mkdir(parents=True)
    for name in ("cifar10-c", "cifar100-c", "imagenet-c", "tiny-imagenet-c"):
        assert locate(entry(name), tmp_path) == tmp_path / entry(name).folder
    (tmp_path / "CIFAR-10-C" / "labels.npy").unlink()
    assert locate(entry("cifar10-c"), tmp_path) is None


def test_the_missing_archives(tmp_path: Path) -> None:
    wanted = entry("imagenet-c")
    assert missing(wanted, None) == wanted.archives
    for folder in wanted.archives[0].folders:
        (tmp_path / folder).mkdir()
    assert missing(wanted, tmp_path) == wanted.archives[1:]
    assert missing(entry("cifar10"), tmp_path) == ()


# Whether they are whole


@pytest.mark.usefixtures("small")
def test_cifar_is_counted(tmp_path: Path) -> None:
    folder = pickled(tmp_path / "cifar-10-batches-py")
    right = [
        Finding("train", "100 images, 10 a class", images=100),
        Finding("test", "20 images, 2 a class", images=20),
    ]
    assert list(check(bare("cifar10"), folder)) == right
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(folder, folder.name)
    assert list(check(bare("cifar10"), tmp_path / "x.tar.gz")) == right
    (folder / "data_batch_3").unlink()
    train, test = check(bare("cifar10"), folder)
    assert train.verdict == "broken"
    assert "lacks data_batch_3" in train.said
    assert test == right[1]


@pytest.mark.usefixtures("small")
def test_uneven_classes_are_noticed(tmp_path: Path) -> None:
    folder = pickled(tmp_path / "cifar-10-batches-py", [0] * 3 + list(range(1, 10)) + list(range(1, 9)))
    train, test = check(bare("cifar10"), folder)
    assert train == Finding("train", "100 images, but class 0, 9 does not have 10", "broken")
    assert test == Finding("test", "20 images, but class 0, 9 does not have 2", "broken")


def sums(wanted: Entry, folder: Path) -> dict[str, str]:
    found = {}
    for name in wanted.files:
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                found[name] = catalogue.md5_of(file)
    return found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_is_not_as_published_is_noticed(packed: bool, tmp_path: Path) -> None:
    folder = pickled(tmp_path / "cifar-10-batches-py")
    published = replace(entry("cifar10"), files=sums(entry("cifar10"), folder))
    assert list(check(published, folder))[-1] == Finding("MD5", "6 files as published")
    content = bytearray((folder / "data_batch_2").read_bytes())
    content[5000] ^= 1
    (folder / "data_batch_2").write_bytes(content)
    path = folder
    if packed:
        path = tmp_path / "cifar-10-batches-py.tar"
        with tarfile.open(path, "w") as archive:
            archive.add(folder, folder.name)
    *_, last = check(published, path)
    found = sums(published, folder)["data_batch_2"]
    assert last == Finding(
        "MD5",
        f"data_batch_2: not as published (the first has {found}, not {published.files['data_batch_2']}); get cifar10 "
        "anew.",
        "broken",
    )


@pytest.mark.usefixtures("small")
def test_a_corrupted_set_may_be_made_anew_but_not_damaged(tmp_path: Path) -> None:
    folder = corrupted_arrays(tmp_path / "CIFAR-10-C")
    *parts, last = check(entry("cifar10-c"), folder)
    assert [each.part for each in parts] == list(CORRUPTIONS)
    assert {(each.said, each.verdict) for each in parts} == {("100 images in 5 severities, 2 a class", "whole")}
    assert last == Finding("MD5", "not as published, so made, not downloaded")
    published = replace(entry("cifar10-c"), files=sums(entry("cifar10-c"), folder))
    assert list(check(published, folder))[-1] == Finding("MD5", "16 files as published")
    np.save(folder / "fog.npy", np.zeros((5 * ROWS, 32, 32, 3), np.uint8))
    *_, last = check(published, folder)
    assert last.verdict == "broken"
    assert last.said.startswith("fog.npy: not as published")
    (folder / "fog.npy").unlink()
    found = {each.part: each for each in check(published, folder)}
    assert found["fog"] == Finding("fog", "is not there", "incomplete")
    assert found["MD5"].verdict == "whole"


@pytest.mark.usefixtures("small")
def test_the_wrong_number_of_classes_is_noticed(tmp_path: Path) -> None:
    folder = corrupted_arrays(tmp_path / "CIFAR-100-C", classes=10)
    first, *_ = check(entry("cifar100-c"), folder)
    assert first.verdict == "broken"
    folder = corrupted_arrays(tmp_path / "CIFAR-10-C", classes=20)
    first, *_ = check(entry("cifar10-c"), folder)
    assert first == Finding("gaussian_noise", "100 images in 5 severities of 20 classes, not 10", "broken")


def test_an_image_that_does_not_decode_is_noticed(tmp_path: Path) -> None:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        for label in ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"):
            picture(tmp_path / domain / label / "a.png")
    picture(tmp_path / "cartoon" / "dog" / "a.png", b"nothing")
    picture(tmp_path / "sketch" / "person" / "a.png", b"nothing")
    photo, art, cartoon, sketch = check(entry("pacs"), tmp_path)
    assert photo == Finding("photo", "7 images, not 1 670", "incomplete", 7)
    assert art == Finding("art_painting", "7 images, not 2 048", "incomplete", 7)
    assert cartoon.verdict == sketch.verdict == "broken"
    assert "a.png cannot be read as an image" in cartoon.said


@pytest.mark.parametrize(("name", "module"), [("imagenet-c", imagenet), ("tiny-imagenet-c", tiny_imagenet)])
def test_corrupted_folders(name: str, module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLASSES", 2)
    for corruption in ("fog", "spatter"):
        for severity in range(1, 6):
            for wnid in ("n01440764", "n01443537"):
                for number in range(50):
                    picture(
                        tmp_path / corruption / str(severity) / wnid / f"{number}.JPEG", b"" if number % 49 else None
                    )
    found = {each.part: each for each in check(entry(name), tmp_path)}
    assert set(found) == {*CORRUPTIONS, "spatter"}
    assert found["fog"] == Finding("fog", "500 images in 5 severities, 50 a class", images=500)
    assert found["spatter"].verdict == "whole"
    assert found["snow"] == Finding("snow", "is not there", "incomplete")
    (tmp_path / "fog" / "3" / "n01440764" / "7.JPEG").unlink()
    picture(tmp_path / "fog" / "4" / "n01440764" / "more.JPEG")
    found = {each.part: each for each in check(entry(name), tmp_path)}
    assert found["fog"] == Finding("fog", "500 images in 5 severities, not 100 in each", "incomplete", 500)


@real
def test_the_real_tiny_imagenet() -> None:
    heard: list[str] = []
    train, val = check(entry("tiny-imagenet-200"), SHARED / "tiny-imagenet-200", heard.append)
    assert train == Finding("train", "4 000 images, not 100 000", "incomplete", 4000)
    assert val == Finding("val", "10 000 images, 50 a class", images=10_000)
    assert heard == ["train", "val"]
