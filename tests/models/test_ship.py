"""The card of shipped weights, and the script that makes it from what training recorded."""

import dataclasses
import json
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer.main
from click import Context
from torch import nn

from cretta.cli import app
from cretta.models import build, load, names, weights
from cretta.storage import tensorfile
from cretta.training import Recipe
from scripts_as_modules import load_script

CARD = {
    "architecture",
    "class_names",
    "command",
    "data_license",
    "file",
    "input",
    "license",
    "recipe",
    "scores",
    "sha256",
    "side",
    "trained_on",
}


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script, which ships into a folder of the test."""
    module = load_script("ship_weights")
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "index.json").write_text("{}")
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(weights, "SHIPPED", tmp_path / "shipped")
    return module


def trained(path: Path, **recipe: Any) -> nn.Module:
    """Write the files that training leaves, and return the network."""
    torch.manual_seed(0)
    network = build("wrn-10-1", classes=3).eval()
    facts = {
        "kind": weights.WEIGHTS,
        "side": 32,
        "architecture": "wrn-10-1",
        "classes": ["cat", "dog", "frog"],
        "dataset": "cifar10",
        "init": "first weights.safetensors",
        "recipe": dataclasses.asdict(Recipe(**recipe)),
        "epochs": 7.96,
        "minutes": 88.2,
        "accuracy": 0.93125,
        "calibration_error": 0.01234,
        "holdout_accuracy": 0.925,
    }
    tensorfile.write(path, network.state_dict(), facts)
    path.with_suffix(".csv").write_text("epoch\n")
    path.with_suffix(".png").write_bytes(b"png")
    return network


def test_each_shipped_network_has_a_complete_card() -> None:
    for name in names():
        card = weights.card(name)
        assert set(card) == CARD
        assert all(card.values())
        assert f"{card['architecture']}-" in name


def test_weights_are_shipped_with_what_training_recorded(
    ship: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = trained(tmp_path / "new.safetensors", minutes=88, lr=0.15, holdout=1000)
    monkeypatch.setattr("sys.argv", ["ship", str(tmp_path / "new.safetensors"), "--before", "9.4 epochs"])
    ship.main()
    assert "wrn-10-1-cifar10.safetensors" in capsys.readouterr().out
    card = json.loads((tmp_path / "shipped" / "index.json").read_text())["wrn-10-1-cifar10"]
    assert set(card) == CARD
    assert card["scores"] == {
        "test accuracy, %": 93.12,
        "test ECE, %": 1.23,
        "accuracy on held-out training images, %": 92.5,
    }
    assert card["trained_on"] == "cifar10, 49 000 of its 50 000 training images"
    assert card["recipe"].endswith("9.4 epochs, then 8.0 epochs in 88 minutes of one CPU core")
    assert "up to 0.15" in card["recipe"]
    x = torch.rand(2, 3, 32, 32)
    assert (load("wrn-10-1-cifar10")(x) - network(x)).abs().max() < 0.01
    assert (tmp_path / "results" / "training-wrn-10-1-cifar10.csv").read_text() == "epoch\n"
    assert (tmp_path / "results" / "training-wrn-10-1-cifar10.png").exists()


def test_the_command_of_a_card_is_the_training_it_describes(ship: ModuleType, tmp_path: Path) -> None:
    trained(tmp_path / "new.safetensors", minutes=88, lr=0.15, holdout=1000, learn="norm and head", augmix=0.5)
    words = shlex.split(ship.command(tensorfile.read(tmp_path / "new.safetensors", weights.WEIGHTS)[1]))
    assert words[:2] == ["cretta", "train"]
    train = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]  # it is a group
    with Context(train) as context:
        train.parse_args(context, words[2:])
    values = context.params
    assert (values["dataset"], values["architecture"]) == ("cifar10", "wrn-10-1")
    assert values["init"] == "first weights.safetensors"
    recipe = {name: values[name] for name in Recipe.names() if name in values}
    assert Recipe(**recipe) == Recipe(minutes=88, lr=0.15, holdout=1000, learn="norm and head", augmix=0.5)
