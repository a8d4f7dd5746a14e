"""`cretta info`."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest
import torch
from typer.testing import CliRunner

from cretta import models
from cretta.accelerate import missing_kernels, typical_choices
from cretta.cli import app


def lines() -> dict[str, str]:
    result = CliRunner().invoke(app, ["info"])
    assert result.exit_code == 0, result.output
    pairs = (line.partition("  ") for line in result.output.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def test_it_shows_versions_machine_and_models() -> None:
    shown = lines()
    assert shown["cretta"] == version("cretta")
    assert shown["torch"] == torch.__version__
    assert torch.backends.cpu.get_cpu_capability() in shown["instructions"]
    assert shown["threads"].startswith(f"{torch.get_num_threads()} of ")
    assert shown["devices"].startswith("cpu")
    assert shown["models"] == ", ".join(models.names())


def test_it_shows_which_kernels_are_used_and_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = missing_kernels()
    assert lines()["kernels"] == ("avx2" if missing is None else f"not in use: {missing}") + " (CRETTA_KERNELS=avx2)"
    monkeypatch.setenv("CRETTA_KERNELS", "off")
    assert lines()["kernels"] == "not in use: CRETTA_KERNELS=off is set (CRETTA_KERNELS=off)"


@pytest.mark.skipif(missing_kernels() is not None, reason=f"no kernels here: {missing_kernels()}")
def test_it_shows_the_times_of_typical_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRETTA_KERNELS", "auto")
    output = CliRunner().invoke(app, ["info"]).output
    chosen = [str(choice) for choice in typical_choices()]
    assert len(chosen) == 9  # BatchNorm and both directions of the convolution, of three layers
    for choice in chosen:
        assert re.fullmatch(r"(convolution|BatchNorm).*: \S+( 4x4)? \(.*pytorch [\d.]+ ms\)", choice)
        assert " ".join(choice.split()) in " ".join(output.split())
