from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import cretta
from cretta.cli import app

DEMO = ["demo", "--images", "20", "--batch-size", "10", "--shift", "fog"]


def test_demo_prints_the_table_and_draws_the_figure(tmp_path: Path) -> None:
    figure = tmp_path / "figure.png"
    result = CliRunner().invoke(app, [*DEMO, "--output", str(figure)])
    assert result.exit_code == 0, result.output
    for word in ("fog", "source", "bn_adapt", "tent", "cretta", "accuracy", "ECE", "energy", "images/s"):
        assert word in result.output
    assert max(map(len, result.output.replace(str(figure), "").splitlines())) <= 80
    with Image.open(figure) as image:
        assert image.size[0] > 1000
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "figure.gif"], ".png"),
        (["--output", "nowhere/figure.png"], "nowhere"),
        (["--shift", "rain"], "fog"),
        (["--severity", "9"], "9"),
        (["--images", "9999"], "2000"),
    ],
)
def test_bad_requests_get_a_message_and_no_traceback(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "figure.png"), *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output + result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_version_and_help_through_the_real_command() -> None:
    command = [sys.executable, "-c", "from cretta.cli import app; app()"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.strip() == f"cretta {cretta.__version__}"
    shown = subprocess.run([*command, "demo", "--help"], capture_output=True, text=True, check=True)
    assert "cretta demo --shift" in shown.stdout
