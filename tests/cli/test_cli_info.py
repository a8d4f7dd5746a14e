"""`cretta info`."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import torch
from typer.testing import CliRunner

from cretta import models
from cretta.accelerate import missing_kernels
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


def test_it_shows_whether_the_kernels_are_used_and_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = missing_kernels()
    assert lines()["kernels"] == ("in use" if missing is None else f"not in use: {missing}")
    monkeypatch.setenv("CRETTA_KERNELS", "off")
    assert lines()["kernels"] == "not in use: CRETTA_KERNELS=off is set"
