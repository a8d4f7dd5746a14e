from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import cretta
from cretta.cli import app
from cretta.demo import METHODS, SHIFTS

NUMBERS = r"\s+(-?[\d.]+)\s+(-?[\d.]+)\s+(-?[\d.]+)\s+(\d+)"


def rows(output: str) -> list[tuple[str, ...]]:
    """Method, accuracy, ECE, confidence minus accuracy and speed of each row of the table."""
    return re.findall(rf"^\s*({'|'.join(METHODS)}){NUMBERS}\s*$", output, flags=re.MULTILINE)


@pytest.mark.slow
def test_demo_passes_through_all_shifts_and_says_what_to_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary, figure = tmp_path / "temporary", tmp_path / "figure.svg"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    result = CliRunner().invoke(app, ["demo", "--images", "4", "--batch-size", "4", "--output", str(figure)])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    for title in ("accuracy % ↑", "ECE % ↓", "confidence − accuracy %", "images/s", "4 CIFAR-10 test images per shift"):
        assert title in shown
    found = rows(result.output)
    assert [row[0] for row in found] == [*METHODS, *METHODS]
    assert shown.index("whole stream") < shown.index("second half")
    late = {row[0]: row for row in found[4:]}
    # One batch per shift has no spread, so that nothing is called best; the sentences repeat the table's numbers.
    assert "Over the whole stream no method is clearly the most accurate." in shown
    assert "In its second half no method is clearly the best calibrated; " in shown
    for method in METHODS:
        assert f"{float(late[method][3]):+.1f} for {method}" in shown
    assert max(map(len, result.stdout.replace(str(figure), "").splitlines())) <= 80
    drawing = figure.read_text()
    for text in (*(word for shift in SHIFTS for word in shift.split("_")), "accuracy %", "ECE %", "images seen"):
        assert text in drawing
    assert not list(temporary.glob("cretta-*"))


@pytest.mark.slow
def test_a_store_has_the_results_of_the_demo_for_a_second_time(tmp_path: Path) -> None:
    command = ["demo", "--images", "2", "--store", str(tmp_path / "store"), "--output", str(tmp_path / "figure.svg")]
    first, again = CliRunner().invoke(app, command), CliRunner().invoke(app, command)
    assert first.exit_code == again.exit_code == 0, first.output + again.output
    assert "are in" not in first.output
    assert f"{len(METHODS)} of {len(METHODS)} runs are in" in again.output
    assert rows(first.output)
    assert rows(again.output) == rows(first.output)  # the speed too, which another run would not repeat


@pytest.mark.slow
def test_single_shifts_are_shown_on_their_own(tmp_path: Path) -> None:
    figure = tmp_path / "figure.png"
    arguments = ["--images", "10", "--batch-size", "5", "--shift", "glass_blur", "--shift", "fog"]
    result = CliRunner().invoke(app, ["demo", *arguments, "--output", str(figure)])
    assert result.exit_code == 0, result.output
    assert [row[0] for row in rows(result.stdout)] == [*METHODS, *METHODS]
    # Not in the output with stderr, where a slow machine has lines of progress.
    assert result.stdout.index("glass blur") < result.stdout.index("fog")
    assert "second half" not in result.stdout
    assert max(map(len, result.stdout.replace(str(figure), "").splitlines())) <= 80
    with Image.open(figure) as image:
        assert image.size[0] > 1000
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "figure.gif"], ".png"),
        (["--output", "nowhere/figure.png"], "nowhere"),
        (["--shift", "rain", "--images", "20", "--batch-size", "50"], "unknown corruption 'rain'"),
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
