"""What the documents show must run, and what they list must be what the code says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import cretta
import textbook

ROOT = Path(__file__).parent.parent
ARCHITECTURE = runpy.run_path(str(ROOT / "scripts" / "write_architecture.py"))


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = textbook.batches((8,))[0]
    training_set = TensorDataset(textbook.source_images(60), torch.arange(60) % textbook.CLASSES)
    names = {"net": textbook.small_net(), "training_set": training_set, "x": x}
    examples = blocks("README.md")
    assert len(examples) == 2
    for block in examples:
        exec(block, names)
    assert isinstance(names["logits"], torch.Tensor)
    assert names["logits"].shape == (8, textbook.CLASSES)
    assert (tmp_path / "state.safetensors").is_file()


def test_the_page_of_models_runs_and_names_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"net": textbook.small_net(), "x": textbook.batches((8,))[0]}
    for block in blocks("docs/models.md"):
        exec(block, names)
    assert names["model"](torch.rand(8, 3, 32, 32)).shape == (8, 10)
    assert names["opened"].kind == "shipped"
    page = (ROOT / "docs" / "models.md").read_text()
    kinds = ("shipped", "checkpoint", "pretrained", "python")
    assert [kind for kind in kinds if f"| `{kind}` |" not in page] == []
    assert "open_model" in cretta.models.__all__


def test_the_table_of_methods_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    method_table = runpy.run_path(str(ROOT / "scripts" / "write_method_table.py"))["method_table"]
    assert f"-->\n{method_table()}\n<!-- end of table -->" in page


def test_the_generated_parts_of_the_architecture_are_what_the_code_says() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    edges = ARCHITECTURE["graph"]()
    assert ARCHITECTURE["module_table"]() in page
    assert ARCHITECTURE["drawing"](edges) in page
    assert ARCHITECTURE["import_table"](edges) in page


def test_an_import_cycle_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected no import cycle, got one among \\['a', 'b'\\]"):
        ARCHITECTURE["layers"]({"a": {"b"}, "b": {"a"}, "c": set()})


@pytest.mark.slow
def test_a_batch_passes_through_few_functions_and_the_page_lists_them() -> None:
    stacks = ARCHITECTURE["stacks"]()
    assert stacks in (ROOT / "docs" / "architecture.md").read_text()
    counts = [int(count) for count in re.findall(r"`: (\d+) functions", stacks)]
    assert len(counts) == 3
    assert max(counts) <= 12
