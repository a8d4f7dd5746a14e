from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from cretta.cli import app
from cretta.data import CorruptedDataset, cifar, cifar_c, corrupt, embedded, image_folder, numpy_file, tiny_imagenet_c
from cretta.data.corruptions import photographs
from cretta.data.dataset import Labels, Pixels


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["data", "make", *map(str, arguments)])


def cifar10_root(folder: Path, count: int = 10_000) -> tuple[Pixels, Labels]:
    """CIFAR-10's test set in the binary version, from the embedded images over and over."""
    test = embedded("test")
    images, labels = np.tile(test.images, (5, 1, 1, 1))[:count], np.tile(test.labels, 5)[:count]
    rows = np.concatenate([labels[:, None].astype(np.uint8), images.transpose(0, 3, 1, 2).reshape(count, -1)], axis=1)
    (folder / "cifar-10-batches-bin").mkdir(parents=True)
    (folder / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(rows.tobytes())
    return images, labels


@pytest.mark.slow
def test_cifar10_c_as_published(tmp_path: Path) -> None:
    images, labels = cifar10_root(tmp_path)
    result = call("cifar10-c", "--root", tmp_path, "--corruption", "contrast", "--seed", 3)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "CIFAR-10-C"
    assert f"50000 images made: {folder}" in result.output
    for severity in (1, 5):
        dataset = cifar_c(folder, "contrast", severity)
        assert (dataset.name, dataset.domain) == ("cifar10-c", f"contrast/{severity}")
        assert np.array_equal(dataset.labels, labels)
        assert np.array_equal(dataset.read(range(9000, 9100)), corrupt(images[9000:9100], "contrast", severity, 3))
    again = call("cifar10-c", "--root", tmp_path, "--corruption", "contrast", "--seed", 3)
    assert "0 images made, 50000 were there" in again.output


def test_the_corruptions_for_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "BATCH", 20)
    images, labels = cifar10_root(tmp_path, 20)
    result = call("cifar10-c", "--root", tmp_path, "--corruption", "fog", "--validation")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "CIFAR-10-C"
    read = numpy_file(folder / "saturate.npy", folder / "labels.npy")
    assert np.array_equal(read.images[80:], corrupt(images, "saturate", 5))
    assert read.labels.tolist() == labels.tolist() * 5
    made = sorted(path.stem for path in folder.glob("*.npy"))
    assert made == ["fog", "gaussian_blur", "labels", "saturate", "spatter", "speckle_noise"]


def test_tiny_imagenet_c_as_published(tmp_path: Path) -> None:
    source = tmp_path / "tiny-imagenet-200"
    (source / "val" / "images").mkdir(parents=True)
    wnids = [f"n{number:08}" for number in range(200, 0, -1)]
    (source / "wnids.txt").write_text("\n".join(wnids))
    lines = []
    images = embedded("test").images
    for number, wnid in enumerate(wnids):
        image = Image.fromarray(images[number]).resize((64, 64))
        image.save(source / "val" / "images" / f"val_{number}.JPEG")
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t1\t1\n")
    (source / "val" / "val_annotations.txt").write_text("".join(lines))
    result = call("tiny-imagenet-c", "--root", tmp_path, "--corruption", "brightness", "--severity", 4)
    assert result.exit_code == 0, result.output
    dataset = tiny_imagenet_c(tmp_path / "Tiny-ImageNet-C", "brightness", 4)
    assert (len(dataset), len(dataset.classes)) == (200, 200)
    last = dataset.files[-1]
    assert last.relative_to(tmp_path).as_posix() == "Tiny-ImageNet-C/brightness/4/n00000200/val_0.JPEG"
    with Image.open(source / "val" / "images" / "val_0.JPEG") as opened:
        expected = corrupt(np.asarray(opened)[None], "brightness", 4, parameters="tiny")[0]
    assert np.abs(dataset[199][0].astype(int) - expected).mean() < 6


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number, image in enumerate(embedded("test").images[:6]):
        Image.fromarray(image).save(tmp_path / "photos" / f"{number}.png")
    options = ("--corruption", "snow", "--corruption", "pixelate", "--severity", 2, "--severity", 3, "--workers", 2)
    result = call(tmp_path / "photos", *options, "--parameters", "tiny")
    assert result.exit_code == 0, result.output
    assert f"24 images made: {tmp_path}/photos-C" in result.output.replace("\n", "")
    made = image_folder(tmp_path / "photos-C" / "snow" / "3")
    expected = CorruptedDataset(image_folder(tmp_path / "photos"), "snow", 3, parameters="tiny")
    assert np.array_equal(made.read(range(6)), expected.read(range(6)))
    other = call(tmp_path / "photos", *options)
    assert other.exit_code == 2
    assert 'parameters was "tiny" and is null' in other.stderr


def test_frost_without_its_photographs_is_reported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "files", lambda name: [])
    photographs._originals.cache_clear()
    photographs._scaled.cache_clear()
    (tmp_path / "photos").mkdir()
    result = call(tmp_path / "photos")
    assert result.exit_code == 2
    assert 'pip install "cretta[data]"' in result.stderr
    assert "or choose another corruption" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--corruption", "fog"], "expected one of cifar10-c, cifar100-c, tiny-imagenet-c, or a folder"),
        (["cifar10-c", "--corruption", "fog"], "cretta data get cifar10"),
        (["cifar10-c", "--corruption", "rain"], "unknown corruption 'rain'"),
        ([".", "--corruption", "fog", "--severity", "9"], "--severity 9: expected an integer from 1 to 5."),
        ([".", "--corruption", "fog", "--output", "1.png"], "--output 1.png: expected a folder, got a file"),
        (["cifar10-c", "--corruption", "fog", "--severity", "2"], "leave format and severity out"),
        (["cifar10-c", "--corruption", "fog", "--size", "2"], "leave it out"),
        ([".", "--corruption", "fog", "--format", "gif"], "give one of png, jpeg"),
        ([".", "--corruption", "fog"], "holds neither images"),
    ],
)
def test_invalid_requests_get_a_message(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    if "--format" in arguments or "1.png" in arguments:
        Image.new("RGB", (4, 4)).save(home / "1.png")
    result = call(*arguments, *(["--root", tmp_path / "root"] if arguments[0] == "cifar10-c" else []))
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output + result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_other_settings_are_named_as_options(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "photos" / "1.png")
    command = [tmp_path / "photos", "--corruption", "contrast", "--severity", "1"]
    assert call(*command).exit_code == 0
    result = call(*command, "--seed", "1")
    assert result.exit_code == 2
    assert "other settings: --seed was 0 and is 1." in result.stderr
    assert "or give another --output …." in result.stderr
