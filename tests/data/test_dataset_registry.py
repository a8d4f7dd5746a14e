import re
from pathlib import Path

import pytest

import cretta.data
from cretta.data import CORRUPTIONS, VALIDATION_CORRUPTIONS
from cretta.data.registry import DATASETS, RELEASES, dataset, dataset_path, locate, release
from cretta.data.releases import data_root
from cretta.errors import OptionError, StateError

NAMES = tuple(RELEASES)


# The records


def test_there_are_those_of_the_paper() -> None:
    assert tuple(DATASETS) == (
        "embedded",
        "cifar10",
        "cifar100",
        "tiny-imagenet",
        "imagenet",
        "pacs:photo",
        "pacs:art_painting",
        "pacs:cartoon",
        "pacs:sketch",
    )
    assert NAMES == (
        "cifar10",
        "cifar10-c",
        "cifar100",
        "cifar100-c",
        "tiny-imagenet",
        "tiny-imagenet-c",
        "imagenet",
        "imagenet-c",
        "pacs",
    )
    assert len({record.folder for record in RELEASES.values()}) == len(NAMES)
    with pytest.raises(OptionError, match=r"unknown dataset 'mnist'\. Allowed: cifar10, .*, tiny-imagenet-c\."):
        release("mnist")
    with pytest.raises(OptionError, match=r"unknown dataset 'cifar'\. Did you mean 'cifar10'\?"):
        dataset("cifar")


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_and_its_releases_agree(name: str) -> None:
    record = dataset(name)
    for published in (record.clean, record.shifted):
        assert published is None or published.classes == record.classes
    if record.shifted is not None:
        assert set(record.domains) <= set(record.shifted.images)
    if record.shifted is not None and record.generates:
        assert set(record.shifted.images.values()) == {record.test_images}


@pytest.mark.parametrize("name", NAMES)
def test_a_release_is_complete(name: str) -> None:
    record = release(name)
    for archive in record.archives:
        assert re.fullmatch(r"[0-9a-f]{32}", archive.md5)
        assert archive.size > 10_000_000
        assert bool(archive.urls) != bool(record.manual)
        for url in archive.urls:
            host = url.split("/")[2]
            assert url.startswith("https://")
            assert host in ("www.cs.toronto.edu", "cave.cs.toronto.edu", "zenodo.org", "cs231n.stanford.edu")
            assert archive.file in url
    assert len({archive.md5 for archive in record.archives}) == len(record.archives)
    assert all(re.fullmatch(r"[0-9a-f]{32}", md5) for md5 in record.file_md5.values())
    assert len(set(record.file_md5.values())) == len(record.file_md5)
    assert record.unpacked_size > record.download_size
    assert len(record.contents) <= 29
    assert record.page.startswith("https://")
    assert record.license
    assert callable(getattr(cretta.data, record.example.split("(")[0]))


def test_archives_of_imagenet_c_list_their_corruptions() -> None:
    archives = release("imagenet-c").archives
    assert sorted(folder for archive in archives for folder in archive.folders) == sorted(
        (*CORRUPTIONS, *VALIDATION_CORRUPTIONS)
    )
    assert {archive.file: len(archive.folders) for archive in archives} == {
        "noise.tar": 3,
        "blur.tar": 4,
        "weather.tar": 4,
        "digital.tar": 4,
        "extra.tar": 4,
    }


def test_files_of_the_corrupted_sets_are_named_as_their_reader_expects() -> None:
    names = {f"{name}.npy" for name in (*CORRUPTIONS, *VALIDATION_CORRUPTIONS, "labels")}
    assert set(release("cifar10-c").file_md5) == set(release("cifar100-c").file_md5) == names


# Where they are


def test_the_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CRETTA_DATA", raising=False)
    assert data_root() == tmp_path / ".cache" / "cretta"
    monkeypatch.setenv("CRETTA_DATA", "")
    assert data_root() == tmp_path / ".cache" / "cretta"
    monkeypatch.setenv("CRETTA_DATA", "~/data")
    assert data_root() == tmp_path / "data"
    assert data_root(tmp_path / "x") == tmp_path / "x"
    assert data_root("~/y") == tmp_path / "y"


def test_a_missing_dataset_is_reported_with_the_command_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StateError) as raised:
        dataset_path("cifar10", tmp_path / "my data")
    assert str(raised.value) == (
        f"cifar10 is not there: expected {tmp_path}/my data/cifar-10-batches-py or "
        f"{tmp_path}/my data/cifar-10-batches-bin. Get it with: cretta data get cifar10 --root '{tmp_path}/my data'"
    )
    monkeypatch.setenv("CRETTA_DATA", str(tmp_path))
    with pytest.raises(StateError, match=r"Get it with: cretta data get pacs --from PATH$"):
        dataset_path("pacs")


@pytest.mark.parametrize("folder", ["cifar-10-batches-py", "cifar-10-batches-bin"])
def test_cifar_in_either_layout(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    assert release("cifar10").find(tmp_path) is None, "an empty folder is not the dataset"
    (tmp_path / folder / ("test_batch" + ".bin" * folder.endswith("bin"))).touch()
    assert dataset_path("cifar10", tmp_path) == tmp_path / folder


def test_imagenet_with_or_without_val(tmp_path: Path) -> None:
    (tmp_path / "imagenet" / "val" / "n01440764").mkdir(parents=True)
    assert dataset_path("imagenet", tmp_path) == tmp_path / "imagenet" / "val"
    (tmp_path / "imagenet" / "n01440764").mkdir(parents=True)
    assert dataset_path("imagenet", tmp_path) == tmp_path / "imagenet"


def test_folders_with_the_same_layout_are_distinguished(tmp_path: Path) -> None:
    for folder in ("CIFAR-10-C", "CIFAR-100-C"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "labels.npy").touch()
    for folder in ("ImageNet-C", "Tiny-ImageNet-C"):
        (tmp_path / folder / "fog").mkdir(parents=True)
    for name in ("cifar10-c", "cifar100-c", "imagenet-c", "tiny-imagenet-c"):
        assert locate(release(name), tmp_path) == tmp_path / release(name).folder
    (tmp_path / "CIFAR-10-C" / "labels.npy").unlink()
    assert locate(release("cifar10-c"), tmp_path) is None


def test_the_missing_archives(tmp_path: Path) -> None:
    record = release("imagenet-c")
    assert record.missing_archives(None) == record.archives
    for folder in record.archives[0].folders:
        (tmp_path / folder).mkdir()
    assert record.missing_archives(tmp_path) == record.archives[1:]
    assert release("cifar10").missing_archives(tmp_path) == ()
