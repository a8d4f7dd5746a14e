from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import tiny
import torch
from PIL import Image
from tiny import BASE, network

import cretta
from cretta import SourceBuffer, sampling
from cretta.bench import BatchRow, Buffer, Domain, Run, RunContext
from cretta.bench.context import data_fingerprint
from cretta.bench.execute import execute, operations_of
from cretta.data import CorruptedDataset, corrupt, embedded, image_folder
from cretta.errors import OptionError, StateError
from cretta.streams import iid


def rows_after(run: Run, context: RunContext, **options: Any) -> tuple[BatchRow, ...]:
    return execute(run, context, **options).rows


def plain(rows: tuple[BatchRow, ...]) -> list[BatchRow]:
    return [dataclasses.replace(row, seconds=0.0) for row in rows]


@pytest.mark.parametrize("method", ["source", "bn_adapt", "tent", "cretta"])
def test_a_run_is_a_plain_loop_over_the_stream(method: str) -> None:
    run = dataclasses.replace(BASE, method=method, seed=3, options=() if method == "source" else (("lr", 0.01),))
    done = execute(run, RunContext())
    rows = done.rows
    assert done.cost["peak_megabytes"] > 0

    test, train = embedded("test"), embedded("train")
    images = torch.from_numpy(corrupt(test.images[:60], "gaussian_noise", 5)).permute(0, 3, 1, 2).float() / 255
    labels = torch.from_numpy(test.labels[:60])
    buffer = cretta.SourceBuffer.sample(train, size=40, seed=3)
    options: dict[str, Any] = dict(run.options)
    model = cretta.adapt(network(), method, buffer=buffer, seed=3, **options)
    for row, batch in zip(rows, iid(60, 20, seed=3), strict=True):
        index = torch.from_numpy(batch.indices)
        logits = model(images[index])
        assert row.images == 20
        assert row.right == int((logits.argmax(1) == labels[index]).sum())
        assert row.energy == pytest.approx(-float(logits.logsumexp(1).mean()), rel=1e-5)
        assert row.confidence == pytest.approx(float(logits.softmax(1).amax(1).sum()), rel=1e-5)
        assert row.loss == model.last.loss
        assert row.weight == model.last.weight
        assert row.source_energy == model.last.source_energy
        assert row.adapted == model.last.adapted
        assert row.domain == "gaussian_noise/5"
    assert (method == "cretta") == (rows[0].weight is not None)


@pytest.mark.slow
def test_the_same_run_gives_the_same_rows_whatever_ran_before() -> None:
    context = RunContext()
    first = rows_after(BASE, context)
    for method in ("tent", "tea"):
        execute(dataclasses.replace(BASE, method=method, options=()), context)
    operations_of(BASE, context)
    again = rows_after(BASE, context)
    fresh = rows_after(BASE, RunContext())
    assert plain(first) == plain(again) == plain(fresh)
    other = rows_after(dataclasses.replace(BASE, seed=1), context)
    assert plain(first) != plain(other)


def test_a_gradual_stream_returns_to_the_source_frozen() -> None:
    run = dataclasses.replace(
        BASE,
        method="tent",
        options=(("lr", 0.05),),
        stream="gradual",
        domains=Domain.parse_all("clean", "fog/1", "fog/5", "clean"),
        images=20,
    )
    rows = rows_after(run, RunContext())
    assert [row.domain for row in rows] == ["clean", "fog/1", "fog/5", "clean again"]
    assert [row.adapted for row in rows] == [True, True, True, False]
    frozen = dataclasses.replace(run, domains=Domain.parse_all("clean", "fog/1", "fog/5", "clean", "clean"))
    longer = rows_after(frozen, RunContext())
    assert longer[3].adapted  # only the last is frozen


def test_mixed_batches_take_every_image_from_its_own_domain() -> None:
    run = dataclasses.replace(
        BASE, method="source", stream="mixed", domains=Domain.parse_all("fog/5", "contrast/5"), images=30
    )
    rows = rows_after(run, RunContext())
    assert sum(row.images for row in rows) == 60
    apart = [
        rows_after(dataclasses.replace(run, stream="iid", domains=(domain,)), RunContext()) for domain in run.domains
    ]
    assert sum(row.right for row in rows) == sum(row.right for part in apart for row in part)
    assert sum(row.confidence for row in rows) == pytest.approx(sum(row.confidence for part in apart for row in part))


def test_buffers_follow_their_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(side_effect=sampling.confidence)
    monkeypatch.setattr("cretta.bench.context.confidence", asked)
    context = RunContext()
    whole = context.buffer(BASE)
    assert whole is not None
    assert len(whole) == 40
    assert context.buffer(BASE) is whole
    share = context.buffer(dataclasses.replace(BASE, buffer=Buffer(size=0.02)))
    assert share is not None
    assert len(share) == 20
    confident = context.buffer(dataclasses.replace(BASE, buffer=Buffer(size=40, select="confident")))
    assert confident is not None
    assert confident.fingerprint != whole.fingerprint
    uncertain = context.buffer(dataclasses.replace(BASE, buffer=Buffer(size=40, select="uncertain")))
    assert uncertain is not None
    for buffer, select in ((confident, "confident"), (uncertain, "uncertain")):
        drawn = SourceBuffer.sample(embedded("train"), 40, select, model=context.model(BASE.model))
        assert buffer.fingerprint == drawn.fingerprint
    assert asked.call_count == 1  # the network has seen all training images once
    assert context.buffer(dataclasses.replace(BASE, method="tent")) is None
    assert context.buffer(BASE.with_options(source="target")) is None


def test_large_domains_are_read_by_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = rows_after(BASE, RunContext())
    monkeypatch.setattr("cretta.bench.context.CACHED_BYTES", 1)
    read = rows_after(BASE, RunContext())
    assert plain(cached) == plain(read)


def test_costs_are_measured_once_for_runs_that_cost_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    context = RunContext()
    first = operations_of(BASE, context)
    assert first["gflops"] > 0
    assert operations_of(dataclasses.replace(BASE, seed=4, domains=Domain.parse_all("fog/5")), context) is first
    assert operations_of(dataclasses.replace(BASE, method="tea"), context)["gflops"] > 4 * first["gflops"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": "cifar"}, "cifar10"),
        ({"domains": Domain.parse_all("fogg/5")}, "fog"),
        ({"domains": Domain.parse_all("fog")}, "severity"),
        ({"method": "tente"}, "tent"),
        ({"options": (("leaning", 1.0),)}, "lr"),
        ({"options": (("lr", -1.0),)}, "lr=-1.0"),
        ({"preset": "mars"}, "mars"),
        ({"model": "nothing"}, "nothing"),
    ],
)
def test_errors_are_raised_before_any_work(change: dict[str, Any], said: str) -> None:
    with pytest.raises((OptionError, StateError), match=said):
        RunContext().key(dataclasses.replace(BASE, **change))


def test_shifted_images_are_the_corrupted_test_images() -> None:
    run = Run(data="embedded", domains=Domain.parse_all("fog/5"), model="tiny:network", images=10)
    domain = RunContext().domain(run, Domain("fog", 5))
    expected = CorruptedDataset(embedded("test"), "fog", 5).read(range(10))
    assert torch.equal(
        (domain.batch(torch.arange(10), torch.device("cpu")) * 255).round().byte().permute(0, 2, 3, 1),
        torch.from_numpy(expected),
    )


def test_fingerprints_notice_what_changed(tmp_path: Path) -> None:
    whole = embedded("test")
    first = data_fingerprint(whole)
    changed = whole.images.copy()
    changed[777, 3, 3] ^= 1
    assert data_fingerprint(dataclasses.replace(whole, images=changed)) != first
    assert data_fingerprint(dataclasses.replace(whole)) == first
    kinds = {
        data_fingerprint(CorruptedDataset(whole, "fog", 5)),
        data_fingerprint(CorruptedDataset(whole, "fog", 4)),
        first,
    }
    assert len(kinds) == 3
    for number in range(3):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(whole.images[number]).save(tmp_path / "a" / f"{number}.png")
    files = data_fingerprint(image_folder(tmp_path))
    Image.fromarray(whole.images[1] * 0).save(tmp_path / "a" / "1.png")
    assert data_fingerprint(image_folder(tmp_path)) != files


def test_memory_is_that_of_a_batch_that_the_model_adapts_to() -> None:
    every_batch = dataclasses.replace(BASE, method="tent", images=60, batch_size=10)
    seldom, too_seldom = every_batch.with_options(adapt_every=3), every_batch.with_options(adapt_every=6)

    def peak_of(run: Run) -> float:
        return execute(run, RunContext()).cost["peak_megabytes"]

    peak = peak_of(every_batch)
    for run in (seldom, too_seldom):  # which adapts to the first batch only
        assert peak_of(run) == pytest.approx(peak, rel=0.01)
    assert peak_of(dataclasses.replace(every_batch, method="bn_adapt")) < 0.9 * peak


def test_foreign_images_are_drawn_for_each_benchmark_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the size of the run's own images."""
    context = RunContext()
    monkeypatch.setattr(context, "_sampled", lambda *inputs: SourceBuffer(torch.rand(2, 3, 4, 4)))
    foreign = dataclasses.replace(BASE, method="cretta", buffer=Buffer(data="imagenet", size=40))
    buffers = [context.buffer(dataclasses.replace(foreign, data=data)) for data in ("cifar10", "pacs", "cifar10")]
    assert buffers[0] is buffers[2] is not buffers[1]


def test_runs_without_source_images_do_not_ask_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run, context = dataclasses.replace(BASE, method="cretta", options=(("source", "target"),)), RunContext()

    def absent(*_: object) -> None:
        raise FileNotFoundError("training images")

    monkeypatch.setattr(RunContext, "_source", absent)
    assert "source" not in context.input_fingerprints(run)
    assert context.buffer(run) is None
    with pytest.raises(FileNotFoundError):
        context.input_fingerprints(dataclasses.replace(run, options=()))


def test_a_preset_with_other_options_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run, context = dataclasses.replace(BASE, method="cretta", preset="fast"), RunContext()
    first = run.key(context.input_fingerprints(run))
    assert run.key(context.input_fingerprints(run)) == first
    monkeypatch.setitem(cretta.CreTTA.presets, "fast", {"source_fraction": 0.5, "predict": "before"})
    assert run.key(context.input_fingerprints(run)) != first


def test_a_network_that_computes_otherwise_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = RunContext().input_fingerprints(BASE)["model"]
    made = network()
    assert isinstance(made, tiny.Network)
    made.layers[2] = torch.nn.Tanh()
    monkeypatch.setattr(tiny, "network", lambda: made)
    assert RunContext().input_fingerprints(BASE)["model"] != first
