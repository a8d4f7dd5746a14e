from __future__ import annotations

import json
import math
import pickle
import sys
import types
from typing import Any

import pytest
import torch

import cretta
import textbook
from cretta.functional import energy
from cretta.monitor import Monitor, SourceReference, callbacks, estimate_accuracy


def labeled_buffer(count: int = 40) -> cretta.SourceBuffer:
    images = textbook.source_images(count)
    labels = textbook.small_net()(images).argmax(-1)
    labels[::4] = (labels[::4] + 1) % textbook.CLASSES
    return cretta.SourceBuffer(images, labels, augment="none")


def test_on_step_gets_every_record_until_it_is_removed() -> None:
    model = cretta.adapt(textbook.small_net(), "tent")
    records: list[cretta.Record] = []
    remove = model.on_step(records.append)
    batches = textbook.batches((8, 8, 8))
    logits = [model(batches[0]), model(batches[1])]
    remove()
    model(batches[2])
    assert [record.size for record in records] == [8, 8]
    for record, expected in zip(records, logits, strict=True):
        assert record.logits is not None
        assert torch.equal(record.logits, expected)
        assert record.source_logits is None


def test_a_callback_may_use_the_adapter_and_is_not_copied() -> None:
    model = cretta.adapt(textbook.small_net(), "tent")
    x = textbook.batches((8,))[0]
    predicted: list[torch.Tensor] = []
    model.on_step(lambda record: predicted.append(model.predict(x)))
    model(x)
    assert len(predicted) == 1
    pickle.loads(pickle.dumps(model))(x)
    assert len(predicted) == 1


def test_a_batch_that_fails_calls_nothing() -> None:
    model = cretta.adapt(textbook.small_net(), "tent")
    records: list[cretta.Record] = []
    model.on_step(records.append)
    with pytest.raises(cretta.BatchError):
        model(torch.full((4, *textbook.source_images(1).shape[1:]), math.nan))
    assert records == []


def test_cretta_records_the_source_models_logits() -> None:
    net = textbook.small_net()
    model = cretta.adapt(net, "cretta", buffer=labeled_buffer())
    for x in textbook.batches((8, 80)):
        model(x)
        assert model.last.compared is None
        assert model.last.source_logits is not None
        torch.testing.assert_close(model.last.source_logits, net(x).detach(), rtol=1e-4, atol=1e-5)


def test_monitor_of_an_adapter_summarizes_by_slow_formulas() -> None:
    net, buffer = textbook.small_net(), labeled_buffer()
    assert buffer.labels is not None
    model = cretta.adapt(net, "cretta", buffer=buffer, lr=0.05)
    monitor = Monitor(model, window=20)
    logits = [model(x) for x in textbook.batches((8, 8, 8, 8))]
    summary = monitor.summary()
    assert (summary.images, summary.batches, summary.adapted, summary.skipped, summary.alarms) == (32, 4, 4, 0, 0)
    assert summary.window == 24  # complete batches that cover the window
    recent = torch.cat(logits[1:])
    frozen = torch.cat([net(x).detach() for x in textbook.batches((8, 8, 8, 8))])
    assert summary.confidence == pytest.approx(float(recent.softmax(-1).amax(-1).mean()), rel=1e-5)
    mix = recent.softmax(-1).mean(0)
    assert summary.classes == pytest.approx(float(torch.exp(-(mix * mix.log()).sum())), rel=1e-5)
    assert summary.energy[0] == pytest.approx(float(energy(recent).mean()), rel=1e-5)
    assert summary.agreement == pytest.approx(float((recent.argmax(-1) == frozen[8:].argmax(-1)).float().mean()))
    source_logits = net(textbook.source_images(40)).detach()
    for name, value in summary.estimates.items():
        assert value == pytest.approx(estimate_accuracy(recent, source_logits, buffer.labels, method=name), abs=0.06)
    for name, value in summary.source_estimates.items():
        expected = estimate_accuracy(frozen[8:], source_logits, buffer.labels, method=name)
        assert value == pytest.approx(expected, abs=0.06)
    difference = (energy(recent) - energy(frozen[8:])).mean() / energy(frozen[8:]).std()
    assert summary.adaptation_drift == pytest.approx(float(difference), rel=1e-3)
    ranks = [float((energy(source_logits) < e).float().mean()) for e in energy(frozen[8:])]  # of the window
    assert summary.input_drift == pytest.approx(sum(ranks) / len(ranks), abs=0.02)
    assert summary.source_accuracy == pytest.approx(0.75)
    assert summary.buffer_accuracy is None
    json.dumps(summary.as_dict())


def test_refresh_measures_forgetting_and_the_temperature_under_the_adapted_model() -> None:
    net, buffer = textbook.small_net(), labeled_buffer()
    model = cretta.adapt(net, "cretta", buffer=buffer, lr=0.5)
    monitor = Monitor(model, refresh=2)
    for x in textbook.batches((8, 8)):
        model(x)
    labeled = model.source_samples(500)
    assert labeled is not None
    logits, labels = labeled
    summary = monitor.summary()
    assert summary.buffer_accuracy == pytest.approx(float((logits.argmax(-1) == labels).float().mean()))
    assert summary.buffer_accuracy != summary.source_accuracy
    assert summary.temperature == pytest.approx(SourceReference.of(logits, labels).temperature)


def test_monitor_without_labels_or_adapter() -> None:
    model = cretta.adapt(textbook.small_net(), "tent")
    monitor = Monitor(model)
    assert math.isnan(monitor.summary().confidence)
    model(textbook.batches((8,))[0])
    summary = monitor.summary()
    assert (summary.estimates, summary.agreement, summary.input_drift, summary.cause) == ({}, None, None, "")
    alone = Monitor()
    alone.update(torch.tensor([[5.0, 0.0], [0.0, 5.0]]), torch.tensor([[5.0, 0.0], [5.0, 0.0]]))
    assert alone.summary().agreement == 0.5
    assert alone.summary().images == 2


def test_the_cause_is_the_input_or_the_adaptation() -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(400, 5, generator=generator)
    reference = SourceReference.of(source, source.argmax(-1))
    for shift, own, expected in ((0.0, 0.0, ""), (3.0, 0.0, "input"), (0.0, 3.0, "adaptation"), (3.0, 3.0, "both")):
        monitor = Monitor(source=reference)
        for _ in range(10):
            logits = torch.randn(50, 5, generator=generator) + shift
            monitor.update(logits + own, logits)
        assert monitor.summary().cause == expected


# Callbacks for other tools


def record() -> cretta.Record:
    return cretta.Record(4, torch.tensor(True), False, guard="alarm", values={"energy": torch.tensor(-2.0)})


EXPECTED = {"size": 4.0, "adapted": 1.0, "skipped": 0.0, "alarm": 1.0, "energy": -2.0}


def test_tensorboard_wandb_and_mlflow() -> None:
    calls: list[Any] = []
    tool = types.SimpleNamespace(
        add_scalar=lambda name, value, step: calls.append((name, value, step)),
        log=calls.append,
        log_metrics=lambda values, step: calls.append((values, step)),
    )
    write = callbacks.tensorboard(tool)
    write(record())
    write(record())
    assert calls == [(f"cretta/{name}", value, step) for step in (0, 1) for name, value in EXPECTED.items()]
    calls.clear()
    callbacks.wandb(tool, prefix="a")(record())
    assert calls == [{f"a/{name}": value for name, value in EXPECTED.items()}]
    calls.clear()
    write = callbacks.mlflow(tool)
    write(record())
    write(record())
    assert calls == [({f"cretta.{name}": value for name, value in EXPECTED.items()}, step) for step in (0, 1)]


def test_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, float] = {}

    class Gauge:
        def __init__(self, name: str, text: str, registry: object) -> None:
            assert registry == "registry"
            self.name = name

        def set(self, value: float) -> None:
            values[self.name] = value

    monkeypatch.setitem(sys.modules, "prometheus_client", types.SimpleNamespace(Gauge=Gauge, REGISTRY=None))
    write = callbacks.prometheus("registry")
    write(record())
    write(record())
    assert values == {f"cretta_{name}": value for name, value in EXPECTED.items()}
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(cretta.OptionError, match="pip install prometheus-client"):
        callbacks.prometheus()
