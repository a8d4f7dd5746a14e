"""Optimizers compute what PyTorch's compute, and no process imports a compiler for them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import forks
from cretta import optimizers
from processes import ENVIRONMENT

CASES: dict[str, list[dict[str, Any]]] = {
    "Adam": [{"lr": 0.1}, {"lr": 0.1, "betas": (0.5, 0.999), "weight_decay": 0.1, "fused": True}],
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "fused": True}],
}
ADAPTED = """
import sys
import cretta, textbook
from cretta.metrics import count_operations, peak_meter
buffer = cretta.SourceBuffer(textbook.source_images(20), augment="none")
x = textbook.batches((8,))[0]
for method in cretta.methods.names():
    model = cretta.adapt(textbook.small_net(), method, buffer=buffer)
    count_operations(model, x)
    with peak_meter(x.device):
        model(x)
    model.load_state_dict(model.state_dict())
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize(("name", "options"), [(name, options) for name, cases in CASES.items() for options in cases])
def test_they_compute_what_pytorch_s_compute(name: str, options: dict[str, Any]) -> None:
    def weights(kind: Any) -> dict[str, torch.Tensor]:
        weight = torch.linspace(-1, 1, 7).requires_grad_()
        optimizer = kind([weight], **options)
        for number in range(5):
            optimizer.zero_grad()
            ((weight - number) ** 4).sum().backward()
            optimizer.step()
            if number == 2:  # a second one continues with the state of the first
                state, optimizer = optimizer.state_dict(), kind([weight], **options)
                optimizer.load_state_dict(state)
        assert weight.requires_grad
        assert weight.grad_fn is None
        return {"weight": weight.detach(), **optimizer.state_dict()["state"].get(0, {})}

    ours, theirs = (weights(getattr(package, name)) for package in (optimizers, torch.optim))
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(value)), key
    assert not torch.equal(ours["weight"], torch.linspace(-1, 1, 7))


@pytest.mark.process
def test_no_method_imports_the_compiler() -> None:
    done = forks.run([sys.executable, "-c", ADAPTED], env=ENVIRONMENT)
    assert done.stdout == "False\n", done.stderr
