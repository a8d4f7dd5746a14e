"""The page of verdicts and the table of README.md, written from invented results."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from cretta.bench import Run
from cretta.paper import DAY, get, write_summary

sys.path.insert(0, str(Path(__file__).parent / "paper"))
from fake_results import results

from scripts_as_modules import load_script

RIGHT = {"cretta": 0.6, "tent": 0.7, "bn_adapt": 0.65}


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a summary of results in which CreTTA is worse than TENT and BN Adapt."""
    module = load_script("write_docs")

    def share(run: Run, domain: str, batch: int) -> float:
        return RIGHT.get(run.method, 0.5) + 0.01 * (run.seed - 1)

    runs = [run for run in get("accuracy").plan(DAY) if run.data == "cifar10"]
    write_summary(results(runs, right=share, batches=4), dict.fromkeys(runs, "cretta reproduce"), tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def test_what_was_run_has_its_numbers_and_the_rest_says_that_it_was_not(writer: ModuleType) -> None:
    page = writer.verdict()
    assert "| `accuracy` | Table 9 | CreTTA is the most accurate under corruption. | no |" in page
    assert "| `pacs` | Table 2 | CreTTA has the best average accuracy and ECE. | not run yet |" in page
    assert "| 88.30 against 88.27 (AEA) | 60.00 ± 1.00 against 70.00 ± 1.00 (TENT) |" in page
    assert "| -10.00 ± 0.00 | no, the opposite |" in page
    assert "Likely reason" not in page


def test_reasons_are_shown_only_of_what_was_run(writer: ModuleType) -> None:
    (writer.RESULTS / "reasons.toml").write_text('accuracy = "The network is another one."')
    assert "Likely reason: The network is another one." in writer.verdict()
    (writer.RESULTS / "reasons.toml").write_text('pacs = "Invented."')
    with pytest.raises(ValueError, match="reasons of items without results: pacs"):
        writer.verdict()


def test_when_not_to_use_it_is_what_was_measured(writer: ModuleType) -> None:
    lines = writer.not_to_use()
    assert "- CIFAR10-C, severity 5, Acc: CreTTA 60.00 ± 1.00, BN Adapt 65.00 ± 1.00 (`accuracy`)." in lines
    assert "Source" not in lines
    assert "CIFAR100" not in lines


def test_the_table_of_the_readme(writer: ModuleType) -> None:
    table = writer.main_results()
    assert "| TENT | **70.00 ± 1.00** (87.84, -17.84) |" in table
    assert "CIFAR10-C, severity 5 · Acc ↑" in table
    assert "CIFAR100" not in table.split("Omitted")[0]
