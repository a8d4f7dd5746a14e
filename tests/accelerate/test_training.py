"""The ways to compute a training step against PyTorch in double precision."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cretta.accelerate import kernels, training, winograd
from cretta.models import build

needs_kernels = pytest.mark.skipif(kernels.missing() is not None, reason=f"no kernels here: {kernels.missing()}")


def network() -> nn.Module:
    torch.manual_seed(0)
    return build("wrn-10-1").to(memory_format=torch.channels_last).train()  # type: ignore[call-overload, no-any-return]


def batch(side: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(8, 3, side, side, generator=generator).contiguous(memory_format=torch.channels_last)
    return images, torch.randint(10, (8,), generator=generator)


@needs_kernels
@pytest.mark.parametrize(("inputs", "outputs", "side"), [(16, 16, 8), (32, 16, 7), (16, 48, 5), (16, 16, 1)])
def test_the_gradient_of_a_weight_is_that_of_double_precision(inputs: int, outputs: int, side: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, inputs, side, side, generator=generator).contiguous(memory_format=torch.channels_last)
    g = torch.randn(3, outputs, side, side, generator=generator).contiguous(memory_format=torch.channels_last)
    weight = torch.zeros(outputs, inputs, 3, 3, dtype=torch.float64, requires_grad=True)
    F.conv2d(x.double(), weight, padding=1).backward(g.double())
    assert weight.grad is not None
    torch.testing.assert_close(winograd.weight_gradient(x, g, "avx2").double(), weight.grad, rtol=1e-5, atol=2e-5)


@needs_kernels
def test_the_gradient_of_a_weight_does_not_depend_on_the_number_of_threads() -> None:
    x = torch.randn(9, 16, 10, 10).contiguous(memory_format=torch.channels_last)
    g = torch.randn(9, 32, 10, 10).contiguous(memory_format=torch.channels_last)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(winograd.weight_gradient(x, g, "avx2"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@needs_kernels
def test_a_step_with_kernels_has_the_loss_gradients_and_statistics_of_double_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = network()
    exact, (images, labels) = copy.deepcopy(model).double(), batch()
    calls: list[str] = []
    run = kernels.Library.call

    def call(self: kernels.Library, name: str, *arguments: Tensor | float | None, label: str | None = None) -> None:
        calls.append(label or name)
        run(self, name, *arguments, label=label)

    monkeypatch.setattr(kernels.Library, "call", call)
    loss = F.cross_entropy(training.training_forward(model, "kernels")(images), labels)
    loss.backward()
    expected = F.cross_entropy(exact(images.double()), labels)
    expected.backward()
    assert {"cretta_convolve", "cretta_convolve_backward", "cretta_convolve_weight", "cretta_batch_norm_relu"} <= set(
        calls
    )
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for (name, weight), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert weight.grad is not None
        assert other.grad is not None
        assert float((weight.grad - other.grad).norm() / other.grad.norm()) < 1e-4, name
    for (name, value), precise in zip(model.named_buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(value.double(), precise.double(), rtol=1e-5, atol=1e-6, msg=name)


def test_bfloat16_is_near_and_the_parameters_stay_float32() -> None:
    model, (images, labels) = network(), batch()
    plain = F.cross_entropy(copy.deepcopy(model)(images), labels)
    loss = F.cross_entropy(training.training_forward(model, "bfloat16")(images), labels)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(float(plain.detach()), rel=0.05)
    assert loss.dtype is torch.float32
    assert all(weight.grad is not None and weight.grad.dtype is torch.float32 for weight in model.parameters())


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"plain": 10.0, "kernels": 5.0}, "kernels"),
        ({"plain": 10.0, "kernels": 9.8}, "plain"),
        ({"plain": 10.0, "kernels": 5.0, "bfloat16": 4.0}, "bfloat16"),
    ],
)
def test_the_fastest_is_chosen_unless_it_gains_almost_nothing(
    seconds: dict[str, float], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(time for name in seconds for _ in range(training.TIMED_STEPS) for time in (0.0, seconds[name]))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    monkeypatch.setattr(training, "training_candidates", lambda model, device: list(seconds))
    model, (images, labels) = network(), batch()
    before = copy.deepcopy(model.state_dict())
    assert training.fastest_training_backend(model, images, labels) == (expected, seconds)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_network_that_cannot_be_traced_runs_plainly() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x if x.sum() > 0 else -x)
            return out

    model, (images, _) = Branching(), batch()
    assert training.training_candidates(model, torch.device("cpu"))[:2] in (["plain"], ["plain", "bfloat16"])
    assert training.training_forward(model, "kernels") is model
    assert model(images).shape == (8, 10)
