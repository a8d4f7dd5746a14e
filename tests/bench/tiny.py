"""A small network, as a user's own module would offer it, and runs of it."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from cretta.bench import BatchRow, Buffer, Domain, Result, Run

BASE = Run(
    data="embedded",
    domains=Domain.parse_all("gaussian_noise/5"),
    model="tiny:network",
    images=60,
    batch_size=20,
    buffer=Buffer(size=40),
)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layers(x).mean((2, 3)))
        return logits


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Network().eval()


def without_time(result: Result) -> Result:
    """What must be equal whenever and wherever it is computed."""
    rows: tuple[BatchRow, ...] = tuple(dataclasses.replace(row, seconds=0.0) for row in result.rows)
    return dataclasses.replace(result, rows=rows, provenance={})
