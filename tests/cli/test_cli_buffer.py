from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

import cretta
from cretta.cli import app
from cretta.data import embedded


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["buffer", *map(str, arguments)])


def done(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output + result.stderr
    assert max(map(len, result.output.splitlines())) <= 80 or "/" in result.output
    return str(result.output)


def test_build_is_sample_and_save(tmp_path: Path) -> None:
    output = tmp_path / "source.safetensors"
    told = done("build", "embedded", "--output", output, "--size", 33, "--seed", 3)
    buffer = cretta.SourceBuffer.load(output)
    assert buffer.fingerprint == cretta.SourceBuffer.sample(embedded("train"), 33, seed=3).fingerprint
    for word in ("33, each 3 x 32 x 32 of uint8", "rotate, once", "10; images of each: 3 to 4"):
        assert word in told
    shown = done("show", output)
    assert "10; images of each: 3 to 4" in shown


def test_folders_scaled_to_what_the_model_takes(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (60 + number, 40), (number, 0, 0)).save(tmp_path / "train" / name / f"{number}.png")
    output = tmp_path / "source.safetensors"
    wrong = call("build", tmp_path / "train", "--output", output, "--size", "1.0")
    assert wrong.exit_code == 2
    assert "differ in size" in wrong.stderr
    assert not output.exists()
    told = done("build", tmp_path / "train", "--output", output, "--size", "0.4", "--image-size", "16")
    assert "4, each 3 x 16 x 16" in told
    assert "2; images of each: 2" in told
    flat = tmp_path / "train" / "cat"
    told = done("build", flat, "--output", output, "--size", 2, "--image-size", "8x9", "--overwrite")
    assert "2, each 3 x 8 x 9" in told
    assert "not known" in told
    assert "rotate, once" in told


def test_how_class_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog", "ship"):
        Path("train", name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(f"train/{name}/1.png")
    build = ["build", "train", "--output", "source.safetensors", "--size", "1.0", "--overwrite"]
    assert call(*build).stderr == (
        "note: the class folders of train count as the model's classes in alphabetical order: 0 cat, 1 dog, 2 ship. If "
        "the model has another order, list its classes in train/classes.txt, one per line.\n"
    )
    names = tmp_path / "train" / "classes.txt"
    names.write_text("ship\ncat\ncow\ndog")
    assert call(*build).stderr == (
        f"note: the class folders of train are numbered as in {names}: 0 ship, 1 cat, 2 cow, 3 dog.\n"
    )
    labels = cretta.SourceBuffer.load("source.safetensors").labels
    assert labels is not None
    assert sorted(labels.tolist()) == [0, 1, 3]
    names.write_text("ship\ncat")
    fewer = call(*build)
    assert fewer.exit_code == 2
    assert "expected folders named after the 2 classes (ship, cat), got dog; remove what is not" in fewer.stderr
    names.unlink()
    Image.new("RGB", (4, 4)).save("train/loose.png")
    beside = call(*build)
    assert beside.stderr == (
        "note: images beside the class folders of train (1, such as loose.png) have no label, so all images are taken "
        "without labels; move them elsewhere to use the folders as labels.\n"
    )
    assert "not known" in beside.output
    assert cretta.SourceBuffer.load("source.safetensors").labels is None


def test_a_buffer_with_an_augmentation_of_ones_own(tmp_path: Path) -> None:
    def own(x: Tensor) -> Tensor:
        return x

    cretta.SourceBuffer(torch.rand(4, 3, 5, 5), augment=own).save(tmp_path / "own.safetensors")
    told = done("show", tmp_path / "own.safetensors")
    assert "callable" in told
    assert "4, each 3 x 5 x 5 of float32" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lost"], "lost is not there"),
        (["embedded", "--size", "ten"], "--size ten"),
        (["embedded", "--size", "0"], "1 to 1000"),
        (["embedded", "--size", "1.5"], "at most 1"),
        (["embedded", "--augment", "flip"], "rotate"),
        (["embedded", "--image-size", "8"], "32x32"),
        (["embedded", "--output", "out.pt"], ".safetensors"),
        (["embedded", "--output", "there.safetensors"], "--overwrite"),
        (["embedded", "--seed", "-1"], "--seed"),
    ],
)
def test_wrong_requests_get_a_message_and_change_nothing(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.safetensors").write_text("mine")
    output = [] if "--output" in arguments else ["--output", "out.safetensors"]
    result = call("build", *arguments, *output)
    assert result.exit_code == 2, result.output
    assert said in result.stderr.replace("\n", "")
    assert "Traceback" not in result.output + result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["there.safetensors"]


@pytest.mark.filterwarnings("default")
def test_fewer_images_than_classes_get_a_note(tmp_path: Path) -> None:
    result = call("build", "embedded", "--size", 2, "--output", tmp_path / "out.safetensors")
    assert result.exit_code == 0
    assert result.stderr == "note: the buffer has images of 2 of 10 classes; a larger size has more.\n"


def test_showing_what_is_no_buffer(tmp_path: Path) -> None:
    assert "no such file" in call("show", tmp_path / "lost.safetensors").stderr
    cretta.adapt(cretta.models.build("resnet-8"), "source").save(tmp_path / "state.safetensors")
    result = call("show", tmp_path / "state.safetensors")
    assert result.exit_code == 2
    assert "not a source buffer. Make one: cretta buffer build FOLDER --output" in result.stderr


def test_help_teaches() -> None:
    told = done("build", "--help")
    for word in ("cretta buffer build train/", "--augment", "--image-size 224", "classes.txt"):
        assert word in told
