"""The compiled kernels against PyTorch in double precision: values, gradients, rounding, threads, when they serve."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cretta
import textbook
from cretta.accelerate import choices, kernels, norms, operations, winograd
from cretta.accelerate.graph import rewrite
from cretta.errors import OptionError
from cretta.metrics import peak_meter
from cretta.models import WideResNet

LOADED = kernels.load(kernels.FILE)
"""The library, or the reason why it cannot be used here."""
needs_kernels = pytest.mark.skipif(isinstance(LOADED, str), reason=f"no kernels here: {LOADED}")
CPUINFO = Path("/proc/cpuinfo")
FLAGS = CPUINFO.read_text().split() if CPUINFO.exists() else []


def drawn(*shape: int, seed: int = 0) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.randn(*shape).contiguous(memory_format=torch.channels_last)


def layer_of(inputs: int, outputs: int, bias: bool = False) -> nn.Conv2d:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias).requires_grad_(False)


HERE = LOADED.paths if isinstance(LOADED, kernels.Library) else ()
PATHS = [
    pytest.param(path, marks=pytest.mark.skipif(path not in HERE, reason=f"this processor cannot run {path}"))
    for path in kernels.PATHS
]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each path of the kernels, pinned."""
    name: str = request.param
    monkeypatch.setenv("CRETTA_KERNELS", name)
    return name


@pytest.fixture(autouse=True)
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one path without timing."""
    monkeypatch.setenv("CRETTA_KERNELS", "avx2")


def convolved(x: Tensor, layer: nn.Conv2d, kernel: str = "avx2") -> Tensor:
    return winograd.convolve(x, layer.weight, None, kernel)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all kernels as they are run."""
    made: list[str] = []
    run = kernels.Library.call

    def call(self: kernels.Library, name: str, *arguments: Any, label: str | None = None) -> None:
        made.append(label or name)
        run(self, name, *arguments, label=label)

    monkeypatch.setattr(kernels.Library, "call", call)
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
def test_convolution_equals_pytorch(shape: tuple[int, ...], bias: bool, path: str, calls: list[str]) -> None:
    images, inputs, outputs, height, width = shape
    layer, x = layer_of(inputs, outputs, bias), drawn(images, inputs, height, width).requires_grad_()
    result = operations.convolve(layer, x)
    gradient = drawn(*result.shape, seed=2)
    (back,) = torch.autograd.grad(result, x, gradient)
    assert calls == ["cretta_convolve", "cretta_convolve_backward"]
    exact_x = x.detach().double().requires_grad_()
    exact = copy.deepcopy(layer).double()(exact_x)
    (exact_back,) = torch.autograd.grad(exact, exact_x, gradient.double())
    torch.testing.assert_close(result.double(), exact, rtol=0, atol=2e-6)
    torch.testing.assert_close(back.double(), exact_back, rtol=0, atol=2e-6)
    assert result.is_contiguous(memory_format=torch.channels_last)
    for tile, tolerance in (("", 2e-6), (winograd.LARGE_TILES, 2e-5)):
        result = winograd.convolve(x.detach(), layer.weight, layer.bias, path + tile)
        torch.testing.assert_close(result.double(), exact.detach(), rtol=0, atol=tolerance)
        assert result.is_contiguous(memory_format=torch.channels_last)


@needs_kernels
@pytest.mark.parametrize(
    ("shape", "large"),
    [((2, 16, 8, 8), True), ((2, 16, 7, 7), True), ((2, 16, 2, 2), False), ((1, 256, 8, 8), False)],
)
def test_larger_tiles_are_used_without_a_gradient_only(shape: tuple[int, ...], large: bool, path: str) -> None:
    layer, x = layer_of(shape[1], 256 if shape[1] == 256 else 16), drawn(*shape)
    expected = {tile: winograd.convolve(x, layer.weight, None, path + tile) for tile in ("", winograd.LARGE_TILES)}
    assert not torch.equal(*expected.values())
    with torch.no_grad():
        assert torch.equal(operations.convolve(layer, x), expected[winograd.LARGE_TILES if large else ""])
    assert torch.equal(operations.convolve(layer, x.requires_grad_()), expected[""])


@needs_kernels
@pytest.mark.parametrize(("channels", "side"), [(32, 16), (64, 8), (256, 4)])
def test_convolution_rounds_as_well_as_pytorch(channels: int, side: int, path: str) -> None:
    layer, x = layer_of(channels, channels), drawn(8, channels, side, side).relu()
    exact = F.conv2d(x.double(), layer.weight.double(), padding=1)
    mine = (convolved(x, layer, path) - exact).square().mean()
    theirs = (F.conv2d(x, layer.weight, padding=1) - exact).square().mean()
    assert mine < 1.2 * theirs


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_do_not_depend_on_the_number_of_threads(
    shape: tuple[int, ...], path: str, threads: Callable[[int], None]
) -> None:
    images, inputs, outputs, height, width = shape
    x, layer = drawn(images, inputs, height, width), layer_of(inputs, outputs)
    norm = (torch.linspace(-1, 2, inputs), torch.linspace(-1, 1, inputs), 1e-5, path)
    results = []
    for count in (1, 2, 5):
        threads(count)
        y, statistics = norms.batch_norm_relu(x, *norm)
        gradients: list[Tensor] = []
        for running in (False, True):
            out = torch.empty_like(x)
            of_parameters = norms.batch_norm_relu_backward(x + 1, x, statistics, path, running=running, out=out)
            gradients += [*of_parameters, out]
        convolutions = [convolved(x, layer, path + tile) for tile in ("", winograd.LARGE_TILES)]
        results.append([*convolutions, winograd.weight_gradient(x, convolutions[0], path), y, *gradients])
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


@needs_kernels
def test_nan_in_one_image_does_not_reach_the_others() -> None:
    x, layer = drawn(9, 16, 6, 6), layer_of(16, 16)
    clean = convolved(x, layer)
    x[4, 3, 2, 2] = torch.nan
    dirty = convolved(x, layer)
    others = [i for i in range(9) if i != 4]
    assert torch.equal(dirty[others], clean[others])
    assert dirty[4, :, 1:4, 1:4].isnan().all()


@needs_kernels
def test_a_weight_is_transformed_once_and_again_when_it_changes() -> None:
    x, layer = drawn(2, 16, 4, 4), layer_of(16, 16)
    first = convolved(x, layer)
    saved = winograd._transform(layer.weight, 2, backward=False)
    assert winograd._transform(layer.weight, 2, backward=False) is saved
    layer.weight.mul_(2)
    assert winograd._transform(layer.weight, 2, backward=False) is not saved
    torch.testing.assert_close(convolved(x, layer), 2 * first)
    layer.weight.data = -layer.weight.data
    torch.testing.assert_close(convolved(x, layer), -2 * first)
    gc.collect()
    held = len(winograd._transformed)
    del layer
    gc.collect()
    assert len(winograd._transformed) == held - 1


@needs_kernels
def test_inference_mode_works(calls: list[str]) -> None:
    layer, norm = layer_of(16, 16), norm_of(16)
    with torch.inference_mode():
        x = drawn(2, 16, 4, 4)
        result = operations.batch_norm_relu_convolve(norm, layer, x)
        torch.testing.assert_close(result, layer(F.relu(norm(x))), rtol=0, atol=2e-5)
        assert calls == ["cretta_batch_norm_relu", "cretta_convolve"]
        # Nobody could notice a change of these.
        assert not winograd.can_convolve(layer_of(16, 16), x)


@needs_kernels
def test_the_frozen_model_of_an_adapter_made_in_inference_mode(calls: list[str]) -> None:
    with torch.inference_mode():
        model = cretta.adapt(net(), "source")
        model(textbook.batches((8,))[0])
    assert "cretta_convolve" in calls


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_default_dtype_does_not_matter(dtype: torch.dtype) -> None:
    def results() -> list[Tensor]:
        layer, norm = layer_of(16, 16).float(), norm_of(16, "training").float()
        for tensor in (*layer.parameters(), *norm.parameters(), *norm.buffers()):
            tensor.data.fill_(0.5)
        values = torch.linspace(-1, 1, 2 * 16 * 4 * 4, dtype=torch.float32).view(2, 16, 4, 4)
        x = values.contiguous(memory_format=torch.channels_last).requires_grad_()
        out = operations.batch_norm_relu_convolve(norm, layer, x)
        return [out, *torch.autograd.grad(out.square().sum(), (x, norm.weight, norm.bias))]

    expected = results()
    torch.set_default_dtype(dtype)
    try:
        result = results()
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(result, expected, strict=True):
        assert torch.equal(one, other)


@needs_kernels
def test_the_default_device_does_not_matter(calls: list[str]) -> None:
    layer, norm, x = layer_of(16, 16), norm_of(16), drawn(2, 16, 4, 4)
    expected = operations.batch_norm_relu_convolve(norm, layer, x)
    fresh = copy.deepcopy(layer)
    with torch.device("meta"):
        assert torch.equal(operations.batch_norm_relu_convolve(norm, fresh, x), expected)
    assert len(calls) == 4


@needs_kernels
def test_only_plain_tensors_are_accepted() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        kernels.require_plain(torch.empty(3, device="meta"))
    with pytest.raises(RuntimeError, match="float64"):
        kernels.require_plain(torch.empty(3, dtype=torch.float64))


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
    assert not winograd.can_convolve(OTHERS[name].requires_grad_(False), drawn(2, 16, 8, 8))


@needs_kernels
def test_other_batches_are_left_to_pytorch(calls: list[str]) -> None:
    layer, x = layer_of(16, 16), drawn(2, 16, 8, 8)
    assert winograd.can_convolve(layer, x)
    assert not winograd.can_convolve(layer, x.contiguous())
    assert not winograd.can_convolve(layer, x.double())
    assert not winograd.can_convolve(layer, x[:0])
    assert not winograd.can_convolve(layer, x[:, :8])
    assert not winograd.can_convolve(layer, x[0])
    assert not winograd.can_convolve(copy.deepcopy(layer).double(), x)
    biased = layer_of(16, 16, bias=True)
    assert winograd.can_convolve(biased, x)
    biased.bias = nn.Parameter(torch.zeros(1).expand(16), requires_grad=False)
    assert not winograd.can_convolve(biased, x)
    assert not norms.can_batch_norm_relu(x, torch.ones(8), torch.ones(8))
    assert not norms.can_batch_norm_relu(x, torch.ones(32)[::2], torch.ones(16))
    assert not norms.can_batch_norm_relu(drawn(2, 12, 8, 8), torch.ones(12), torch.ones(12))
    with pytest.raises(RuntimeError, match="channels"):
        operations.convolve(layer, drawn(2, 32, 8, 8))
    assert calls == []


@needs_kernels
def test_a_gradient_may_come_in_any_layout(calls: list[str]) -> None:
    layer, x = layer_of(16, 16), drawn(2, 16, 8, 8).requires_grad_()
    (even,) = torch.autograd.grad(operations.convolve(layer, x).sum(), x)
    (contiguous,) = torch.autograd.grad(operations.convolve(layer, x), x, torch.ones(2, 16, 8, 8))
    (exact,) = torch.autograd.grad(layer(x).sum(), x)
    torch.testing.assert_close(even, exact, rtol=0, atol=2e-6)
    assert torch.equal(even, contiguous)
    norm = norm_of(16)
    (even,) = torch.autograd.grad(operations.batch_norm_relu(norm, x).sum(), norm.weight)
    (contiguous,) = torch.autograd.grad(operations.batch_norm_relu(norm, x), norm.weight, torch.ones(2, 16, 8, 8))
    assert torch.equal(even, contiguous)
    assert len(calls) == 8


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sixteen_lanes_give_the_numbers_of_eight(shape: tuple[int, ...]) -> None:
    """Each lane computes the same sums in the same order, so that all bits are equal."""
    images, inputs, outputs, height, width = shape
    x, layer = drawn(images, inputs, height, width), layer_of(inputs, outputs)
    for tile in ("", winograd.LARGE_TILES):
        assert torch.equal(convolved(x, layer, "emulated" + tile), convolved(x, layer, "avx2" + tile))
    for shortcut in (None, drawn(*x.shape, seed=6)):
        eight: list[Tensor] = []
        sixteen: list[Tensor] = []
        for path, results in (("avx2", eight), ("emulated", sixteen)):
            out, masked = torch.empty_like(x), None if shortcut is None else torch.empty_like(x)
            norm = torch.ones(inputs), torch.zeros(inputs)
            y, statistics = norms.batch_norm_relu(x, *norm, 1e-5, path, shortcut=shortcut)
            output = None if shortcut is None else y
            of_parameters = norms.batch_norm_relu_backward(
                x + 1, x, statistics, path, running=False, out=out, output=output, masked=masked, other=shortcut
            )
            results += [y, statistics, out, *of_parameters, *([] if masked is None else [masked])]
        assert all(torch.equal(one, other) for one, other in zip(eight, sixteen, strict=True))


@needs_kernels
@pytest.mark.process
def test_the_library_has_the_code_for_avx512() -> None:
    """Checked without running it: each of its kernels multiplies and adds sixteen numbers at once."""
    program = shutil.which("objdump")
    if program is None:
        pytest.skip("objdump is not installed")
    done = subprocess.run([program, "-d", str(kernels.FILE)], capture_output=True, text=True, check=True)
    functions = dict(re.findall(r"^[0-9a-f]+ <(\w+)>:\n(.*?)(?:\n\n|\Z)", done.stdout, flags=re.MULTILINE | re.DOTALL))
    wide = {name for name, code in functions.items() if re.search(r"vfmadd\d+ps .*%zmm", code)}
    assert {"multiply_avx512", "transform_4_avx512", "inverse_transform_4_avx512", "scale_shift_avx512"} <= wide
    assert {"sum_squares_of_block_avx512", "sum_gradients_of_block_avx512", "input_gradient_of_block_avx512"} <= wide
    assert all(name.endswith("_avx512") for name in wide)


# BatchNorm and ReLU.


def norm_of(channels: int, statistics: str = "batch", center: float = 0.0) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels, track_running_stats=statistics == "training").eval()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        layer.weight.normal_()
        layer.bias.normal_()
        if layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.normal_(center)
            layer.running_var.uniform_(4, 16)
    return layer


@needs_kernels
@pytest.mark.parametrize("statistics", ["batch", "training"])
@pytest.mark.parametrize("center", [0.0, 30.0, 1000.0])
@pytest.mark.parametrize("shape", [(3, 16, 5, 7), (5, 48, 1, 1), (40, 16, 16, 16), (2, 1040, 3, 3)], ids=str)
def test_batch_norm_and_relu_equal_pytorch(
    shape: tuple[int, ...], center: float, statistics: str, path: str, calls: list[str]
) -> None:
    layer, x = norm_of(shape[1], statistics, center), (3 * drawn(*shape) + center).requires_grad_()
    exact_layer, exact_x = copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
    before = exact_layer(exact_x)
    # Where rounding decides whether a ReLU opens, no gradient is asked for.
    rounding = 1e-6 * (10 + center)
    gradient = drawn(*shape, seed=4) * (before.abs() > rounding)
    assert (gradient != 0).float().mean() > 0.9
    result = operations.batch_norm_relu(layer, x)
    gradients = torch.autograd.grad(result, (x, layer.weight, layer.bias), gradient)
    assert calls == ["cretta_batch_norm_relu", "cretta_batch_norm_relu_backward"]
    exact = torch.autograd.grad(before.relu(), (exact_x, exact_layer.weight, exact_layer.bias), gradient.double())
    torch.testing.assert_close(result.double(), before.relu(), rtol=0, atol=rounding)
    for one, other in zip(gradients, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=rounding, atol=rounding * float(other.abs().max()))
    with torch.no_grad():
        assert torch.equal(operations.batch_norm_relu(layer, x), result)


@needs_kernels
@pytest.mark.parametrize("statistics", ["batch", "training"])
def test_batch_norm_without_relu_equals_pytorch(statistics: str, path: str, calls: list[str]) -> None:
    layer, x = norm_of(32, statistics), (3 * drawn(5, 32, 6, 7)).requires_grad_()
    exact_layer, exact_x = copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
    result, exact = operations.batch_norm(layer, x), exact_layer(exact_x)
    assert (result < 0).any()
    torch.testing.assert_close(result.double(), exact, rtol=0, atol=1e-5)
    gradient = drawn(*x.shape, seed=4)
    gradients = torch.autograd.grad(result, (x, layer.weight, layer.bias), gradient)
    assert calls == ["cretta_batch_norm_relu", "cretta_batch_norm_relu_backward"]
    of_exact = torch.autograd.grad(exact, (exact_x, exact_layer.weight, exact_layer.bias), gradient.double())
    for one, other in zip(gradients, of_exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))
    with torch.no_grad():
        assert torch.equal(operations.batch_norm(layer, x), result)


@needs_kernels
@pytest.mark.parametrize("statistics", ["batch", "training"])
@pytest.mark.parametrize("shape", [(3, 16, 5, 7), (5, 48, 1, 1), (40, 16, 16, 16), (2, 1040, 3, 3)], ids=str)
def test_batch_norm_with_sum_and_relu_equals_pytorch(
    shape: tuple[int, ...], statistics: str, path: str, calls: list[str]
) -> None:
    layer, x = norm_of(shape[1], statistics), (3 * drawn(*shape)).requires_grad_()
    shortcut = drawn(*shape, seed=5).contiguous().requires_grad_()  # of another layout
    exact_layer = copy.deepcopy(layer).double()
    exact_x, exact_shortcut = (t.detach().double().requires_grad_() for t in (x, shortcut))
    before = exact_layer(exact_x) + exact_shortcut
    gradient = drawn(*shape, seed=4) * (before.abs() > 1e-5)
    result = operations.batch_norm_add_relu(layer, x, shortcut)
    torch.testing.assert_close(result.double(), before.relu(), rtol=0, atol=1e-5)
    gradients = torch.autograd.grad(result, (x, shortcut, layer.weight, layer.bias), gradient)
    assert calls == ["cretta_batch_norm_relu", "cretta_batch_norm_relu_backward"]
    exact = torch.autograd.grad(
        before.relu(), (exact_x, exact_shortcut, exact_layer.weight, exact_layer.bias), gradient.double()
    )
    for one, other in zip(gradients, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))
    with torch.no_grad():
        assert torch.equal(operations.batch_norm_add_relu(layer, x, shortcut), result)


@needs_kernels
@pytest.mark.parametrize("used", ["both", "sum", "convolution"])
@pytest.mark.parametrize("statistics", ["batch", "training"])
@pytest.mark.parametrize("has_shortcut", [True, False])
def test_the_end_of_a_block_equals_its_parts_in_turn(
    has_shortcut: bool, statistics: str, used: str, path: str, calls: list[str]
) -> None:
    """What the ReLU returns is used twice: by the convolution, and by the sum at the end of the next block."""
    norm, layer, x = norm_of(16, statistics), layer_of(16, 32), drawn(3, 16, 6, 5).requires_grad_()
    shortcut = drawn(3, 16, 6, 5, seed=5).requires_grad_() if has_shortcut else None
    learns = [x, norm.weight, norm.bias, *([] if shortcut is None else [shortcut])]

    def loss(y: Tensor, convolved: Tensor) -> Tensor:
        return (used != "convolution") * y.square().sum() + (used != "sum") * convolved.square().sum()

    result = operations.batch_norm_add_relu_convolve(norm, layer, x, shortcut)
    assert result[0].grad_fn is result[1].grad_fn
    gradients = torch.autograd.grad(loss(*result) if used == "both" else result[used == "convolution"].sum(), learns)
    assert calls[:2] == ["cretta_batch_norm_relu", "cretta_convolve"]
    assert calls[2:] == ["cretta_convolve_backward"] * (used != "sum") + ["cretta_batch_norm_relu_backward"]
    y = F.relu(norm(x) if shortcut is None else norm(x) + shortcut)
    expected = y, layer(y)
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5)
    exact = torch.autograd.grad(loss(*expected) if used == "both" else expected[used == "convolution"].sum(), learns)
    for one, other in zip(gradients, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))
    with torch.no_grad():
        for one, other in zip(operations.batch_norm_add_relu_convolve(norm, layer, x, shortcut), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=5e-5)


@needs_kernels
@pytest.mark.parametrize("shortcut", [drawn(1, 16, 1, 1), drawn(3, 16, 6, 5).double()], ids=["broadcast", "float64"])
def test_other_shortcuts_are_added_by_pytorch(shortcut: Tensor) -> None:
    norm, layer, x = norm_of(16), layer_of(16, 16), drawn(3, 16, 6, 5).requires_grad_()
    result = operations.batch_norm_add_relu(norm, x, shortcut)
    torch.testing.assert_close(result, F.relu(norm(x) + shortcut), rtol=0, atol=1e-5)
    if shortcut.dtype == x.dtype:
        y, convolved = operations.batch_norm_add_relu_convolve(norm, layer, x, shortcut)
        torch.testing.assert_close(convolved, layer(y), rtol=0, atol=2e-5)


@needs_kernels
@pytest.mark.parametrize("statistics", ["batch", "training"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_combined_operation_equals_its_parts_in_turn(
    bias: bool, statistics: str, path: str, calls: list[str]
) -> None:
    norm, layer, x = norm_of(16, statistics), layer_of(16, 32, bias), drawn(3, 16, 6, 5).requires_grad_()
    learns = (x, norm.weight, norm.bias)
    result = operations.batch_norm_relu_convolve(norm, layer, x)
    gradients = torch.autograd.grad(result.square().sum(), learns)
    # In one: had they been result in turn, two gradients would have been made, and two nodes of the graph.
    assert result.grad_fn is not None
    assert [type(node).__name__ for node, _ in result.grad_fn.next_functions if node] == ["AccumulateGrad"] * 3
    forward, backward = ["cretta_batch_norm_relu", "cretta_convolve"], ["cretta_convolve", "cretta_batch_norm_relu"]
    assert calls == forward + [f"{name}_backward" for name in backward]
    in_turn = operations.convolve(layer, operations.batch_norm_relu(norm, x))
    assert torch.equal(result, in_turn)
    for one, other in zip(gradients, torch.autograd.grad(in_turn.square().sum(), learns), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        torch.testing.assert_close(operations.batch_norm_relu_convolve(norm, layer, x), in_turn, rtol=0, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("statistics", ["batch", "training"])
@pytest.mark.parametrize("shape", [(3, 16, 32, 6, 5), (2, 32, 16, 8, 8), (5, 48, 48, 7, 3)], ids=str)
def test_the_combined_operation_adds_a_shortcut(shape: tuple[int, ...], statistics: str, path: str) -> None:
    """All bits are those of a sum after it, also of tiles at the border, which begin outside of the image."""
    images, inputs, outputs, height, width = shape
    norm, layer = norm_of(inputs, statistics), layer_of(inputs, outputs)
    x, shortcut = drawn(images, inputs, height, width), drawn(images, outputs, height, width, seed=5)
    learns = (x.requires_grad_(), norm.weight, norm.bias, shortcut.requires_grad_())
    result = operations.batch_norm_relu_convolve(norm, layer, x, shortcut)
    in_turn = operations.convolve(layer, operations.batch_norm_relu(norm, x)) + shortcut
    assert torch.equal(result, in_turn)
    upstream = drawn(*result.shape, seed=6)
    gradients = torch.autograd.grad(result, learns, upstream)
    for one, other in zip(gradients, torch.autograd.grad(in_turn, learns, upstream), strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(result, layer(F.relu(norm(x))) + shortcut, rtol=0, atol=2e-5)
    with torch.no_grad():
        in_turn = operations.convolve(layer, operations.batch_norm_relu(norm, x)) + shortcut
        assert torch.equal(operations.batch_norm_relu_convolve(norm, layer, x, shortcut), in_turn)


@needs_kernels
@pytest.mark.parametrize("shortcut", [drawn(1, 32, 1, 1), drawn(3, 32, 6, 5).double()], ids=["broadcast", "float64"])
def test_other_shortcuts_are_added_after_the_convolution(shortcut: Tensor) -> None:
    norm, layer, x = norm_of(16), layer_of(16, 32), drawn(3, 16, 6, 5).requires_grad_()
    expected = layer(F.relu(norm(x))) + shortcut
    result = operations.batch_norm_relu_convolve(norm, layer, x, shortcut)
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)


@needs_kernels
def test_the_sum_of_a_wide_residual_block_is_added_by_its_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    shortcuts: list[bool] = []
    run = kernels.Library.call

    def call(self: kernels.Library, name: str, *arguments: Any, label: str | None = None) -> None:
        if name == "cretta_convolve":
            shortcuts.append(arguments[6] is not None)
        run(self, name, *arguments, label=label)

    monkeypatch.setattr(kernels.Library, "call", call)
    module = net().requires_grad_(False)
    network = rewrite(module, learns=True)
    assert isinstance(network, nn.Module)
    x = textbook.batches((8,))[0].contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(network(x), module(x), rtol=1e-4, atol=1e-4)
    assert shortcuts.count(True) == 1  # the others have a convolution in their shortcut, which runs in between


@needs_kernels
def test_large_results_equal_pytorch(path: str) -> None:
    """They are stored past the caches where that is faster."""
    layer, x = layer_of(16, 32), drawn(9, 16, 64, 60)
    for tile, tolerance in (("", 2e-6), (winograd.LARGE_TILES, 2e-5)):
        result = winograd.convolve(x, layer.weight, None, path + tile)
        assert result.numel() > 2**20
        torch.testing.assert_close(result, layer(x), rtol=0, atol=tolerance)
    wide = drawn(9, 32, 64, 60)
    y, _ = norms.batch_norm_relu(wide, torch.ones(32), torch.zeros(32), 1e-5, path)
    exact = F.relu(F.batch_norm(wide.double(), None, None, training=True))
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=1e-6)


@needs_kernels
def test_the_combined_operation_with_a_convolution_that_learns() -> None:
    norm, layer, x = norm_of(16), layer_of(16, 32).requires_grad_(), drawn(3, 16, 6, 5)
    result = operations.batch_norm_relu_convolve(norm, layer, x)
    expected = layer(F.relu(norm(x)))
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-6)
    (gradient,) = torch.autograd.grad(result.square().sum(), layer.weight)
    torch.testing.assert_close(
        gradient, torch.autograd.grad(expected.square().sum(), layer.weight)[0], rtol=1e-4, atol=1e-4
    )


@needs_kernels
def test_one_value_per_channel_raises(calls: list[str]) -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        operations.batch_norm_relu(norm_of(8), drawn(1, 8, 1, 1))
    assert calls == []


@needs_kernels
def test_nan_is_passed_on() -> None:
    x = drawn(2, 8, 3, 3)
    x[0, 5, 1, 1] = torch.nan
    y, _ = norms.batch_norm_relu(x, torch.ones(8), torch.zeros(8), 1e-5, "avx2")
    assert y[:, 5].isnan().all()
    assert not y[:, [0, 1, 2, 3, 4, 6, 7]].isnan().any()


@needs_kernels
@pytest.mark.parametrize("nonsense", [torch.nan, torch.inf])
def test_with_running_statistics_a_non_finite_gradient_stays_local(nonsense: float) -> None:
    norm, x = norm_of(8, "training"), drawn(4, 8, 3, 3).requires_grad_()
    nn.init.constant_(norm.bias, 5.0)  # all ReLUs are open
    out = operations.batch_norm_relu(norm, x)
    gradient = torch.ones(4, 8, 3, 3)
    (clean,) = torch.autograd.grad(out, x, gradient, retain_graph=True)
    gradient[1, 2, 0, 0] = nonsense
    (result,) = torch.autograd.grad(out, x, gradient)
    assert not result[1, 2, 0, 0].isfinite()
    result[1, 2, 0, 0] = clean[1, 2, 0, 0]
    assert torch.equal(result, clean)


@needs_kernels
@pytest.mark.parametrize("learning", [("weight",), ("bias",), ("x",)])
def test_only_requested_gradients_are_computed(learning: tuple[str, ...]) -> None:
    norm, layer, x = norm_of(16).requires_grad_(False), layer_of(16, 16), drawn(3, 16, 8, 8)
    everything = {"x": x, "weight": norm.weight, "bias": norm.bias}
    for name in learning:
        everything[name].requires_grad_()
    gradient, inputs = drawn(*x.shape, seed=5), [everything[name] for name in learning]
    result = operations.batch_norm_relu_convolve(norm, layer, x)
    gradients = torch.autograd.grad(result, inputs, gradient, retain_graph=True)
    for one, other in zip(gradients, torch.autograd.grad(layer(F.relu(norm(x))), inputs, gradient), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    with peak_meter(torch.device("cpu")) as meter:
        torch.autograd.grad(result, inputs, gradient)
    assert (
        meter.peak < 1.5 * x.nbytes
    )  # the gradient of the convolution's input; BatchNorm's gradient is written over it
    apart = operations.batch_norm_relu(norm, x)
    with peak_meter(torch.device("cpu")) as meter:
        torch.autograd.grad(apart, inputs, gradient)
    assert (meter.peak >= x.nbytes) == ("x" in learning)


@needs_kernels
def test_the_combined_operation_saves_its_input_only() -> None:
    norm, layer, x = norm_of(16), layer_of(16, 16), drawn(3, 16, 32, 32).requires_grad_()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        operations.batch_norm_relu_convolve(norm, layer, x)
    assert {t.data_ptr() for t in saved if t.numel() >= x.numel()} == {x.data_ptr()}
    assert sum(t.numel() for t in saved) == x.numel() + 4 * 16 + layer.weight.numel()


@needs_kernels
def test_several_threads_can_call_at_once() -> None:
    layer, x = layer_of(32, 32), drawn(8, 32, 16, 16)
    expected = convolved(x, layer)
    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(lambda _: convolved(x, layer), range(16)))
    assert all(torch.equal(one, expected) for one in result)


# When there are kernels.


@needs_kernels
def test_they_can_be_disabled(calls: list[str]) -> None:
    layer, x = layer_of(16, 16), drawn(2, 16, 4, 4).requires_grad_()
    before = operations.convolve(layer, x)

    def check() -> None:
        assert not winograd.can_convolve(layer, x)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(winograd.can_convolve, layer, x).result()
        operations.convolve(layer, x).sum().backward()
        assert calls == ["cretta_convolve"]
        before.sum().backward()

    kernels.without(check)()
    assert calls == ["cretta_convolve", "cretta_convolve_backward"]
    assert winograd.can_convolve(layer, x)


@needs_kernels
def test_profilers_show_them() -> None:
    layer, x = layer_of(16, 16), drawn(2, 16, 4, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        operations.convolve(layer, x.requires_grad_()).sum().backward()
    assert {"cretta_convolve", "cretta_convolve_backward"} <= {event.key for event in profile.key_averages()}


@pytest.mark.skipif(
    shutil.which("cc") is None or not {"avx2", "fma"} <= set(FLAGS) or "CC" in os.environ,
    reason="no C compiler on Linux, or a processor without AVX2",
)
def test_they_are_compiled_where_the_machine_supports_them() -> None:
    assert isinstance(LOADED, kernels.Library), f"install cretta again (pip install --editable .): {LOADED}"


def test_the_reason_why_they_are_missing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "a C compiler" in str(kernels.load(tmp_path / "nothing.so"))
    (tmp_path / "broken.so").write_bytes(b"not a library")
    assert "could not be loaded" in str(kernels.load(tmp_path / "broken.so"))
    assert (kernels.missing() is None) == isinstance(LOADED, kernels.Library)
    monkeypatch.setenv("CRETTA_KERNELS", "off")
    assert kernels.missing() == "CRETTA_KERNELS=off is set"


@needs_kernels
def test_the_switch_is_read_at_each_use(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    layer, x = layer_of(16, 16), drawn(2, 16, 4, 4).requires_grad_()
    before = operations.convolve(layer, x)
    monkeypatch.setenv("CRETTA_KERNELS", "off")
    assert not winograd.can_convolve(layer, x)
    before.sum().backward()  # as its forward pass
    assert calls == ["cretta_convolve", "cretta_convolve_backward"]
    operations.convolve(layer, x).sum().backward()
    assert len(calls) == 2


@needs_kernels
def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zlib.crc32", lambda _: 1)
    assert "another version" in str(kernels.load(kernels.FILE))


def library_of(**functions: Callable[..., int]) -> Any:
    """A library whose kernels all fail."""
    return SimpleNamespace(**{name: lambda *args: 1 for name in kernels.SIGNATURES}, **functions)


@pytest.fixture
def fresh_settings() -> Iterator[None]:
    kernels._paths.cache_clear()
    yield
    kernels._paths.cache_clear()
    choices.forget()


@needs_kernels
@pytest.mark.parametrize(
    ("bits", "setting", "expected"),
    [
        (0b111, "auto", ("avx512", "avx2")),
        (0b101, "auto", ("avx2",)),
        (0b111, "avx2", ("avx2",)),
        (0b111, "avx512", ("avx512",)),
        (0b101, "avx512", ()),
        (0b101, "emulated", ("emulated",)),
        (0b111, "off", ()),
        (0, "auto", ()),
    ],
)
def test_the_paths_are_those_of_the_processor_and_the_setting(
    bits: int, setting: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, fresh_settings: None
) -> None:
    library = library_of(cretta_interface=kernels.checksum, cretta_paths=lambda: bits)
    real = ctypes.CDLL
    monkeypatch.setattr(
        "ctypes.CDLL", lambda name, **rest: library if name == str(kernels.FILE) else real(name, **rest)
    )
    loaded = kernels.load(kernels.FILE)
    monkeypatch.setattr(kernels, "_library", lambda: loaded)
    monkeypatch.setenv("CRETTA_KERNELS", setting)
    assert kernels.paths() == expected
    assert (kernels.missing() is None) == bool(expected)
    if setting == "avx512" and not expected:
        assert kernels.missing() == "CRETTA_KERNELS=avx512 is set, and this processor has none"


def test_an_unknown_setting_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRETTA_KERNELS", "on")
    with pytest.raises(OptionError, match=r"expected auto, off, avx2, avx512, or a JSON file of .* got 'on'"):
        kernels.missing()


@needs_kernels
def test_they_run_in_the_threads_of_pytorch_or_in_one(
    monkeypatch: pytest.MonkeyPatch, threads: Callable[[int], None]
) -> None:
    assert isinstance(LOADED, kernels.Library)
    assert LOADED.one_thread == ""
    x, layer = drawn(8, 16, 16, 16), layer_of(16, 16)
    expected = convolved(x, layer)
    monkeypatch.setattr(kernels, "openmp", lambda: "there are two OpenMP runtimes")
    alone = kernels.load(kernels.FILE)
    assert isinstance(alone, kernels.Library)
    assert alone._parallel is None
    monkeypatch.setattr(kernels, "_library", lambda: alone)
    threads(2)
    assert torch.equal(convolved(x, layer), expected)
    model = cretta.adapt(net(), "source")
    model(textbook.batches((8,))[0])
    assert "in one thread because there are two OpenMP runtimes" in str(model.backend)


@needs_kernels
def test_another_openmp_runtime_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(kernels.openmp(), int)
    real = ctypes.CDLL
    other = SimpleNamespace(GOMP_parallel=real(None).malloc)
    monkeypatch.setattr("ctypes.CDLL", lambda name, **rest: real(name, **rest) if name else other)
    assert "two OpenMP runtimes" in str(kernels.openmp())
    monkeypatch.setattr("ctypes.CDLL", lambda name, **rest: SimpleNamespace())
    assert "was not identified" in str(kernels.openmp())


@needs_kernels
def test_a_kernel_without_memory_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_library", lambda: kernels.Library(library_of(), ("avx2",), None))
    with pytest.raises(MemoryError, match="cretta_convolve"):
        convolved(drawn(2, 16, 4, 4), layer_of(16, 16))


@needs_kernels
def test_without_the_private_name_of_the_profiler_they_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of(16, 16), drawn(2, 16, 4, 4)
    expected = convolved(x, layer)
    monkeypatch.delattr(torch.autograd.profiler, "_is_profiler_enabled")
    assert torch.equal(convolved(x, layer), expected)


@needs_kernels
@pytest.mark.parametrize("kind", ["convolution", "convolution after BatchNorm", "PyTorch's convolution"])
def test_a_weight_modified_before_the_backward_pass_raises(kind: str) -> None:
    """As PyTorch does: the gradient would belong to another network."""
    norm, layer, x = norm_of(16), layer_of(16, 16), drawn(2, 16, 4, 4).requires_grad_()
    if kind == "convolution after BatchNorm":
        out = operations.batch_norm_relu_convolve(norm, layer, x)
    elif kind == "convolution":
        out = operations.convolve(layer, x)
    else:
        out = operations.convolve(layer, x.contiguous())
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


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
    method: str, options: dict[str, Any], path: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits() -> list[Tensor]:
        buffer = cretta.SourceBuffer(textbook.source_images(20), augment="none")
        model = cretta.adapt(net(), method, buffer=buffer, **options)
        return [model(x) for x in textbook.batches()]

    result = logits()
    assert "cretta_convolve" in calls
    assert "cretta_batch_norm_relu" in calls
    for back in ("cretta_convolve_backward", "cretta_batch_norm_relu_backward"):
        assert (back in calls) == (method not in ("source", "bn_adapt"))
    calls.clear()
    monkeypatch.setenv("CRETTA_KERNELS", "off")
    plain = logits()
    assert calls == []
    for one, other in zip(result, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
