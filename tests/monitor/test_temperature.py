"""Calibration on the fly: the temperature of an adapter's logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import cretta
import textbook
from cretta.monitor import fit_temperature
from cretta.monitor.calibration import mixed_pairs


def labeled_buffer(factor: float) -> tuple[textbook.SmallNet, cretta.SourceBuffer]:
    """A network whose confidence is off by ``factor``, and images with labels drawn from its right probabilities."""
    net, images = textbook.small_net(), textbook.source_images(60)
    generator = torch.Generator().manual_seed(0)
    labels = torch.multinomial(net(images).detach().softmax(-1), 1, generator=generator).squeeze(1)
    net.fc.weight.data.mul_(factor)
    net.fc.bias.data.mul_(factor)
    return net, cretta.SourceBuffer(images, labels, augment="none")


def run(calibrate: str | None, factor: float, **options: Any) -> tuple[list[Tensor], list[float], cretta.Adapter]:
    net, buffer = labeled_buffer(factor)
    model = cretta.adapt(net, "tent", buffer=buffer, calibrate=calibrate, calibrate_every=2, lr=1e-2, **options)
    logits, temperatures = [], []
    for x in textbook.batches((8, 8, 8, 8)):
        logits.append(model(x))
        temperatures.append(float(model.memory["calibration.temperature"]) if calibrate else 1.0)
    return logits, temperatures, model


@pytest.mark.parametrize("calibrate", ["source", "pseudocal", "auto"])
@pytest.mark.parametrize("factor", [0.2, 4.0])
def test_logits_are_divided_and_nothing_else_changes(calibrate: str, factor: float) -> None:
    plain, _, model = run(None, factor)
    calibrated, temperatures, other = run(calibrate, factor)
    for one, two, temperature in zip(plain, calibrated, temperatures, strict=True):
        torch.testing.assert_close(two, one / temperature)
    assert temperatures[0] == temperatures[1]
    assert temperatures[2] == temperatures[3]
    if calibrate == "source":
        assert (temperatures[0] < 0.8) == (factor < 1)
        assert temperatures[0] != temperatures[2]
    if calibrate == "auto":
        assert (temperatures[0] < 0.8) == (factor < 1)
        assert factor < 1 or temperatures == [1.0] * 4
    for name, value in model.state.snapshot().items():
        assert torch.equal(value, other.state.snapshot()[name]), name


@pytest.mark.parametrize("factor", [0.2, 1.0, 4.0])
def test_auto_is_the_weaker_of_both_temperatures_below_1(factor: float) -> None:
    first = {kind: run(kind, factor)[1][0] for kind in ("source", "pseudocal", "auto")}
    assert first["auto"] == min(1.0, max(first["source"], first["pseudocal"]))


def test_auto_does_nothing_where_only_the_buffer_looks_underconfident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cretta.components.Temperature._of_pairs", lambda *_: 1.4)
    assert run("source", 0.2)[1][0] < 0.8
    assert run("auto", 0.2)[1] == [1.0] * 4


def test_the_temperature_is_that_of_the_buffer_under_the_adapted_model() -> None:
    net, buffer = labeled_buffer(0.3)
    model = cretta.adapt(net, "tent", buffer=buffer, calibrate="source", lr=1e-2)
    x = textbook.batches((8,))[0]
    model(x)
    labeled = model.source_samples(200)
    assert labeled is not None
    assert model.last["temperature"] == pytest.approx(fit_temperature(*labeled))
    plain = model.clone(calibrate=None)
    temperature = model.last["temperature"]
    assert temperature is not None
    torch.testing.assert_close(model.predict(x), plain.predict(x) / temperature)


def test_the_temperature_survives_saving(tmp_path: Path) -> None:
    net, buffer = labeled_buffer(0.3)
    options: dict[str, Any] = {"buffer": buffer, "calibrate": "source", "calibrate_every": 3, "lr": 1e-2}
    model, other = (cretta.adapt(net, "tent", **options) for _ in range(2))
    batches = textbook.batches((8, 8, 8, 8))
    for x in batches[:2]:
        model(x)
    model.save(tmp_path / "state.safetensors")
    other.restore(tmp_path / "state.safetensors")
    for x in batches[2:]:
        assert torch.equal(model(x), other(x))


def test_mixed_pairs_by_hand() -> None:
    x = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    mixed, labels = mixed_pairs(x, torch.tensor([0, 1, 0, 1]))
    # By class: samples 0, 2, 1, 3; each with the one two places before.
    assert mixed.squeeze(1).tolist() == pytest.approx(
        [0.65 * 1 + 0.35 * 2, 0.65 * 3 + 0.35 * 4, 0.65 * 2 + 0.35 * 1, 0.65 * 4 + 0.35 * 3]
    )
    assert labels.tolist() == [0, 0, 1, 1]
    assert len(mixed_pairs(x, torch.zeros(4, dtype=torch.long))[1]) == 0


def test_one_class_leaves_the_temperature_as_it_was() -> None:
    net, _ = labeled_buffer(1.0)
    model = cretta.adapt(net, "tent", calibrate="pseudocal", statistics="running")
    model(textbook.batches((1,))[0])
    assert model.last["temperature"] == 1.0


def test_labels_are_required_where_they_are_used() -> None:
    net, _ = labeled_buffer(1.0)
    unlabeled = cretta.SourceBuffer(textbook.source_images(8), augment="none")
    for wrong in (None, unlabeled):
        with pytest.raises(cretta.BufferRequired, match=r"calibrate='source' needs labeled.*calibrate='pseudocal'"):
            cretta.adapt(net, "tent", buffer=wrong, calibrate="source")
    model = cretta.adapt(net, "tent", buffer=unlabeled, calibrate="auto")
    model(textbook.batches((8,))[0])
    assert model.last["temperature"] == 1.0
