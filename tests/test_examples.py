"""Every example is executed, in a folder of its own."""

from __future__ import annotations

import importlib
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cretta
import textbook

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def execute(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError):
        return False
    return True


def test_the_list_of_examples_is_complete() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert [name for name in names if f"]({name}" not in listed] == []


def test_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    names = execute("own_model.py")
    assert names["model"].last.adapted
    assert capsys.readouterr().out.count("loss ") == 5
    code = (EXAMPLES / "own_model.py").read_text().split('"""', 2)[2]
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 10


@pytest.mark.slow
def test_hugging_face() -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'cretta[hf]'")
    names = execute("hugging_face.py")
    assert names["model"].last.adapted
    restored = transformers.ViTForImageClassification.from_pretrained("adapted-vit").eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.allclose(restored(x).logits, names["plain"](x).logits, atol=1e-6)
    assert not torch.allclose(restored(x).logits, names["net"].eval()(x).logits, atol=1e-6)


@pytest.mark.skipif(
    not (importable("timm") or importable("torchvision")), reason="neither timm nor torchvision imports"
)
@pytest.mark.slow
def test_timm_or_torchvision() -> None:
    assert execute("timm_or_torchvision.py")["model"].last.adapted


@pytest.mark.slow
def test_a_camera(capsys: pytest.CaptureFixture[str]) -> None:
    names = execute("camera.py")
    assert names["correct"] > 15, "by chance it would be 3"
    assert "of 30 frames" in capsys.readouterr().out
    again = names["model"].clone()
    again.restore("camera.safetensors")
    x = torch.rand(1, 3, 32, 32)
    assert torch.equal(again.predict(x), names["model"].predict(x))


@pytest.mark.slow
def test_an_evaluation_loop(capsys: pytest.CaptureFixture[str]) -> None:
    names = execute("evaluation_loop.py")
    plain, adapted = capsys.readouterr().out.splitlines()
    assert plain.startswith("as it is:")
    assert adapted.startswith("adapted:")
    before, _ = names["evaluate"](cretta.models.load("wrn-40-2-cifar10"), names["loader"])
    assert names["accuracy"] > before + 0.1


@pytest.mark.slow
def test_the_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells, as jupytext reads them, one after another in one namespace, as a kernel runs them."""
    import matplotlib as mpl

    jupytext = pytest.importorskip("jupytext", reason="pip install jupytext")
    mpl.use("agg")
    notebook = jupytext.read(EXAMPLES / "compare_methods.py")
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == 4
    assert sum(cell.cell_type == "markdown" for cell in notebook.cells) == 4
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        exec(cell.replace("IMAGES = 120", "IMAGES = 40").replace("batch_size=40", "batch_size=20"), names)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(names["METHODS"])
    assert Path("comparison.png").stat().st_size > 5000


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of examples/method_package, as pip installs it: importable, with the entry point it declares."""
    package = EXAMPLES / "method_package"
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    facts = tmp_path / "site" / "gentle_tta-0.1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["cretta.methods"].items()
    (facts / "entry_points.txt").write_text("\n".join(["[cretta.methods]", *(f"{k} = {v}" for k, v in points)]))
    monkeypatch.syspath_prepend(str(package / "src"))
    monkeypatch.syspath_prepend(str(facts.parent))
    yield
    sys.modules.pop("gentle_tta", None)


@pytest.mark.usefixtures("installed")
def test_a_method_of_another_package() -> None:
    net, x = textbook.small_net(), textbook.batches((8,))[0]
    model = cretta.adapt(net, "gentle", lr=1e-2)
    before = model.predict(x)
    assert torch.equal(model(x), before)
    entropies = cretta.functional.entropy(before) / torch.tensor(before.shape[1]).log()
    selected = entropies[(entropies > 0.1) & (entropies < 0.7)]
    assert 0 < len(selected) < len(x), "some are selected, some are not"
    assert model.last.adapted
    assert model.last.loss == pytest.approx(float(selected.mean() * torch.tensor(before.shape[1]).log()), rel=1e-5)
    assert "gentle" in cretta.methods.names()
