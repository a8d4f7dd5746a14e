from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import cretta
import textbook
from cretta.advise import Advice, _batches, advise
from cretta.cli import app


def labeled_buffer(net: nn.Module) -> cretta.SourceBuffer:
    images = textbook.source_images(200)
    labels = net(images).argmax(-1)
    labels[::4] = (labels[::4] + 1) % textbook.CLASSES
    return cretta.SourceBuffer(images, labels, augment="none")


def about(advice: list[Advice], name: str) -> Advice:
    return next(item for item in advice if item.about == name)


def test_images_like_the_buffers_need_no_adaptation() -> None:
    net = textbook.small_net()
    advice = advise(net, textbook.source_images(200, seed=9), labeled_buffer(net))
    assert "--method source" in about(advice, "shift").do
    assert "2 BatchNorm2d" in about(advice, "model").seen
    assert [item.about for item in advice].count("guard") == 0


def test_shifted_images_are_advised_to_adapt() -> None:
    net = textbook.small_net()
    shifted = 0.2 * textbook.source_images(400, seed=9)  # so little contrast that energies are high
    advice = advise(net, shifted, labeled_buffer(net))
    assert "--method cretta" in about(advice, "shift").do
    assert "--guard" in about(advice, "guard").do
    unlabeled = advise(net, shifted)
    assert "--method tent" in about(unlabeled, "shift").do
    assert "give source images" in about(unlabeled, "buffer").do


def test_order_and_size() -> None:
    certain = 50 * torch.eye(10)
    by_class, mixed = certain.repeat_interleave(20, 0), certain.repeat(20, 1)
    assert "shuffle" in _batches(by_class, 20).do
    assert "auto" in _batches(mixed, 20).do
    assert "good" in _batches(mixed, 100).do
    assert "training" in _batches(mixed, 1).do


def test_more_images_per_batch_than_there_are() -> None:
    advice = advise(textbook.small_net(), textbook.source_images(6))
    assert about(advice, "images").seen == "6 images are few to judge by"
    assert about(advice, "batches").seen == "6 images are few"
    assert "images" not in [item.about for item in advise(textbook.small_net(), textbook.source_images(50))]


def test_the_cost_of_the_guard_is_that_of_methods_that_learn() -> None:
    net = textbook.small_net()
    source = advise(net, textbook.source_images(200, seed=9), labeled_buffer(net))
    assert about(source, "cost").do.endswith("images/s")
    assert about(advise(net, textbook.source_images(200)), "cost").do.endswith("; the guard adds up to a quarter")


def test_labels_in_another_order() -> None:
    net, images = textbook.small_net(), textbook.source_images(200, seed=9)
    buffer = labeled_buffer(net)
    assert buffer.labels is not None
    other = cretta.SourceBuffer(buffer.images, (buffer.labels + 2) % textbook.CLASSES, augment="none")
    advice = advise(net, images, other)
    assert about(advice, "labels") == Advice(
        "labels",
        "the source model answers 0 % of 200 labeled source images correctly, not better than chance: probably the "
        f"labels are numbered in another order than its {textbook.CLASSES} classes",
        "list the classes in the model's order in classes.txt and build the buffer again",
    )
    assert about(advice, "shift").seen.startswith("unknown")
    assert "labels" not in [item.about for item in advise(net, images, buffer)]


def test_an_underconfident_network() -> None:
    net = textbook.small_net()
    buffer = labeled_buffer(net)
    net.fc.weight.data.mul_(0.02)
    net.fc.bias.data.mul_(0.02)
    assert "calibrate=auto" in about(advise(net, textbook.source_images(20), buffer), "calibration").do


def test_a_network_without_normalization() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(textbook.source_images(1).numel(), 3))
    advice = advise(net, textbook.source_images(20))
    assert "only --method source" in about(advice, "model").do
    assert "batches" not in [item.about for item in advice]  # whose statistics this network does not use


def test_a_buffer_of_another_size_and_without_labels() -> None:
    net = textbook.small_net()
    buffer = cretta.SourceBuffer(nn.functional.interpolate(textbook.source_images(1), scale_factor=2), augment="none")
    seen = [item.seen for item in advise(net, textbook.source_images(20), buffer) if item.about == "buffer"]
    side = textbook.SIDE
    assert seen == [f"images of shape {(3, 2 * side, 2 * side)}, not {(3, side, side)}", "1 image without labels"]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "images.npy", cretta.data.embedded("test").images[:12])
    monkeypatch.chdir(tmp_path)
    cretta.SourceBuffer(cretta.data.embedded("train").images[:20], cretta.data.embedded("train").labels[:20]).save(
        "source.safetensors"
    )
    result = CliRunner().invoke(
        app, ["check", "wrn-40-2-cifar10", "images.npy", "--buffer", "source.safetensors", "--batch-size", "4"]
    )
    assert result.exit_code == 0, result.output
    for word in ("BatchNorm2d", "estimated accuracy", "images/s", "docs/monitoring.md"):
        assert word in " ".join(result.output.split())
