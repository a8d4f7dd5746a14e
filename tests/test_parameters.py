"""Parameters in one piece of memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cretta.parameters import FlatParameters


def parameters() -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3,), "b": (2, 2), "c": (1,), "d": (4,)}
    kinds = {"c": torch.float64}
    return [
        (name, nn.Parameter(torch.randn(*shape, generator=generator).to(kinds.get(name, torch.float32))))
        for name, shape in shapes.items()
    ]


def test_values_survive_being_laid_out() -> None:
    named = parameters()
    before = [parameter.detach().clone() for _, parameter in named]
    flat = FlatParameters(named)
    assert flat.names == ("a", "b", "c", "d")
    for (_, parameter), value in zip(named, before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.requires_grad
    assert {(piece.dtype, piece.numel()) for piece in flat.flat} == {(torch.float32, 11), (torch.float64, 1)}


def test_gradients_and_steps_pass_through_the_one_piece() -> None:
    named = parameters()
    flat = FlatParameters(named)
    expected = [p.detach().clone().requires_grad_() for _, p in named]

    def loss(values: list[Tensor]) -> Tensor:
        return torch.stack([(k + 1) * v.double().square().sum() for k, v in enumerate(values)]).sum()

    stepper = torch.optim.SGD(flat.flat, lr=0.05, momentum=0.9)
    plain = torch.optim.SGD(expected, lr=0.05, momentum=0.9)
    for _ in range(3):
        flat.zero_grad()
        loss([p for _, p in named]).backward()
        stepper.step()
        plain.zero_grad()
        loss(list(expected)).backward()
        plain.step()
    for (name, parameter), value in zip(named, expected, strict=True):
        torch.testing.assert_close(parameter.data, value.data, msg=name)
        assert parameter.grad is not None
        assert value.grad is not None
        torch.testing.assert_close(parameter.grad, value.grad, msg=name)


def test_clearing_keeps_the_gradients_where_they_are() -> None:
    named = parameters()
    flat = FlatParameters(named)
    where = [p.grad.data_ptr() for _, p in named if p.grad is not None]
    torch.stack([p.double().sum() for _, p in named]).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for _, p in named)
    flat.zero_grad()
    assert all(p.grad is not None and p.grad.abs().sum() == 0 for _, p in named)
    assert [p.grad.data_ptr() for _, p in named if p.grad is not None] == where
