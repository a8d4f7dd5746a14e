"""The compiled kernels against PyTorch in double precision: values, gradients, rounding, threads, when they serve."""

from __future__ import annotations

import copy
import ctypes
import gc
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cretta
import textbook
from cretta import frugal, native
from cretta.models import WideResNet

needs_kernels = pytest.mark.skipif(native.KERNELS is None, reason=f"no kernels here: {native.MISSING}")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.randn(*shape).contiguous(memory_format=torch.channels_last)


def layer_of(inputs: int, outputs: int, bias: bool = False) -> nn.Conv2d:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias).requires_grad_(False)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all kernels as they are run."""
    made: list[str] = []
    run = native.Kernels.call

    def call(self: native.Kernels, name: str, *arguments: Any, label: str | None = None) -> None:
        made.append(label or name)
        run(self, name, *arguments, label=label)

    monkeypatch.setattr(native.Kernels, "call", call)
    return made


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


# Convolutions.

SHAPES = [
    (2, 16, 16, 8, 8),
    (3, 16, 32, 7, 5),
    (1, 32, 16, 1, 1),
    (1, 16, 16, 1, 6),
    (5, 48, 64, 4, 9),
    (30, 16, 16, 6, 6),
    (2, 144, 128, 3, 2),
]
"""Images, channels in and out, height, width: one tile and many, odd sizes, blocks that are not full."""


@needs_kernels
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolution_is_pytorchs(shape: tuple[int, ...], bias: bool, calls: list[str]) -> None:
    images, inputs, outputs, height, width = shape
    layer, x = layer_of(inputs, outputs, bias), drawn(images, inputs, height, width).requires_grad_()
    found = frugal.convolve(layer, x)
    slope = drawn(*found.shape, seed=2)
    (back,) = torch.autograd.grad(found, x, slope)
    assert calls == ["cretta_convolve", "cretta_convolve_back"]
    exact_x = x.detach().double().requires_grad_()
    exact = copy.deepcopy(layer).double()(exact_x)
    (exact_back,) = torch.autograd.grad(exact, exact_x, slope.double())
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-6)
    torch.testing.assert_close(back.double(), exact_back, rtol=0, atol=2e-6)
    assert found.is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert torch.equal(frugal.convolve(layer, x), found)


@needs_kernels
@pytest.mark.parametrize(("channels", "side"), [(32, 16), (64, 8), (256, 4)])
def test_convolution_rounds_no_worse_than_pytorchs(channels: int, side: int) -> None:
    layer, x = layer_of(channels, channels), drawn(8, channels, side, side).relu()
    exact = F.conv2d(x.double(), layer.weight.double(), padding=1)
    mine = (native.convolve(x, layer.weight) - exact).square().mean()
    theirs = (F.conv2d(x, layer.weight, padding=1) - exact).square().mean()
    assert mine < 1.5 * theirs


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_do_not_depend_on_the_number_of_threads(shape: tuple[int, ...], threads: Callable[[int], None]) -> None:
    images, inputs, outputs, height, width = shape
    x, layer = drawn(images, inputs, height, width), layer_of(inputs, outputs)
    norm = (torch.linspace(-1, 2, inputs), torch.linspace(-1, 1, inputs), 1e-5)
    found = []
    for count in (1, 2, 5):
        threads(count)
        y, facts = native.normalise(x, *norm)
        found.append([native.convolve(x, layer.weight), y, *native.normalise_back(x + 1, x, facts, given=False)])
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


@needs_kernels
def test_an_image_of_nonsense_stays_alone() -> None:
    x, layer = drawn(9, 16, 6, 6), layer_of(16, 16)
    clean = native.convolve(x, layer.weight)
    x[4, 3, 2, 2] = torch.nan
    dirty = native.convolve(x, layer.weight)
    others = [i for i in range(9) if i != 4]
    assert torch.equal(dirty[others], clean[others])
    assert dirty[4, :, 1:4, 1:4].isnan().all()


@needs_kernels
def test_a_weight_is_transformed_once_and_again_when_it_changes() -> None:
    x, layer = drawn(2, 16, 4, 4), layer_of(16, 16)
    first = native.convolve(x, layer.weight)
    kept = native._transform(layer.weight, back=False)
    assert native._transform(layer.weight, back=False) is kept
    layer.weight.mul_(2)
    assert native._transform(layer.weight, back=False) is not kept
    torch.testing.assert_close(native.convolve(x, layer.weight), 2 * first)
    layer.weight.data = -layer.weight.data
    torch.testing.assert_close(native.convolve(x, layer.weight), -2 * first)
    gc.collect()
    held = len(native._transformed)
    del layer
    gc.collect()
    assert len(native._transformed) == held - 1


@needs_kernels
def test_inference_mode_is_fine() -> None:
    with torch.inference_mode():
        layer, x = layer_of(16, 16), drawn(2, 16, 4, 4)
        found = frugal.convolve(layer, x)
        torch.testing.assert_close(found, layer(x), rtol=0, atol=2e-6)


OTHERS: dict[str, nn.Module] = {
    "strided": nn.Conv2d(16, 16, 3, stride=2, padding=1),
    "not padded": nn.Conv2d(16, 16, 3),
    "dilated": nn.Conv2d(16, 16, 3, padding=1, dilation=2),
    "in groups": nn.Conv2d(16, 16, 3, padding=1, groups=2),
    "of one pixel": nn.Conv2d(16, 16, 1),
    "reflecting": nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"),
    "padded by name": nn.Conv2d(16, 16, 3, padding="same"),
    "of few channels": nn.Conv2d(16, 10, 3, padding=1),
}


@needs_kernels
@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_are_left_to_pytorch(name: str) -> None:
    assert not native.can_convolve(OTHERS[name].requires_grad_(False), drawn(2, 16, 8, 8))


@needs_kernels
def test_other_batches_are_left_to_pytorch(calls: list[str]) -> None:
    layer, x = layer_of(16, 16), drawn(2, 16, 8, 8)
    assert native.can_convolve(layer, x)
    assert not native.can_convolve(layer, x.contiguous())
    assert not native.can_convolve(layer, x.double())
    assert not native.can_convolve(layer, x[:0])
    assert not native.can_convolve(layer, x[:, :8])
    assert not native.can_convolve(layer, x[0])
    assert not native.can_convolve(copy.deepcopy(layer).double(), x)
    with pytest.raises(RuntimeError, match="channels"):
        frugal.convolve(layer, drawn(2, 32, 8, 8))
    assert calls == []


@needs_kernels
def test_a_gradient_may_come_in_any_layout() -> None:
    layer, x = layer_of(16, 16), drawn(2, 16, 8, 8).requires_grad_()
    (even,) = torch.autograd.grad(frugal.convolve(layer, x).sum(), x)
    (contiguous,) = torch.autograd.grad(frugal.convolve(layer, x), x, torch.ones(2, 16, 8, 8))
    (exact,) = torch.autograd.grad(layer(x).sum(), x)
    torch.testing.assert_close(even, exact, rtol=0, atol=2e-6)
    assert torch.equal(even, contiguous)


# BatchNorm and ReLU.


def norm_of(channels: int, statistics: str = "batch", centre: float = 0.0) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels, track_running_stats=statistics == "training").eval()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        layer.weight.normal_()
        layer.bias.normal_()
        if layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.normal_(centre)
            layer.running_var.uniform_(4, 16)
    return layer


@needs_kernels
@pytest.mark.parametrize("statistics", ["batch", "training"])
@pytest.mark.parametrize("centre", [0.0, 30.0])
@pytest.mark.parametrize("shape", [(3, 8, 5, 7), (5, 24, 1, 1), (40, 16, 16, 16), (2, 1032, 3, 3)], ids=str)
def test_norm_and_relu_are_pytorchs(shape: tuple[int, ...], centre: float, statistics: str, calls: list[str]) -> None:
    layer, x = norm_of(shape[1], statistics, centre), (3 * drawn(*shape) + centre).requires_grad_()
    exact_layer, exact_x = copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
    before = exact_layer(exact_x)
    # Where rounding decides whether a ReLU opens, no gradient is asked for.
    slope = drawn(*shape, seed=4) * (before.abs() > 1e-4)
    assert (slope != 0).float().mean() > 0.9
    found = frugal.normalise_and_rectify(layer, x)
    slopes = torch.autograd.grad(found, (x, layer.weight, layer.bias), slope)
    assert calls == ["cretta_normalise", "cretta_normalise_back"]
    exact = torch.autograd.grad(before.relu(), (exact_x, exact_layer.weight, exact_layer.bias), slope.double())
    torch.testing.assert_close(found.double(), before.relu(), rtol=0, atol=1e-5)
    for one, other in zip(slopes, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))
    with torch.no_grad():
        assert torch.equal(frugal.normalise_and_rectify(layer, x), found)


@needs_kernels
@pytest.mark.parametrize("statistics", ["batch", "training"])
@pytest.mark.parametrize("bias", [False, True])
def test_norm_relu_and_convolution_in_one_are_those_in_turn(bias: bool, statistics: str, calls: list[str]) -> None:
    norm, layer, x = norm_of(16, statistics), layer_of(16, 32, bias), drawn(3, 16, 6, 5).requires_grad_()
    learns = (x, norm.weight, norm.bias)
    found = frugal.normalise_rectify_convolve(norm, layer, x)
    slopes = torch.autograd.grad(found.square().sum(), learns)
    # In one: had they been found in turn, two gradients would have been made, and two nodes of the graph.
    assert found.grad_fn is not None
    assert [type(node).__name__ for node, _ in found.grad_fn.next_functions if node] == ["AccumulateGrad"] * 3
    assert calls == ["cretta_normalise", "cretta_convolve", "cretta_convolve_back", "cretta_normalise_back"]
    in_turn = frugal.convolve(layer, frugal.normalise_and_rectify(norm, x))
    assert torch.equal(found, in_turn)
    for one, other in zip(slopes, torch.autograd.grad(in_turn.square().sum(), learns), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        assert torch.equal(frugal.normalise_rectify_convolve(norm, layer, x), in_turn)


@needs_kernels
def test_norm_relu_and_a_convolution_that_learns() -> None:
    norm, layer, x = norm_of(16), layer_of(16, 32).requires_grad_(), drawn(3, 16, 6, 5)
    found = frugal.normalise_rectify_convolve(norm, layer, x)
    expected = layer(F.relu(norm(x)))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    (slope,) = torch.autograd.grad(found.square().sum(), layer.weight)
    torch.testing.assert_close(
        slope, torch.autograd.grad(expected.square().sum(), layer.weight)[0], rtol=1e-4, atol=1e-4
    )


@needs_kernels
def test_one_pixel_alone_has_no_statistics(calls: list[str]) -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        frugal.normalise_and_rectify(norm_of(8), drawn(1, 8, 1, 1))
    assert calls == []


@needs_kernels
def test_what_is_no_number_comes_through() -> None:
    x = drawn(2, 8, 3, 3)
    x[0, 5, 1, 1] = torch.nan
    y, _ = native.normalise(x, torch.ones(8), torch.zeros(8), 1e-5)
    assert y[:, 5].isnan().all()
    assert not y[:, [0, 1, 2, 3, 4, 6, 7]].isnan().any()


# When there are kernels.


@needs_kernels
def test_profilers_see_them() -> None:
    layer, x = layer_of(16, 16), drawn(2, 16, 4, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        frugal.convolve(layer, x.requires_grad_()).sum().backward()
    assert {"cretta_convolve", "cretta_convolve_back"} <= {event.key for event in profile.key_averages()}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_where_there_is_a_compiler_there_are_kernels() -> None:
    assert native.FILE.exists(), "install cretta again (pip install --editable .), now that there is a C compiler"


def test_why_there_are_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no C compiler when cretta was installed" in str(native._load(tmp_path / "nothing.so"))
    (tmp_path / "broken.so").write_bytes(b"no library")
    assert "could not be loaded" in str(native._load(tmp_path / "broken.so"))
    monkeypatch.setenv("CRETTA_KERNELS", "off")
    assert native._load(native.FILE) == "CRETTA_KERNELS=off is set"


@needs_kernels
def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    assert "another version" in str(native._load(native.FILE))


@needs_kernels
def test_lack_of_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor:
        cretta_convolve = staticmethod(lambda *given: 1)

    library: Any = Poor()
    monkeypatch.setattr(native, "KERNELS", native.Kernels(library, ctypes.c_void_p().value))
    with pytest.raises(MemoryError, match="cretta_convolve"):
        native.convolve(drawn(2, 16, 4, 4), layer_of(16, 16).weight)


# In adapters.


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return textbook.settle(WideResNet(10, 1, 5), textbook.source_images(32).split(8))


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("source", {}),
    ("bn_adapt", {}),
    ("tent", {}),
    ("tent", {"statistics": "running"}),
    ("sar", {}),
    ("cretta", {}),
    ("cretta", {"lean": True}),
    ("cretta", {"preset": "fast"}),
    ("tea", {"sampling_steps": 3, "replay": 40}),
]


@needs_kernels
@pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
def test_an_adapter_computes_the_same_without_them(
    method: str, options: dict[str, Any], calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits() -> list[Tensor]:
        buffer = cretta.SourceBuffer(textbook.source_images(20), augment="none")
        model = cretta.adapt(net(), method, buffer=buffer, **options)
        return [model(x) for x in textbook.batches()]

    found = logits()
    assert "cretta_convolve" in calls
    assert "cretta_normalise" in calls
    for back in ("cretta_convolve_back", "cretta_normalise_back"):
        assert (back in calls) == (method not in ("source", "bn_adapt"))
    calls.clear()
    monkeypatch.setattr(native, "KERNELS", None)
    plain = logits()
    assert calls == []
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
