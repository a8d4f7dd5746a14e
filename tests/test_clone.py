"""Adapter.clone and Adapter.networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cretta
import textbook


def adapter(method: str, **options: Any) -> cretta.Adapter[Any]:
    buffer = cretta.SourceBuffer(textbook.source_images(20), augment="none")
    return cretta.adapt(textbook.small_net(), method, buffer=buffer, lr=1e-2, **options)


@pytest.mark.parametrize("method", ["tent", "cretta", "tea"])
def test_a_clone_continues_from_the_same_state_and_is_independent(method: str) -> None:
    options = {"sampling_steps": 2, "replay": 30} if method == "tea" else {}
    model, (first, *rest) = adapter(method, guard="rollback", **options), textbook.batches()
    model(first)
    clone = model.clone()
    before = model.state.snapshot()
    expected = [clone(x) for x in rest]
    textbook.assert_bits(model.state.snapshot(), before)
    for x, logits in zip(rest, expected, strict=True):
        assert torch.equal(model(x), logits)


def test_a_clone_has_the_options_of_the_adapter_except_those_that_are_changed() -> None:
    model = adapter("tent", skip=("bn1",), steps=2)
    clone = model.clone(fuse=False, steps=3)
    assert (clone.options.steps, clone.options.fuse, clone.options.lr, clone.skip) == (3, False, 1e-2, ("bn1",))
    with pytest.raises(cretta.OptionError, match="stepz"):
        model.clone(stepz=3)


def test_networks_are_the_adapting_one_and_the_frozen_ones() -> None:
    tent, model = adapter("tent"), adapter("cretta")
    tent(textbook.batches()[0])
    model(textbook.batches()[0])
    assert list(tent.networks()) == [tent.model.module]
    assert len(list(model.networks())) == 2
    assert all(network is not model.net for network in model.networks())
