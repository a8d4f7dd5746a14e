import pickle
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import fetch_site
import numpy as np
import pytest
from fetch_site import archived, assert_toy, listed, md5, reported, toy, toy_folder
from PIL import Image

from cretta.data import CORRUPTIONS, cifar, cifar10, cifar100, imagenet, pacs
from cretta.data.fetch import get
from cretta.data.registry import dataset_path, release
from cretta.data.releases import Archive
from cretta.errors import StateError

content, home = fetch_site.content, fetch_site.home
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not beside the repository")


def test_from_the_published_archive(content: bytes, home: Path, tmp_path: Path) -> None:
    entry = toy(Archive("toy.tar", md5(content), len(content)))
    for name in ("toy.tar", "renamed"):
        (tmp_path / name).write_bytes(content)
        assert reported(entry, home, tmp_path / name) == f"toy is in {home / 'Toy'}; MD5 of {name} as published."
        assert_toy(home)
        assert (tmp_path / name).exists()
        shutil.rmtree(home)
    (tmp_path / "toy.tar").write_bytes(content[:-1] + b"x")
    with pytest.raises(
        StateError, match=rf"toy\.tar has MD5 .* as published has {md5(content)}: download it again, or"
    ):
        get(entry, root=home, source=tmp_path / "toy.tar")
    assert (tmp_path / "toy.tar").exists()
    assert listed(home) == set()


@pytest.mark.parametrize("packing", ["tar.xz", "tar.bz2", "zip"])
def test_from_another_packing_which_is_read(packing: str, content: bytes, home: Path, tmp_path: Path) -> None:
    folder, file = tmp_path / "made" / "Toy", tmp_path / f"toy.{packing}"
    if packing == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            for each in folder.iterdir():
                archive.write(each, f"some/where/{each.name}")
                archive.writestr(f"__MACOSX/Toy/{each.name}", "")
    else:
        file.write_bytes(archived(folder, f"w:{packing[4:]}", "./other name"))
    said = reported(toy(Archive("toy.tar", md5(content), len(content))), home, file)
    assert said == f"toy is in {home / 'Toy'}; {file.name} is another packing: read and counted all."
    assert_toy(home)


def test_what_cannot_be_read_is_refused(home: Path, tmp_path: Path) -> None:
    folder = toy_folder(tmp_path / "made" / "Toy")
    np.save(folder / "labels.npy", np.zeros(7, int))
    (tmp_path / "toy.tar").write_bytes(archived(folder))
    for source in (tmp_path / "toy.tar", folder):
        with pytest.raises(StateError, match=r"toy cannot be used, all: .*8 images, but there are 7 labels"):
            get(toy(), root=home, source=source)
        assert listed(home) == set()


def test_a_part_of_a_dataset_is_installed_and_reported(home: Path, tmp_path: Path) -> None:
    said = reported(toy(), home, toy_folder(tmp_path / "few", 4))
    assert said.endswith("read and counted all; NOT the complete dataset: all 4 images, not 8.")
    assert len(np.load(home / "Toy" / "labels.npy")) == 4


def test_from_a_folder_of_archives(content: bytes, home: Path, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "other.tar").write_bytes(b"")
    entry = toy(Archive("toy.tar", md5(content), len(content)))
    with pytest.raises(
        StateError,
        match=r"downloads does not hold toy: expected toy\.tar or the folder Toy\. Give .*the archive itself",
    ):
        get(entry, root=home, source=tmp_path / "downloads")
    (tmp_path / "downloads" / "toy.tar").write_bytes(content)
    assert "MD5 of toy.tar as published" in reported(entry, home, tmp_path / "downloads")
    assert_toy(home)


def test_from_an_unpacked_folder(home: Path, tmp_path: Path) -> None:
    folder = toy_folder(tmp_path / "data" / "deeper" / "Toy")
    for source in (folder, folder.parent, folder.parents[1]):
        assert f"a link to {folder}; read and counted all." in reported(toy(), home, source)
        assert (home / "Toy").is_symlink()
        assert_toy(home)
        (home / "Toy").unlink()
    (home / "Toy").mkdir()
    (home / "Toy" / "thesis.txt").touch()
    with pytest.raises(StateError, match="is there, but does not hold toy: move it away"):
        get(toy(), root=home, source=folder)
    assert listed(home / "Toy") == {"thesis.txt"}


def jpeg(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def test_imagenet_that_is_not_sorted_into_classes(home: Path, tmp_path: Path) -> None:
    jpeg(tmp_path / "heap" / "ILSVRC2012_val_00000001.JPEG")
    (tmp_path / "val.tar").write_bytes(archived(tmp_path / "heap", name="."))
    with pytest.raises(StateError, match=r"val\.tar does not hold imagenet: .*sort the images into class folders"):
        get("imagenet", root=home, source=tmp_path / "val.tar")
    assert listed(home) == set()


def test_imagenet_c_may_come_in_parts(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "CLASSES", 1)
    for group, corruption in (("noise", "shot_noise"), ("blur", "zoom_blur")):
        for severity in range(1, 6):
            jpeg(tmp_path / group / corruption / str(severity) / "n01440764" / "a.JPEG")
        (tmp_path / f"my-{group}.tar").write_bytes(archived(tmp_path / group, name="."))
    record = replace(release("imagenet-c"), classes=1, images=dict.fromkeys(CORRUPTIONS, 1))
    said = reported(record, home, tmp_path / "my-noise.tar")
    assert "read and counted shot_noise; NOT the complete dataset: gaussian_noise is not there" in said
    get(record, root=home, source=tmp_path / "my-blur.tar")
    get(record, root=home, source=tmp_path / "my-blur.tar")  # what is there is not replaced
    assert listed(home / "ImageNet-C") == {"shot_noise", "zoom_blur"}
    assert len(imagenet.imagenet_c(home / "ImageNet-C", "zoom_blur", 3)) == 1
    lacking = release("imagenet-c").missing_archives(home / "ImageNet-C")
    assert [each.file for each in lacking] == ["noise.tar", "blur.tar", "weather.tar", "digital.tar", "extra.tar"]


@pytest.mark.slow
@real
def test_the_real_cifar100(home: Path) -> None:
    said = reported(release("cifar100"), home, SHARED / "cifar-100-python.tar.xz")
    assert said == (
        f"cifar100 is in {home / 'cifar-100-python'}; cifar-100-python.tar.xz is another packing: read and counted "
        "train, test, MD5 of 3 files as published."
    )
    assert listed(home) == {"cifar-100-python"}
    assert cifar100(home).labels[:4].tolist() == [49, 33, 72, 51]


@real
def test_the_real_pacs(home: Path) -> None:
    said = reported(release("pacs"), home, SHARED)
    assert "a link to" in said
    assert "photo 420 images, not 1 670" in said
    assert len(pacs.pacs_domain(home / "pacs", "sketch")) == 420


def test_pickled_cifar_from_an_archive_and_from_a_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar, "BATCH", 20)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        labels = list(range(10)) * 2
        (folder / name).write_bytes(pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": labels}, 2))
    (tmp_path / "repacked.tar.xz").write_bytes(archived(folder, "w:xz", folder.name))
    entry = replace(release("cifar10"), images={"train": 100, "test": 20})
    with pytest.raises(StateError, match=r"cifar10 cannot be used, MD5: data_batch_1, data_batch_2.*not as published"):
        get(entry, root=home, source=tmp_path / "repacked.tar.xz")
    get(replace(entry, file_md5={}), root=home, source=tmp_path / "repacked.tar.xz")
    assert len(cifar10(dataset_path("cifar10", home), "train")) == 100
