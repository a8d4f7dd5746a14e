"""PyTorch's optimizers without its compiler, which they import when they are made: two seconds in each new process.

The functions are PyTorch's own, without the decorators that hide them from a compiler; nothing here is compiled.
"""

from __future__ import annotations

import inspect

import torch
from torch.optim import Optimizer


class _Plain(Optimizer):
    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


class Adam(_Plain, torch.optim.Adam):
    """:class:`torch.optim.Adam`."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class SGD(_Plain, torch.optim.SGD):
    """:class:`torch.optim.SGD`."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))
