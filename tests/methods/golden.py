"""What the tests of the methods share: a small network in double precision, and ways to compare and to count.

The methods themselves are written again in the test files, each from its formula; nothing of cretta's arithmetic is
used there.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook

AnyAdapter = cretta.Adapter[Any]
DOUBLE = torch.float64
TOLERANCE = 1e-8


def net(confidence: float = 1.0, classes: int = textbook.CLASSES, dtype: torch.dtype = DOUBLE) -> textbook.SmallNet:
    """A network whose running statistics differ much from the stream's; ``confidence`` multiplies its logits."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = textbook.SmallNet(6, classes).to(dtype)
    made.fc.weight.data.mul_(6)
    textbook.settle(made, textbook.source_images(48, seed=100, dtype=dtype).split(8))
    made.fc.weight.data.mul_(confidence)
    made.fc.bias.data.mul_(confidence)
    return made


def stream(sizes: Sequence[int] = (8, 8, 8, 8), dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return textbook.batches(sizes, dtype=dtype)


def probabilities(logits: Tensor) -> Tensor:
    return torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)


def twin(source: nn.Module) -> tuple[nn.Module, list[nn.Parameter]]:
    """A deep copy that normalizes with the batch at hand, and its γ and β."""
    copied = textbook.batch_statistics(source)
    return copied, textbook.affine(copied)


Statistics = dict[str, tuple[Tensor, Tensor]]


def running(source: textbook.SmallNet) -> Statistics:
    """Mean and variance of training, for each BatchNorm."""
    found = {}
    for name, layer in (("bn1", source.bn1), ("bn2", source.bn2)):
        assert layer.running_mean is not None
        assert layer.running_var is not None
        found[name] = (layer.running_mean.clone(), layer.running_var.clone())
    return found


def blended(theta: nn.Module, x: Tensor, base: Statistics, share: float) -> tuple[Tensor, Statistics]:
    """The small network by hand, normalized with ``share`` of the batch's statistics and the rest of ``base``'s.

    Also returns the statistics used.
    """
    assert isinstance(theta, textbook.SmallNet)
    used: Statistics = {}
    h = x
    for name, convolution, layer in (("bn1", theta.conv1, theta.bn1), ("bn2", theta.conv2, theta.bn2)):
        h = convolution(h)
        mean = (1 - share) * base[name][0] + share * h.mean((0, 2, 3))
        variance = (1 - share) * base[name][1] + share * h.var((0, 2, 3), unbiased=False)
        used[name] = (mean.detach(), variance.detach())
        h = (h - mean.view(-1, 1, 1)) / torch.sqrt(variance.view(-1, 1, 1) + layer.eps)
        h = torch.relu(layer.weight.view(-1, 1, 1) * h + layer.bias.view(-1, 1, 1))
    logits: Tensor = theta.fc(h.mean((2, 3)))
    return logits, used


def values(parameters: Sequence[Tensor]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


def mean(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total / len(tensors)


@dataclasses.dataclass
class Step:
    """What a textbook method made of a batch, and the model it left behind."""

    theta: nn.Module
    logits: Tensor
    loss: float | None
    kept: int
    gradients: dict[str, Tensor]
    reset: bool = False

    @classmethod
    def of(cls, theta: nn.Module, logits: Tensor, loss: Tensor | None, kept: int = -1, *, reset: bool = False) -> Step:
        gradients = {n: p.grad.detach().clone() for n, p in theta.named_parameters() if p.grad is not None}
        value = None if loss is None else loss.item()
        return cls(copy.deepcopy(theta), logits.detach(), value, kept, gradients, reset)


def kinds(run: Sequence[Step]) -> list[str]:
    """For each batch, whether none, some or all of its samples were kept."""
    return ["none" if step.kept == 0 else "all" if step.kept == len(step.logits) else "some" for step in run]


# Comparing.


def assert_logits(got: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def assert_close(got: Tensor, expected: Tensor, name: str, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, msg=lambda message: f"{name}: {message}")


def assert_parameters(model: AnyAdapter, theta: nn.Module, tolerance: float = TOLERANCE) -> None:
    """Every parameter of the adapter's network is that of ``theta``."""
    mine, theirs = dict(model.model.module.named_parameters()), dict(theta.named_parameters())
    assert mine.keys() == theirs.keys()
    for name, parameter in theirs.items():
        assert_close(mine[name].data, parameter.data, name, tolerance)


def assert_gradients(model: AnyAdapter, gradients: Mapping[str, Tensor], tolerance: float = TOLERANCE) -> None:
    """The gradients that the adapter stepped by."""
    mine = {n: p for n, p in model.model.module.named_parameters() if p.requires_grad}
    assert mine.keys() == gradients.keys()
    for name, gradient in gradients.items():
        got = mine[name].grad
        assert got is not None, name
        assert_close(got, gradient, name, tolerance)


def everything(model: AnyAdapter) -> dict[str, Tensor]:
    """All that evolves, and all tensors of the adapting network besides."""
    found = model.state.snapshot()
    for name, tensor in [*model.model.module.named_parameters(), *model.model.module.named_buffers()]:
        found[f"module.{name}"] = tensor.detach().clone()
    return found


def tensors(source: nn.Module) -> dict[str, Tensor]:
    return {n: t.detach().clone() for n, t in [*source.named_parameters(), *source.named_buffers()]}


def assert_skips(model: AnyAdapter, x: Tensor, reason: str) -> Tensor:
    """The batch changes nothing to the bit, and the record says why; returns the logits."""
    before = everything(model)
    logits = model(x)
    textbook.assert_bits(everything(model), before)
    last = model.last
    assert (last.size, last.adapted, last.skipped) == (len(x), False, True)
    assert reason in last.reason
    assert last.energy is not None
    assert not logits.requires_grad
    return logits


def assert_adapted(model: AnyAdapter, loss: float, reason: str | None = "") -> None:
    """The batch was learned from, and the record says so."""
    last = model.last
    assert (last.adapted, last.skipped) == (True, False)
    assert last.loss == pytest.approx(loss, rel=TOLERANCE, abs=TOLERANCE)
    assert reason is None or last.reason == reason


def default_optimizer(model: AnyAdapter) -> dict[str, Any]:
    """What the optimizer's one group of parameters says, with its kind."""
    assert model.state.optimizer is not None
    (group,) = model.state.optimizer.param_groups
    return {"kind": type(model.state.optimizer), **group}


# Networks with faults.


@contextmanager
def failing_at(forward: int) -> Iterator[None]:
    textbook.Failing.count, textbook.Failing.fails = 0, forward
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            yield
    finally:
        textbook.Failing.fails = -1


class NotANumber(torch.autograd.Function):
    """The identity, with a gradient that is not a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        return slopes[0] * math.nan


class Touchy(textbook.SmallNet):
    """Answers a batch that holds a value above 100 with a gradient that is not a number."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if bool((x <= 100).all()):
            return logits
        answered: Tensor = NotANumber.apply(logits)  # type: ignore[no-untyped-call]
        return answered


def touchy(source: nn.Module) -> Touchy:
    made = Touchy(6, len(source.get_parameter("fc.bias"))).to(source.get_parameter("fc.bias").dtype)
    made.load_state_dict(source.state_dict())
    return made.eval()


def touching(x: Tensor) -> Tensor:
    touched = x.clone()
    touched[0, 0, 0, 0] = 101.0
    return touched


# Counting.


class Passes:
    """Counts passes forward and back through all networks of an adapter, with the sizes of their batches.

    Counted at the head, a layer that a rewritten network keeps.
    """

    def __init__(self, model: AnyAdapter) -> None:
        self.forwards: list[int] = []
        self.backwards: list[int] = []
        heads = [network.module.get_submodule("fc") for network in (model.model, *model._frozen.values())]
        self._handles = [head.register_forward_hook(self._forward) for head in heads]

    def _forward(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        size = len(inputs[0])
        if textbook.in_verification():
            return
        self.forwards.append(size)
        if output.requires_grad:
            output.register_hook(lambda gradient: self.backwards.append(size))

    def __enter__(self) -> Passes:
        return self

    def __exit__(self, *wrong: object) -> None:
        for handle in self._handles:
            handle.remove()


def saved_and_restored(model: AnyAdapter, fresh: AnyAdapter, path: Path) -> AnyAdapter:
    model.save(path)
    fresh.restore(path)
    textbook.assert_bits(fresh.state.snapshot(), model.state.snapshot())
    return fresh


def resume_equals(make: Callable[[], AnyAdapter], batches: Sequence[Tensor], after: int, path: Path) -> AnyAdapter:
    """Saving after some batches and going on in a fresh adapter gives the same bits as never having left."""
    straight = make()
    expected = [straight(x) for x in batches]
    left = make()
    for x in batches[:after]:
        left(x)
    taken_up = saved_and_restored(left, make(), path)
    for x, logits in zip(batches[after:], expected[after:], strict=True):
        assert torch.equal(taken_up(x), logits)
    textbook.assert_bits(everything(taken_up), everything(straight))
    return straight


def reset_equals(model: AnyAdapter, batches: Sequence[Tensor]) -> None:
    """A reset brings the source state back to the bit, and the same run after it."""
    first = copy.deepcopy(everything(model))
    before = [model(x) for x in batches]
    later = everything(model)
    assert any(not torch.equal(later[n], first.get(n, torch.empty(0))) for n in later)
    model.reset()
    textbook.assert_bits(everything(model), first)
    for x, logits in zip(batches, before, strict=True):
        assert torch.equal(model(x), logits)
    textbook.assert_bits(everything(model), later)


def assert_run(model: AnyAdapter, stream: Sequence[Tensor], expected: Sequence[Step]) -> None:
    """Every batch adapted, with the loss, logits, gradients and parameters of the textbook."""
    for x, step in zip(stream, expected, strict=True):
        logits = model(x)
        assert step.loss is not None
        assert_adapted(model, step.loss)
        assert_logits(logits, step.logits)
        assert_gradients(model, step.gradients)
        assert_parameters(model, step.theta)
