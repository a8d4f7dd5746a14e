"""The choice by timing: the fastest is taken, remembered and recorded, can be pinned, and says what it measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta.accelerate import choices, kernels, operations
from cretta.accelerate.choices import PYTORCH, Shape
from cretta.models import WideResNet

AVX2 = not isinstance(kernels._paths("avx2"), str)
needs_kernels = pytest.mark.skipif(not AVX2, reason=f"no kernels here: {kernels._paths('avx2')}")
SHAPE = Shape("convolution", 8, 32, 32, 16, 16)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing chosen, and the choice by timing."""
    monkeypatch.setenv("CRETTA_KERNELS", "auto")
    choices.forget()
    yield
    choices.forget()


class Clock:
    """A clock that functions move forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.runs: list[str] = []
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def runs_for(self, **milliseconds: float) -> Callable[[], dict[str, Callable[[], object]]]:
        def of(name: str) -> Callable[[], object]:
            def run() -> None:
                # The first run of each takes longer, and does not count.
                self.now += milliseconds[name] / 1e3 * (1 if name in self.runs else 100)
                self.runs.append(name)

            return run

        return lambda: {name: of(name) for name in milliseconds}


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        ({"avx512": 2.0, "avx2": 3.0, PYTORCH: 4.0}, "avx512"),
        ({"avx512": 5.0, "avx2": 3.0, PYTORCH: 4.0}, "avx2"),
        ({"avx512": 5.0, "avx2": 6.0, PYTORCH: 4.0}, PYTORCH),
        ({"avx2": 4.1, PYTORCH: 4.0}, "avx2"),  # within the margin, the preferred one
    ],
)
def test_the_fastest_is_chosen_once(
    milliseconds: dict[str, float], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    assert choices.chosen(SHAPE) is None
    assert choices.fastest(SHAPE, clock.runs_for(**milliseconds)) == expected
    taken = len(clock.runs)
    assert 3 * len(milliseconds) <= taken <= choices.ROUNDS * len(milliseconds)
    assert choices.fastest(SHAPE, clock.runs_for(**milliseconds)) == expected
    assert len(clock.runs) == taken
    (choice,) = choices.choices()
    assert choice.milliseconds == pytest.approx(milliseconds)
    assert f"{expected} (" in str(choice)
    assert f"pytorch {milliseconds[PYTORCH]:.2f} ms" in str(choice)
    assert choices.record() == {"convolution, 8 × 32 × 16 × 16": expected}


def test_a_recorded_choice_is_used_without_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    choices.fastest(SHAPE, clock.runs_for(avx2=1.0, pytorch=9.0))
    record = json.loads(json.dumps(choices.record()))
    choices.forget()
    clock.runs.clear()
    choices.pin(dict.fromkeys(record, PYTORCH))
    assert choices.fastest(SHAPE, clock.runs_for(avx2=1.0, pytorch=9.0)) == PYTORCH
    assert clock.runs == []
    assert "pinned" in str(choices.choices()[0])


def test_what_this_processor_lacks_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    choices.pin({str(SHAPE): "avx512"})
    assert choices.fastest(SHAPE, Clock(monkeypatch).runs_for(avx2=1.0, pytorch=9.0)) == "avx2"


def test_large_batches_share_the_choice() -> None:
    assert choices.sampled(200, 32, 32, 32) == choices.sampled(100, 32, 32, 32) == 8
    assert choices.sampled(3, 32, 32, 32) == 3
    assert choices.sampled(3, 512, 56, 56) == 1


# In operations.


def channels_last(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=torch.channels_last)


def pinned_to(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``kernel`` the fastest, whatever it takes; PyTorch if it is not a candidate."""
    monkeypatch.setattr(
        choices, "timed", lambda runs: {name: 1.0 if name == kernel else 2.0 + (name != PYTORCH) for name in runs}
    )


@needs_kernels
@pytest.mark.parametrize("kernel", ["avx2", "avx2 4x4", PYTORCH])
def test_operations_use_what_was_chosen(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gives the values and gradients of PyTorch, by the kernels that were chosen and no others."""
    pinned_to(kernel, monkeypatch)
    calls: list[tuple[str, int]] = []
    run = kernels.Library.call

    def call(self: kernels.Library, name: str, path: int, *arguments: Tensor, label: str | None = None) -> None:
        calls.append((label or name, int(arguments[0]) if name == "cretta_convolve" else 0))
        run(self, name, path, *arguments, label=label)

    monkeypatch.setattr(kernels.Library, "call", call)
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 32, 3, padding=1).requires_grad_(False)
    norm = nn.BatchNorm2d(16, track_running_stats=False).eval()
    x = channels_last(4, 16, 9, 7).requires_grad_()
    result = operations.batch_norm_relu_convolve(norm, layer, x)
    gradients = torch.autograd.grad(result.square().sum(), (x, norm.weight, norm.bias))
    expected = layer(torch.relu(norm(x)))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
    exact = torch.autograd.grad(expected.square().sum(), (x, norm.weight, norm.bias))
    for one, other in zip(gradients, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(operations.convolve(layer, norm(x)), layer(norm(x)), rtol=0, atol=1e-4)
    by_kernels = {
        "avx2": [
            ("cretta_batch_norm_relu", 0),
            ("cretta_convolve", 2),
            ("cretta_convolve_backward", 2),
            ("cretta_batch_norm_relu_backward", 0),
            ("cretta_convolve", 2),
        ],
        "avx2 4x4": [("cretta_convolve", 4), ("cretta_convolve_backward", 4), ("cretta_convolve", 4)],
        PYTORCH: [],
    }
    assert calls == by_kernels[kernel]


def wide_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return textbook.settle(WideResNet(10, 1, 5), textbook.source_images(32).split(8))


@needs_kernels
def test_the_backend_shows_the_choices_of_its_network_with_times() -> None:
    operations.convolve(nn.Conv2d(48, 48, 3, padding=1).requires_grad_(False), channels_last(2, 48, 6, 6))
    model = cretta.adapt(wide_net(), "tent")
    model(textbook.batches((6,))[0])
    backend = model.backend
    assert backend.name == "kernels"
    assert f"of {len(backend.choices)} shapes" in str(backend)
    operations_chosen = {choice.shape.operation for choice in backend.choices}
    assert {
        "convolution",
        "convolution backward",
        "BatchNorm ReLU, batch statistics, and backward",
    } <= operations_chosen
    assert all(choice.milliseconds and choice.shape.inputs != 48 for choice in backend.choices)
    assert backend.record() == {str(choice.shape): choice.kernel for choice in backend.choices}


@needs_kernels
def test_a_restored_adapter_uses_the_choices_of_the_saved_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that restores measures something else, and continues bit for bit all the same."""
    stream = textbook.batches((6, 6))
    pinned_to("avx2", monkeypatch)
    model = cretta.adapt(wide_net(), "tent")
    model(stream[0])
    model.save(tmp_path / "state.safetensors")
    recorded, expected = model.backend.record(), model(stream[1])
    assert "avx2" in recorded.values()
    choices.forget()
    pinned_to(PYTORCH, monkeypatch)
    again = cretta.adapt(wide_net(), "tent")
    again.restore(tmp_path / "state.safetensors")
    assert torch.equal(again(stream[1]), expected)
    assert again.backend.record() == recorded


@needs_kernels
def test_a_file_of_choices_pins_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, layer = channels_last(2, 16, 6, 6), nn.Conv2d(16, 16, 3, padding=1).requires_grad_(False)
    pinned_to("avx2", monkeypatch)
    operations.convolve(layer, x)
    recorded = choices.record()
    file = tmp_path / "choices.json"
    file.write_text(json.dumps(dict.fromkeys(recorded, PYTORCH)))
    choices.forget()
    monkeypatch.setenv("CRETTA_KERNELS", str(file))
    assert torch.equal(operations.convolve(layer, x), layer(x))
    assert choices.record() == dict.fromkeys(recorded, PYTORCH)
