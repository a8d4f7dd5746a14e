from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from cretta.cli import app
from cretta.cli.data import data_app
from cretta.data import cifar, fetch, pacs
from cretta.data.registry import RELEASES, release


def run(*arguments: object) -> tuple[int, str, str]:
    # Without the other commands, which typer would build for every call.
    result = CliRunner().invoke(data_app, list(map(str, arguments)))
    assert "Traceback" not in result.output + result.stderr
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10 as published, with 20 images where it has 10 000; no MD5 of files is known."""
    monkeypatch.setattr(cifar, "BATCH", 20)
    record = replace(release("cifar10"), file_md5={}, images={"train": 100, "test": 20})
    monkeypatch.setitem(RELEASES, "cifar10", record)
    folder = tmp_path / "at hand" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        held = {b"data": np.zeros((20, 3072), np.uint8), b"labels": list(range(10)) * 2}
        (folder / name).write_bytes(pickle.dumps(held, 2))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_list_shows_what_there_is_and_what_is_here(root: Path) -> None:
    code, shown, _ = run("list", "--root", root)
    assert code == 0
    assert [line.split()[0] for line in shown.splitlines()[2:11]] == list(RELEASES)
    assert all(line.rstrip().endswith(" -") for line in shown.splitlines()[2:11])
    for word in ("170.5 MB", "66.0 GB", "by hand", "cretta data get NAME"):
        assert word in shown
    assert not root.exists()


def test_list_fits_a_terminal_with_everything_here(root: Path) -> None:
    for name, file in (
        ("cifar-10-batches-bin", "test_batch.bin"),
        ("cifar-100-python", "test"),
        ("cifar-100-python", "train"),
        ("tiny-imagenet-200", "wnids.txt"),
        ("CIFAR-100-C", "labels.npy"),
    ):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / file).touch()
    (root / "imagenet" / "val" / "n01440764").mkdir(parents=True)
    (root / "ImageNet-C" / "fog").mkdir(parents=True)
    _, shown, _ = run("list", "--root", root)
    title, *lines = shown.splitlines()
    assert title == f"Datasets in {root}"
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.rstrip().split("  ")[-1].lstrip() for line in lines[1:10]}
    assert rows["cifar10"] == "cifar-10-batches-bin"
    assert rows["tiny-imagenet"] == "tiny-imagenet-200"
    assert rows["imagenet"] == "imagenet/val"
    assert rows["imagenet-c"] == "in part"
    assert rows["pacs"] == "-"
    assert "…" not in shown


@pytest.mark.parametrize("name", RELEASES)
def test_show_tells_all(name: str, root: Path) -> None:
    code, shown, _ = run("show", name, "--root", root)
    assert code == 0
    record = release(name)
    flat = " ".join(shown.split())
    for said in (record.page, record.license, *(archive.md5 for archive in record.archives), record.manual):
        assert said in flat
    assert f'dataset_path("{name}")' in flat
    assert record.example.split("(")[0] in flat
    assert max(map(len, shown.replace(str(root), "").splitlines())) <= 80


def test_the_environment_names_the_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRETTA_DATA", str(root))
    assert run("list")[1].startswith(f"Datasets in {root}\n")


def test_get_from_a_folder_then_check_then_list(cifar10: Path, root: Path) -> None:
    code, said, _ = run("get", "cifar10", "--from", cifar10.parent, "--root", root)
    assert code == 0
    assert said == f"cifar10 is in {root / cifar10.name}, a link to {cifar10}; read and counted train, test.\n"
    code, said, _ = run("get", "cifar10", "--root", root)
    assert (code, said) == (0, f"cifar10 is there already: {root / cifar10.name}\n")
    code, said, _ = run("check", "--root", root)
    assert code == 0
    lines = [line.split() for line in said.splitlines()]
    assert lines[0] == ["cifar10", *str(root / cifar10.name).split()]
    assert lines[1] == "train 100 images, 10 per class complete".split()  # noqa: SIM905
    assert lines[2] == "test 20 images, 2 per class complete".split()  # noqa: SIM905
    assert re.search(rf"cifar10 .* {cifar10.name}", run("list", "--root", root)[1])


def test_check_reports_damage(cifar10: Path, root: Path) -> None:
    run("get", "cifar10", "--from", cifar10, "--root", root)
    (cifar10 / "data_batch_4").write_bytes(b"nothing")
    code, said, _ = run("check", "cifar10", "--root", root)
    assert code == 1
    assert "data_batch_4 of" in " ".join(said.split())
    assert "damaged" in said
    assert re.search(r"test +20 images, 2 per class +complete", said)


def test_check_of_a_part_of_a_dataset(root: Path, tmp_path: Path) -> None:
    for domain in pacs.DOMAINS:
        for label in pacs.CLASSES:
            (tmp_path / "PACS" / domain / label).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "PACS" / domain / label / "a.png")
    code, said, _ = run("get", "pacs", "--from", tmp_path / "PACS", "--root", root)
    assert code == 0
    assert "NOT the complete dataset: photo 7 images, not 1 670" in said
    code, said, _ = run("check", "--root", root)
    assert code == 1
    assert re.search(r"sketch +7 images, not 3 929 +incomplete", said)


def test_check_where_nothing_is(root: Path) -> None:
    code, said, _ = run("check", "--root", root)
    assert code == 0
    assert said == f"No dataset is in {root}. Get one with: cretta data get NAME\n"
    code, said, _ = run("check", "cifar10", "--root", root)
    assert code == 1
    assert "cifar10 is not there: expected" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["get", "mnist"], "unknown dataset 'mnist'. Allowed: cifar10"),
        (["show", "mnist"], "unknown dataset 'mnist'"),
        (["check", "mnist"], "unknown dataset 'mnist'"),
        (["get", "cifar10", "--from", "/gone"], "/gone is not there: give an archive"),
        (["get", "imagenet"], "an account at https://image-net.org"),
        (["get", "cifar10", "mnist"], "unknown dataset 'mnist'"),
    ],
)
def test_bad_requests_to_data_get_a_message(arguments: list[str], said: str, root: Path) -> None:
    code, _, error = run(*arguments, "--root", root)
    assert code == 2
    assert said in error
    assert not root.exists() or not list(root.iterdir())


def test_options_reach_the_download(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []

    def get(name: str, **options: object) -> None:
        heard.append((name, {key: options[key] for key in ("root", "source")}))
        progress: fetch.Progress = options["progress"]  # type: ignore[assignment]
        progress("file", 1, 2)
        progress("file", 2, 2)
        progress("reading", 0, None)

    monkeypatch.setattr(fetch, "get", get)
    assert run("get", "cifar10", "pacs", "--root", root, "--from", root)[0] == 0
    options = {"root": root, "source": root}
    assert heard == [("cifar10", options), ("pacs", options)]


def test_an_interruption_says_that_it_continues(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "get", get)
    code, _, error = run("get", "cifar10", "--root", root)
    assert code == 130
    assert "run the same command again to continue" in error


def test_help_teaches() -> None:
    for command, example in (
        ("get", "cretta data get imagenet --from"),
        ("check", "cretta data check cifar10"),
        ("list", "cretta data list --root"),
        ("show", "cretta data show imagenet"),
    ):
        result = CliRunner().invoke(app, ["data", command, "--help"])
        assert result.exit_code == 0
        assert example in " ".join(result.stdout.split())
