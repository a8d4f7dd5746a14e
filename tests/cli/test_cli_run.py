from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from cretta.bench import Domain, Run, Store
from cretta.cli import app
from cretta.cli.console import duration
from cretta.data import embedded

SMALL = """
import torch
from torch import nn

def network():
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
"""
BASE = ["run", "--model", "small_network:network", "--images", "30", "--batch-size", "10", "--buffer", "20"]


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small_network.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def told(folder: Path) -> list[Run]:
    return [result.run for result in Store(folder)]


def test_what_is_given_several_times_is_combined_and_kept() -> None:
    arguments = [*BASE, "--method", "source", "--method", "tent", "--shift", "fog", "--shift", "snow/3", "--seed", "0"]
    first = CliRunner().invoke(app, [*arguments, "--seed", "1"])
    assert first.exit_code == 0, first.output + first.stderr
    runs = told(Path("results"))
    assert len(runs) == 8
    assert {run.domains for run in runs} == {(Domain("fog", 5),), (Domain("snow", 3),)}
    assert {run.method for run in runs} == {"source", "tent"}
    assert {run.seed for run in runs} == {0, 1}
    assert "8 runs, 240 images" in first.output
    assert "±" in first.stdout
    assert max(map(len, first.stdout.splitlines())) <= 80

    again = CliRunner().invoke(app, [*arguments, "--seed", "1"])
    assert "8 of 8 runs are in results already" in again.output
    assert first.stdout.splitlines()[-8:] == again.stdout.splitlines()[-8:]


def test_one_run_is_one_run() -> None:
    arguments = [*BASE, "--method", "source"]
    assert "1 run, 30 images: about" in CliRunner().invoke(app, arguments).output
    assert "1 of 1 run is in results already." in CliRunner().invoke(app, arguments).output


def test_the_order_of_class_folders_is_said_or_stated_or_checked(tmp_path: Path) -> None:
    images, names = embedded("test").images, ("ant", "bee", "cow")
    for number in range(12):
        folder = tmp_path / "farm" / ("train" if number < 6 else "test") / names[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number]).save(folder / f"{number}.png")
    base = [*BASE, "--data", "farm", "--shift", "clean", "--method", "source", "--images", "6"]
    noted = CliRunner().invoke(app, base)
    assert noted.exit_code == 0, noted.output
    assert "in alphabetical order: 0 ant, 1 bee, 2 cow. If the model has another order" in noted.stderr
    named = f"{SMALL}\ndef named():\n    net = network()\n    net.classes = {names[::-1]}\n    return net\n"
    (tmp_path / "named_network.py").write_text(named)
    base[2] = "named_network:named"
    refused = CliRunner().invoke(app, base)
    assert refused.exit_code == 2
    assert "are ant, bee, cow, and the model's classes cow, bee, ant: list the model's classes" in refused.stderr
    (tmp_path / "farm" / "classes.txt").write_text("\n".join(names[::-1]))
    stated = CliRunner().invoke(app, base)
    assert stated.exit_code == 0, stated.output
    assert "alphabetical" not in stated.stderr


def test_options_are_swept() -> None:
    result = CliRunner().invoke(app, [*BASE, "--option", "beta=0.5|2", "--option", "lr=0.01", "--store", "sweep"])
    assert result.exit_code == 0, result.output + result.stderr
    runs = told(Path("sweep"))
    assert {dict(run.options)["beta"] for run in runs} == {0.5, 2.0}
    assert {dict(run.options)["lr"] for run in runs} == {0.01}
    assert {run.preset for run in runs} == {"cifar10"}
    assert {run.buffer.size for run in runs} == {20}


@pytest.mark.parametrize(
    ("arguments", "domains", "stream"),
    [
        (["--stream", "gradual", "--shift", "fog"], ("clean", *(f"fog/{n}" for n in range(1, 6)), "clean"), "gradual"),
        (["--stream", "mixed", "--shift", "fog", "--shift", "snow"], ("fog/5", "snow/5"), "mixed"),
        (
            ["--stream", "continual", "--shift", "fog", "--severity", "1", "--severity", "2"],
            ("fog/1", "fog/2"),
            "continual",
        ),
        (["--stream", "dirichlet", "--delta", "0.1", "--shift", "clean"], ("clean",), "dirichlet"),
    ],
)
def test_streams(arguments: list[str], domains: tuple[str, ...], stream: str) -> None:
    result = CliRunner().invoke(app, [*BASE, "--method", "bn_adapt", "--images", "10", *arguments])
    assert result.exit_code == 0, result.output + result.stderr
    (run,) = told(Path("results"))
    assert run.domains == Domain.parse_all(*domains)
    assert run.stream == stream


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "tnet"], "Did you mean 'tent'"),
        (["--data", "cifar11"], "tiny-imagenet. Or a folder with train/CLASS/ and test/CLASS/."),
        (["--data", "cifar10", "--root", "nowhere"], "cretta data get cifar10"),
        (["--shift", "rain"], "fog"),
        (["--shift", "fog/7"], "fog/7: expected a severity from 1 to 5 after the slash, as in fog/5."),
        (["--shift", "fog/x"], "fog/x: expected a severity from 1 to 5"),
        (["--option", "betta=1"], "beta"),
        (["--option", "beta=-1"], "beta=-1.0"),
        (["--stream", "dirichlet"], "such as --delta 0.1"),
        (["--stream", "continual", "--delta", "0.1"], "delta"),
        (["--stream", "gradual", "--delta", "0.1"], "delta"),
        (["--stream", "gradual", "--severity", "3"], "--severity"),
        (["--model", "nothing"], "nothing"),
        (["--preset", "mars"], "mars"),
        (["--option", "beta"], "--option beta: expected key=value"),
        (["--images", "0"], "--images 0: expected an integer, at least 1"),
        (["--buffer", "0"], "a buffer of 0 images: give a share"),
        (["--buffer", "5000"], "--buffer 5000: expected at most 1000, the number of images available"),
        (["--images", "99999"], "--images 99999: expected at most 2000"),
    ],
)
def test_bad_requests_get_a_message_and_leave_nothing(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, [*BASE, *arguments, "--store", "results"])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not list(Path("results").glob("*"))


def test_a_folder_of_other_files_is_not_a_store(tmp_path: Path) -> None:
    for command in ([*BASE, "--method", "source"], ["report"]):
        result = CliRunner().invoke(app, [*command, "--store", "."])
        assert result.exit_code == 2
        assert "--store .: expected a folder of results" in result.stderr
    assert [path.name for path in tmp_path.glob("*.*")] == ["small_network.py"]


def test_durations_in_words() -> None:
    assert [duration(seconds) for seconds in (40, 100, 5400, 12_000)] == ["40 s", "2 min", "1 h 30 min", "3 h 20 min"]
