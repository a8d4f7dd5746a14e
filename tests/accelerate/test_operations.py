"""The memory-saving operations against PyTorch's: values, gradients, layouts, errors, and what they save."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cretta.accelerate import operations

DOUBLE = torch.float64
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
CONVOLUTIONS: dict[str, tuple[Callable[[], operations.Convolution], tuple[int, ...]]] = {
    "1d": (lambda: nn.Conv1d(4, 6, 3), (3, 4, 11)),
    "1d strided, padded": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2), (3, 4, 11)),
    "2d": (lambda: nn.Conv2d(4, 6, 3), (3, 4, 7, 8)),
    "2d without bias": (lambda: nn.Conv2d(4, 6, 3, bias=False), (3, 4, 7, 8)),
    "2d padded": (lambda: nn.Conv2d(4, 6, (3, 5), padding=(1, 2)), (3, 4, 7, 8)),
    "2d strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (3, 4, 7, 8)),
    "2d strided both ways": (lambda: nn.Conv2d(4, 6, 3, stride=(2, 3)), (3, 4, 7, 8)),
    "2d dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2, padding=1), (3, 4, 7, 8)),
    "2d in groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (3, 4, 7, 8)),
    "2d by channel": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), (3, 4, 7, 8)),
    "2d of one pixel": (lambda: nn.Conv2d(4, 6, 1, stride=2, bias=False), (3, 4, 7, 8)),
    "3d": (lambda: nn.Conv3d(2, 4, 3, stride=(1, 2, 1), padding=1, groups=2), (2, 2, 4, 5, 4)),
}
NORMS: dict[str, tuple[Callable[[], operations.BatchNorm], tuple[int, ...]]] = {
    "1d of rows": (lambda: nn.BatchNorm1d(4), (9, 4)),
    "1d": (lambda: nn.BatchNorm1d(4), (3, 4, 7)),
    "2d": (lambda: nn.BatchNorm2d(4), (3, 4, 5, 6)),
    "2d with a large epsilon": (lambda: nn.BatchNorm2d(4, eps=0.5), (3, 4, 5, 6)),
    "3d": (lambda: nn.BatchNorm3d(4), (2, 4, 3, 2, 3)),
}


def frozen(make: Callable[[], operations.Convolution], device: str = "cpu") -> operations.Convolution:
    torch.manual_seed(0)
    return make().to(device, DOUBLE).eval().requires_grad_(False)


def of_batch(make: Callable[[], operations.BatchNorm], device: str = "cpu") -> operations.BatchNorm:
    """A layer that normalizes with the batch's statistics, as an adapter makes it."""
    torch.manual_seed(0)
    layer = make().to(device, DOUBLE).eval()
    layer.track_running_stats = False
    layer.running_mean = layer.running_var = None
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


def of_training(make: Callable[[], operations.BatchNorm], device: str = "cpu") -> operations.BatchNorm:
    """A layer that normalizes with training's statistics, as it comes."""
    layer = of_batch(make, device)
    layer.track_running_stats = True
    layer.running_mean = torch.linspace(-0.5, 0.5, layer.num_features, device=device, dtype=DOUBLE)
    layer.running_var = torch.linspace(0.3, 2, layer.num_features, device=device, dtype=DOUBLE)
    return layer


STATISTICS = {"batch": of_batch, "training": of_training}


def drawn(shape: tuple[int, ...], device: str = "cpu", *, channels_last: bool = False) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=DOUBLE).to(device) + 0.3
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def results(function: Callable[[Tensor], Tensor], x: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """What ``function`` gives and the gradients, of the input first, that come back for unequal weights."""
    x = x.detach().requires_grad_(True)
    out = function(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=DOUBLE).to(out.device)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), [x, *parameters])]


def assert_equal(result: list[Tensor], expected: list[Tensor]) -> None:
    assert len(result) == len(expected)
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def layouts(shape: tuple[int, ...]) -> list[bool]:
    return [False, True] if len(shape) == 4 else [False]


def saved_tensors(function: Callable[[], Tensor], *known: Tensor) -> list[Tensor]:
    """Tensors that the graph of ``function`` keeps, without ``known``, which are there anyway."""
    there = {tensor.untyped_storage().data_ptr() for tensor in known}
    result: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        where = tensor.untyped_storage().data_ptr()
        if where not in there:
            result[where] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = function()
    assert out.requires_grad
    return list(result.values())


def size(tensors: list[Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


# Convolutions.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_equals_pytorch(case: str, device: str) -> None:
    make, shape = CONVOLUTIONS[case]
    layer = frozen(make, device)
    for channels_last in layouts(shape):
        x = drawn(shape, device, channels_last=channels_last)
        assert_equal(results(lambda x: operations.convolve(layer, x), x, []), results(layer, x, []))


@pytest.mark.parametrize("case", [case for case, (_, shape) in CONVOLUTIONS.items() if len(shape) == 4])
def test_gradients_of_channels_last_images_are_channels_last(case: str) -> None:
    make, shape = CONVOLUTIONS[case]
    layer = frozen(make)
    for channels_last in (True, False):
        x = drawn(shape, channels_last=channels_last)
        out, gradient = results(lambda x: operations.convolve(layer, x), x, [])
        assert out.is_contiguous(memory_format=torch.channels_last) == channels_last
        assert gradient.is_contiguous(memory_format=torch.channels_last) == channels_last


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_the_gradient_of_a_convolution_equals_finite_differences(case: str) -> None:
    make, shape = CONVOLUTIONS[case]
    layer, x = frozen(make), drawn((2, *shape[1:2], *(min(side, 5) for side in shape[2:]))).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: operations.convolve(layer, x), (x,), fast_mode=True)


@pytest.mark.parametrize("learning", ["weight", "bias", "both"])
def test_a_convolution_that_learns_still_gets_its_gradient(learning: str) -> None:
    layer, x = frozen(lambda: nn.Conv2d(4, 6, 3)), drawn((3, 4, 7, 8))
    assert layer.bias is not None
    parameters: list[Tensor] = [p for name, p in layer.named_parameters() if learning in (name, "both")]
    for parameter in parameters:
        parameter.requires_grad_(True)
    result = results(lambda x: operations.convolve(layer, x), x, parameters)
    assert_equal(result, results(layer, x, parameters))
    assert all(gradient.abs().sum() > 0 for gradient in result)


def test_a_convolution_of_images_that_need_no_gradient_makes_no_graph() -> None:
    layer, x = frozen(lambda: nn.Conv2d(4, 6, 3)), drawn((3, 4, 7, 8))
    assert not operations.convolve(layer, x).requires_grad
    with torch.no_grad():
        assert not operations.convolve(layer, x.requires_grad_(True)).requires_grad
    with torch.inference_mode():
        assert torch.equal(operations.convolve(layer, x), layer(x))


def test_one_image_without_a_batch_dimension_is_convolved_as_pytorch_does() -> None:
    layer, x = frozen(lambda: nn.Conv2d(4, 6, 3, padding=1)), drawn((4, 7, 8))
    assert_equal(results(lambda x: operations.convolve(layer, x), x, []), results(layer, x, []))


def test_a_frozen_convolution_does_not_save_its_input() -> None:
    layer, x = frozen(lambda: nn.Conv2d(4, 6, 3, padding=1)), drawn((8, 4, 16, 16))
    weights = list(layer.parameters())

    def after(convolve: Callable[[Tensor], Tensor]) -> list[Tensor]:
        made = (x.detach().requires_grad_(True) * 2).clone()
        return saved_tensors(lambda: convolve(made), *weights)

    assert size(after(layer)) >= x.nbytes
    assert after(lambda x: operations.convolve(layer, x)) == []


# BatchNorm and ReLU.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("case", NORMS)
def test_batch_norm_relu_equals_pytorch(case: str, statistics: str, device: str) -> None:
    make, shape = NORMS[case]
    layer = STATISTICS[statistics](make, device)
    for channels_last in layouts(shape):
        x = drawn(shape, device, channels_last=channels_last)
        parameters: list[Tensor] = [layer.weight, layer.bias]
        result = results(lambda x: operations.batch_norm_relu(layer, x), x, parameters)
        assert_equal(result, results(lambda x: F.relu(layer(x)), x, parameters))
        assert (result[0] == 0).any()
        assert (result[0] > 0).any()
        if len(shape) == 4:
            assert all(t.is_contiguous(memory_format=torch.channels_last) == channels_last for t in result[:2])


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("case", NORMS)
def test_the_gradient_of_batch_norm_relu_equals_finite_differences(case: str, statistics: str) -> None:
    make, shape = NORMS[case]
    layer, x = STATISTICS[statistics](make), drawn(shape).requires_grad_(True)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        twin = copy.copy(layer)
        twin._parameters = {"weight": weight, "bias": bias}  # type: ignore[dict-item]
        return operations.batch_norm_relu(twin, x)

    inputs = (x, layer.weight.detach().requires_grad_(True), layer.bias.detach().requires_grad_(True))
    assert torch.autograd.gradcheck(function, inputs, atol=1e-4)


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("learning", [("weight",), ("bias",), ("x",), ("weight", "bias")])
def test_only_requested_gradients_are_computed(learning: tuple[str, ...], statistics: str) -> None:
    layer, x = STATISTICS[statistics](lambda: nn.BatchNorm2d(4)), drawn((3, 4, 5, 6))
    layer.requires_grad_(False)
    everything = {"x": x, "weight": layer.weight, "bias": layer.bias}
    for name in learning:
        everything[name].requires_grad_(True)
    inputs = [everything[name] for name in learning]
    result = torch.autograd.grad(operations.batch_norm_relu(layer, x).square().sum(), inputs)
    expected = torch.autograd.grad(F.relu(layer(x)).square().sum(), inputs)
    assert_equal(list(result), list(expected))


@pytest.mark.parametrize("statistics", STATISTICS)
def test_without_gradients_the_input_stays_as_it_is(statistics: str) -> None:
    layer, x = STATISTICS[statistics](lambda: nn.BatchNorm2d(4)), drawn((3, 4, 5, 6))
    before = x.clone()
    with torch.no_grad():
        assert torch.equal(operations.batch_norm_relu(layer, x), F.relu(layer(x)))
    assert torch.equal(x, before)
    operations.batch_norm_relu(layer, x.requires_grad_(True)).sum().backward()
    assert torch.equal(x, before)


@pytest.mark.parametrize("statistics", STATISTICS)
def test_batch_norm_relu_saves_its_input_only(statistics: str) -> None:
    layer, x = STATISTICS[statistics](lambda: nn.BatchNorm2d(4)), drawn((8, 4, 16, 16)).requires_grad_(True)
    known = list(layer.parameters())
    plain = saved_tensors(lambda: F.relu(layer(x)), *known)
    saving = saved_tensors(lambda: operations.batch_norm_relu(layer, x), *known)
    large = [tensor for tensor in saving if tensor.nbytes >= x.nbytes]
    assert [tensor.data_ptr() for tensor in large] == [x.data_ptr()]
    assert size(saving) < size(plain) - 0.9 * x.nbytes


def test_one_value_per_channel_works_with_running_statistics() -> None:
    layer, x = of_training(lambda: nn.BatchNorm2d(4)), drawn((1, 4, 1, 1))
    parameters: list[Tensor] = [layer.weight, layer.bias]
    result = results(lambda x: operations.batch_norm_relu(layer, x), x, parameters)
    assert_equal(result, results(lambda x: F.relu(layer(x)), x, parameters))


def test_a_relu_exactly_at_zero_gives_no_gradient() -> None:
    layer = of_batch(lambda: nn.BatchNorm2d(4))
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    x = drawn((3, 4, 5, 6)).requires_grad_(True)
    out = operations.batch_norm_relu(layer, x)
    assert not out.any()
    for gradient in torch.autograd.grad(out.sum(), [x, layer.weight, layer.bias]):
        assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=["float32", "float64"])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3, -7.3])
def test_a_channel_of_one_value_has_pytorchs_gradient(value: float, dtype: torch.dtype) -> None:
    """Its normalized value is 0 but for rounding: the sign of β decides, or for β = 0 that of the rounding."""
    layer = of_batch(lambda: nn.BatchNorm2d(1)).to(dtype)
    for beta in (0.0, 0.2, -0.2):
        nn.init.constant_(layer.bias, beta)
        x = torch.full((2, 1, 4, 4), value, dtype=dtype)
        expected = torch.autograd.grad(F.relu(layer(x)).sum(), layer.bias)[0]
        out = operations.batch_norm_relu(layer, x)
        assert torch.equal(torch.autograd.grad(out.sum(), layer.bias)[0], expected), beta


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.BatchNorm2d(4), (3, 4, 5)),
        (lambda: nn.BatchNorm2d(4), (3, 4)),
        (lambda: nn.BatchNorm1d(4), (3, 4, 5, 5)),
        (lambda: nn.BatchNorm1d(4), (4,)),
        (lambda: nn.BatchNorm3d(4), (3, 4, 5, 5)),
        (lambda: nn.BatchNorm2d(4), (1, 4, 1, 1)),
        (lambda: nn.BatchNorm1d(4), (1, 4)),
        (lambda: nn.BatchNorm2d(4), (3, 5, 2, 2)),
    ],
    ids=["2d of 3", "2d of 2", "1d of 4", "1d of 1", "3d of 4", "one value", "one value of rows", "channels"],
)
def test_error_messages_of_batch_norm_are_pytorchs(make: Any, shape: tuple[int, ...]) -> None:
    layer, x = of_batch(make), drawn(shape)
    with pytest.raises((ValueError, RuntimeError)) as expected:
        layer(x)
    with pytest.raises(type(expected.value)) as result:
        operations.batch_norm_relu(layer, x)
    assert str(result.value) == str(expected.value)
    with torch.no_grad(), pytest.raises(type(expected.value)) as result:
        operations.batch_norm_relu(layer, x)
    assert str(result.value) == str(expected.value)


# In the memory at hand.


@pytest.mark.parametrize("device", DEVICES)
def test_add_in_place_writes_to_its_first_argument(device: str) -> None:
    x, other = drawn((3, 4, 5, 6), device), drawn((3, 4, 5, 6), device).flip(0).requires_grad_(True)
    result = results(lambda x: operations.add_in_place(x * 2, other.exp()), x, [other])
    assert_equal(result, results(lambda x: x * 2 + other.exp(), x, [other]))
    memory = x.clone()
    assert operations.add_in_place(memory, other.detach()).data_ptr() == memory.data_ptr()


@pytest.mark.parametrize("shape", [(4, 5, 6), (1, 4, 1, 1), (3, 1, 5, 6), (2, 3, 4, 5, 6)], ids=str)
def test_sums_that_broadcast_equal_pytorch(shape: tuple[int, ...]) -> None:
    x, other = drawn((3, 4, 5, 6)), drawn(shape).requires_grad_(True)
    assert_equal(
        results(lambda x: operations.add_in_place(x * 2, other), x, [other]),
        results(lambda x: x * 2 + other, x, [other]),
    )


def test_a_sum_of_two_types_has_the_wider_one() -> None:
    x, other = torch.ones(3), torch.ones(3, dtype=DOUBLE)
    assert operations.add_in_place(x, other).dtype == operations.add_in_place(other, x).dtype == DOUBLE


@pytest.mark.parametrize("shape", [(3, 4, 6, 7), (3, 4, 6)], ids=str)
def test_a_slice_that_is_padded_equals_pytorch(shape: tuple[int, ...]) -> None:
    index = (slice(None), slice(None), *[slice(None, None, 2)] * (len(shape) - 2))
    padding = (0, 0) * (len(shape) - 2) + (1, 3)
    for channels_last in layouts(shape):
        x = drawn(shape, channels_last=channels_last)
        result = results(lambda x: operations.slice_and_pad(x, index, padding), x, [])
        assert_equal(result, results(lambda x: F.pad(x[index], padding), x, []))
        if len(shape) == 4:
            assert all(t.is_contiguous(memory_format=torch.channels_last) == channels_last for t in result)
    inputs = (drawn(shape).requires_grad_(),)
    assert torch.autograd.gradcheck(lambda x: operations.slice_and_pad(x, index, padding), inputs, fast_mode=True)


def test_a_second_derivative_raises_as_with_pytorchs_decorator() -> None:
    layer, x = of_batch(lambda: nn.BatchNorm2d(4)), drawn((3, 4, 5, 6)).requires_grad_(True)
    (gradient,) = torch.autograd.grad(operations.batch_norm_relu(layer, x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
