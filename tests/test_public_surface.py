"""Every name of the public surface in the design, called as it is written there."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path
from typing import Any

import mypy.api
import numpy as np
import pytest
import torch
from torch import nn

import cretta
import textbook

ROOT = Path(__file__).parent.parent


def test_functions_and_buffers(tmp_path: Path) -> None:
    assert cretta.energy(torch.zeros(2, 3), temperature=1.0).shape == (2,)
    dataset = [(image, label % 3) for label, image in enumerate(textbook.source_images(30))]
    buffer = cretta.SourceBuffer.sample(dataset, size=0.1, select="random", seed=0)
    assert len(buffer) == 3
    buffer = cretta.SourceBuffer(textbook.source_images(10), labels=None, augment="rotate")
    buffer.save(tmp_path / "source.safetensors")
    assert torch.equal(cretta.SourceBuffer.load(tmp_path / "source.safetensors").images, buffer.images)
    images = np.zeros((2, 32, 32, 3), np.uint8)
    assert cretta.data.corrupt(images, "fog", severity=5, seed=0).shape == images.shape
    error = cretta.metrics.calibration_error(torch.tensor([[0.8, 0.2]]), torch.tensor([0]), bins=10)
    assert float(error) == pytest.approx(0.2)


def test_the_life_of_an_adapter(tmp_path: Path) -> None:
    net, x = textbook.small_net(), textbook.batches((8,))[0]
    buffer = cretta.SourceBuffer(textbook.source_images(10))
    model = cretta.adapt(net, "cretta", buffer=buffer, beta=1.0, lr=1e-3)
    same = cretta.CreTTA(net, buffer, beta=1.0, lr=1e-3)
    logits = model(x)
    assert torch.equal(logits, same(x))
    assert torch.equal(model.predict(x), logits)
    model.save(tmp_path / "state.safetensors")
    model.reset()
    model.restore(tmp_path / "state.safetensors")
    assert torch.equal(model.predict(x), logits)
    same.load_state_dict(model.state_dict())
    assert model.to("cpu").device.type == "cpu"
    last = model.last
    assert None not in (last.loss, last.energy, last.weight)
    assert (last.skipped, last.reason) == (False, "")
    assert model.backend.name in ("plain", "rewritten", "kernels")
    assert type(model.export()) is type(net)
    preset = cretta.adapt(net, "cretta", buffer=buffer, preset="cifar100", lr=1e-3)
    assert vars(preset.options).items() >= {"beta": 2.0, "augment": "cifar100", "lr": 1e-3}.items()
    assert cretta.methods.get("tent").name == "tent"
    assert set(cretta.methods.names()) >= {"cretta", "tent", "source"}
    assert issubclass(cretta.monitor.Guard, cretta.Guard)
    assert issubclass(cretta.Adapter, nn.Module)


def test_signatures() -> None:
    def shown(function: Any) -> list[str]:
        return [
            p.name + ("" if p.default is p.empty else f"={p.default!r}")
            for p in inspect.signature(function).parameters.values()
        ]

    assert shown(cretta.energy) == ["logits", "temperature=1.0"]
    assert shown(cretta.adapt) == ["net", "method='cretta'", "buffer=None", "preset=None", "options"]
    assert shown(cretta.SourceBuffer)[:3] == ["images", "labels=None", "augment='rotate'"]
    assert shown(cretta.SourceBuffer.sample)[:4] == ["dataset", "size=0.1", "select='random'", "seed=0"]
    assert shown(cretta.CreTTA)[:4] == ["net", "buffer=None", "preset=None", "lr=0.001"]
    assert shown(cretta.methods.names) == []
    assert shown(cretta.data.corrupt)[:4] == ["images", "name", "severity=5", "seed=0"]
    assert shown(cretta.metrics.calibration_error)[:3] == ["probabilities", "labels", "bins=10"]
    assert shown(cretta.models.load)[:1] == ["name"]
    assert shown(cretta.Adapter.export) == ["self", "x=None"]
    assert set(cretta.__all__) <= set(dir(cretta))


def test_the_generated_signature_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_method_table.py"))
    assert script["SIGNATURES"].read_text() == script["signatures"](), "run scripts/write_method_table.py"


@pytest.mark.slow
def test_type_checkers_know_the_options(tmp_path: Path) -> None:
    code = tmp_path / "user.py"
    code.write_text(
        "import cretta\n"
        "from torch import nn\n"
        "\n"
        "def use(net: nn.Module, buffer: cretta.SourceBuffer) -> None:\n"
        "    model = cretta.CreTTA(net, buffer, preset='cifar10', beta=2.0, guard='warn')\n"
        "    reveal_type(model.options.beta)\n"
        "    cretta.CreTTA(net, buffer, beta='x')\n"
        "    cretta.CreTTA(net, buffer, bet=1.0)\n"
    )
    report, _, status = mypy.api.run(["--config-file", str(ROOT / "pyproject.toml"), str(code)])
    assert status == 1
    assert 'user.py:6: note: Revealed type is "' in report
    assert 'user.py:7: error: Argument "beta" to "CreTTA" has incompatible type "str"; expected "float"' in report
    assert 'user.py:8: error: Unexpected keyword argument "bet" for "CreTTA"; did you mean "beta"?' in report
    assert "Found 2 errors in 1 file" in report
