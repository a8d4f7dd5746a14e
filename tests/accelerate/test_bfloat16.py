"""bfloat16 in passes without a gradient: only where the processor has it and it is faster; never for gradients."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta.accelerate import bfloat16, choices
from cretta.accelerate.training import training_candidates
from cretta.models import WideResNet

OPTIONS: dict[str, Any] = {"precision": "bfloat16_no_grad"}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    choices.forget()
    yield
    choices.forget()


def with_bfloat16(monkeypatch: pytest.MonkeyPatch, *, faster: bool) -> None:
    """A processor that has it, and a clock by which it is faster, or is not."""
    monkeypatch.setattr(bfloat16, "processor_flags", lambda: {"avx512_bf16"})
    times = {"float32": 2.0, "bfloat16": 1.0 if faster else 3.0}
    monkeypatch.setattr(choices, "timed", lambda runs: {name: times[name] for name in runs})


class Recorded(nn.Module):
    """A network that records under which precision, and with which gradients, its forward passes run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = textbook.settle(WideResNet(10, 1, 5), textbook.source_images(32).split(8))
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        logits: Tensor = self.inner(x)
        return logits


def recorded(method: str, **options: Any) -> tuple[list[tuple[bool, bool]], list[Tensor], cretta.Adapter[Any]]:
    net = Recorded()
    buffer = cretta.SourceBuffer(textbook.source_images(20), augment="none")
    model = cretta.adapt(net, method, buffer=buffer, **({"fuse": False} | options))
    logits = [model(x) for x in textbook.batches((8, 8))]
    networks = [model.model, *model._frozen.values()]
    return [entry for network in networks for entry in network.module.seen], logits, model  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["source", "bn_adapt", "tent", "cretta"])
def test_passes_without_a_gradient_run_in_bfloat16(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, expected, _ = recorded(method)
    assert not any(half for _, half in plain)
    with_bfloat16(monkeypatch, faster=True)
    seen, logits, model = recorded(method, **OPTIONS)
    assert [half for gradient, half in seen] == [not gradient for gradient, half in seen]
    assert {gradient for gradient, _ in seen} == {gradient for gradient, _ in plain}
    for one, other in zip(logits, expected, strict=True):
        assert one.dtype is torch.float32
        assert torch.equal(one, other) == (method == "tent")  # whose logits are from the pass with the gradient
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.1)
    assert "passes without a gradient in bfloat16 where it is faster" in str(model.backend)


@pytest.mark.parametrize("why", ["not faster", "no instructions"])
def test_it_is_not_used_without_a_gain(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected, _ = recorded("cretta")
    if why == "not faster":
        with_bfloat16(monkeypatch, faster=False)
    else:
        monkeypatch.setattr(bfloat16, "processor_flags", lambda: {"avx2"})
    seen, logits, model = recorded("cretta", **OPTIONS)
    assert not any(half for _, half in seen)
    assert all(torch.equal(one, other) for one, other in zip(logits, expected, strict=True))
    if why == "no instructions":
        assert "because this processor has neither avx512_bf16 nor amx_bf16" in str(model.backend)


def test_timing_does_not_change_what_evolves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16, "processor_flags", lambda: {"amx_bf16"})
    model = cretta.adapt(textbook.small_net(), "source", statistics="moving", **OPTIONS)
    plain = cretta.adapt(textbook.small_net(), "source", statistics="moving")
    for x in textbook.batches((6, 6)):
        before = len(choices.choices())
        torch.testing.assert_close(model(x), plain(x), rtol=0.05, atol=0.05)
        assert len(choices.choices()) == 1 >= before
    timed = choices.choices()[0]
    assert set(timed.milliseconds) == {"float32", "bfloat16"}
    if timed.kernel == "float32":
        textbook.assert_bits(model.state.snapshot(), plain.state.snapshot())


@pytest.mark.parametrize(("code", "limit", "works"), [(0, "", True), (-signal.SIGILL, "", False), (None, "AVX2", True)])
def test_amx_that_is_announced_and_not_executed_is_noticed_in_another_process(
    code: int | None, limit: str, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Mock(return_value=Mock(returncode=code))
    monkeypatch.setattr(bfloat16, "processor_flags", lambda: {"amx_bf16", "avx512_bf16"})
    monkeypatch.setattr("cretta.accelerate.bfloat16.subprocess.run", tried)
    monkeypatch.delenv(bfloat16.LIMIT, raising=False)
    if limit:
        monkeypatch.setenv(bfloat16.LIMIT, limit)
    bfloat16.executes.cache_clear()
    try:
        reason = bfloat16.missing(torch.device("cpu"))
        assert (reason is None) is works
        assert works or "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in str(reason)
        assert ("bfloat16" in training_candidates(nn.Linear(2, 2), torch.device("cpu"))) <= works
        assert tried.call_count == (code is not None)
    finally:
        bfloat16.executes.cache_clear()
