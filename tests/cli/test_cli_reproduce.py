from __future__ import annotations

import csv
import importlib
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cretta import paper
from cretta.bench import Store
from cretta.cli import app

SMALL = """
import torch
from torch import nn

def network():
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
"""


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "little.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def call(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    return result.exit_code, result.output, " ".join(result.stderr.split())


def test_every_item_is_listed() -> None:
    code, output, _ = call("--list")
    assert code == 0
    assert len(paper.items()) == 29
    assert all(name in output for name in paper.items())
    assert not Path("results").exists()


@pytest.mark.slow
def test_an_item_is_run_once_and_shown_beside_the_paper() -> None:
    # Cost has no printed clean numbers to confuse; its runs are those of the main table on one benchmark.
    arguments = ("gain-cost", "--model", "cifar10=little:network", "--root", "nowhere")
    code, output, wrong = call(*arguments)
    assert code == 0, output + wrong
    assert "Scale smoke" in output
    assert "1 item from 20 runs in" in output
    assert len(list(Store("results"))) == 20
    files = {path.suffix: path for path in Path("results/paper-smoke").iterdir()}
    assert sorted(files) == [".html", ".pdf", ".png", ".svg"]
    page = files[".html"]
    assert page.name == "gain-cost.html"
    assert "(paper)" in files[".svg"].read_text()
    assert "Figure 1" in page.read_text() or "gain" in page.read_text().lower()

    again, output, _ = call(*arguments)
    assert again == 0
    assert output.count("8 of 8 runs are in results already") == 2
    assert output.count("2 of 2 runs are in results already") == 2


def test_what_is_missing_is_said_and_the_rest_is_shown() -> None:
    code, output, wrong = call("source-model", "--model", "cifar10=little:network", "--root", "nowhere")
    assert code == 0, output + wrong
    told = " ".join(output.split())
    assert "cretta data get cifar100" in told
    assert "cretta data get tiny-imagenet" in told
    with Path("results/paper-smoke/source-model.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["column_group"].partition(",")[0] for row in rows} == {"CIFAR10-C"}
    assert all(row["value"] and row["printed"] for row in rows)
    assert "Not measured yet: CIFAR100-C, severity 5; TinyImageNet-C, severity 5." in told
    for absent in (
        "–",
        "the measured one less it",
        "ResNet-8",
    ):  # nothing is missing, compared with the paper, or said of other networks
        assert absent not in output


def test_an_item_without_any_result_is_named_and_nothing_is_written() -> None:
    code, output, wrong = call("pacs", "--root", "nowhere")
    assert code == 0, output + wrong
    told = " ".join(output.split())
    assert "cretta data get pacs" in told
    assert "Not measured yet: PACS by source domain: accuracy; PACS by source domain: " in told
    assert "–" not in output
    assert not Path("results/paper-smoke").exists()


def test_an_estimate_runs_nothing() -> None:
    code, output, _ = call("main", "--estimate", "--model", "cifar10=little:network", "--root", "nowhere")
    assert code == 0
    text = " ".join(output.split())
    assert "44 runs, each once: about" in text
    stages = ("CIFAR10-C, main methods 8 0", "CIFAR10-C, others 14 0", "CIFAR10-C below severity 5, main methods 8 0")
    positions = [text.index(stage) for stage in stages]
    assert positions == sorted(positions)
    assert not list(Store("results"))


def test_a_summary_shows_the_same_without_store_and_network() -> None:
    arguments = ("pairs", "--model", "cifar10=little:network", "--root", "nowhere")
    assert call(*arguments, "--export", "summary")[0] == 0
    assert sorted(path.name for path in Path("summary").iterdir()) == ["runs.csv", "runs.parquet"]
    with Path("summary/runs.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4
    assert {line["command"] for line in lines} == {
        "cretta reproduce pairs --scale smoke --model cifar10=little:network"
    }
    Path("little.py").unlink()
    options = ("--scale", "smoke", "--model", "cifar10=little:network", "--output", "shown")
    code, output, wrong = call("pairs", "main", "--from-results", "--store", "summary", *options)
    assert code == 0, output + wrong
    assert Path("shown/pairs.csv").read_text() == Path("results/paper-smoke/pairs.csv").read_text()
    assert "2 items from 4 runs" in output
    code, _, wrong = call("pairs", "--from-results", "--store", "nothing")
    assert (code, Path("nothing").exists()) == (2, False)
    assert "no results in nothing" in wrong


def test_what_the_folder_of_the_export_has_is_not_computed_again() -> None:
    arguments = ("pairs", "--model", "cifar10=little:network", "--root", "nowhere", "--export", "summary")
    assert call(*arguments)[0] == 0
    first = paper.read_results(Path("summary"))
    shutil.rmtree("results")  # another machine
    code, output, _ = call(*arguments)
    assert code == 0
    assert "Taken from summary: 4 runs" in output
    assert "2 of 2 runs are in results already" in output
    assert paper.read_results(Path("summary")) == first  # with provenance and seconds of the first machine


def test_what_was_computed_with_other_weights_is_computed_again() -> None:
    arguments = ("pairs", "--model", "cifar10=little:network", "--root", "nowhere", "--export", "summary")
    assert call(*arguments)[0] == 0
    first = {result.key for result in paper.read_results(Path("summary")).values()}
    Path("little.py").write_text(SMALL.replace("manual_seed(7)", "manual_seed(8)"))
    sys.modules.pop("little")
    importlib.invalidate_caches()
    shutil.rmtree("results")
    code, output, _ = call(*arguments)
    assert code == 0
    assert "In summary with other data, weights or version, computed again: 4 runs" in " ".join(output.split())
    assert "are in results already" not in output
    assert not first & {result.key for result in paper.read_results(Path("summary")).values()}


def test_runs_of_one_method_come_beside_what_is_stored_of_others() -> None:
    arguments = ("gain-cost", "--model", "cifar10=little:network", "--root", "nowhere")
    code, output, _ = call(*arguments, "--method", "source", "--method", "bn_adapt")
    assert code == 0
    assert "Left out, of other methods than --method: 12 runs" in output
    assert "1 item from 8 runs in" in output
    assert {result.run.method for result in Store("results")} == {"source", "bn_adapt"}
    code, output, _ = call(*arguments, "--method", "tent")
    assert code == 0
    assert "Left out, of other methods than --method: 8 runs" in output
    assert "1 item from 12 runs in" in output
    assert len(list(Store("results"))) == 12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mian"], "Did you mean 'main'"),
        (["--scale", "large"], "smoke"),
        (["--model", "cifar10"], "family=model"),
        (["--model", "mnist=little:network"], "cifar10"),
        (["--model", "cifar10=lost.safetensors"], "lost.safetensors does not exist; expected a file of weights"),
        (["--estimate", "--from-results"], "leave one of them out"),
        (["--method", "tent", "--from-results"], "nothing is computed"),
        (["--method", "tnet"], "Did you mean 'tent'"),
    ],
)
def test_bad_requests_get_a_message(arguments: list[str], said: str) -> None:
    code, _, wrong = call(*arguments)
    assert code == 2
    assert said in wrong
