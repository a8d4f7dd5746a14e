"""Drift of the stream's energies from the source's: a test whose false-alarm rate holds at all times."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cretta.errors import OptionError

WIDTH = 25.0
"""ρ of the boundary; it is narrowest, relative to the best for one time, after some hundred images."""


class DriftTest:
    """Tests, image after image, whether energies of the stream have the distribution of source energies.

    An energy e becomes its rank u in [0, 1]: the share of source energies below e, plus half the share of those equal
    to it. Without drift the mean of u is ½, except for the finite number n of source images: by Hoeffding's inequality
    it differs from ½ by more than s = √(ln(4/α) / 2n) with a probability of at most α/2. The sum S_t of u − ½ over t
    independent images leaves ±(t·s + √((t/4 + ρ) ln((t/4 + ρ) / (ρ (α/2)²)))) at any time with a probability of at most
    α/2 (Robbins' normal mixture, for values in an interval of length 1). Together: P(an alarm, ever) ≤ α if there is no
    drift.

    It assumes that images are independent: a stream that is sorted by class may raise an alarm. It sees a shift of the
    mean rank, not a change of the spread alone.
    """

    def __init__(self, source_energies: Tensor, alpha: float = 0.01) -> None:
        if not 0 < alpha < 1:
            raise OptionError(f"alpha={alpha!r}: expected a number above 0 and below 1.")
        self._source = source_energies.detach().double().cpu().sort().values
        self.alpha = alpha
        self.images = 0
        self.sum = 0.0
        self.detected_after: int | None = None
        """How many images there were at the first alarm."""

    def update(self, energies: Tensor) -> bool:
        """Add energies of a batch of the stream; return whether drift is detected, now or earlier."""
        self.sum += float((self.ranks(energies) - 0.5).sum())
        self.images += len(energies)
        if self.detected_after is None and abs(self.sum) > self.boundary:
            self.detected_after = self.images
        return self.detected_after is not None

    @property
    def mean_rank(self) -> float:
        """Mean rank of all energies so far: near 1 for high ones."""
        return 0.5 + self.sum / self.images if self.images else math.nan

    def ranks(self, energies: Tensor) -> Tensor:
        """Return the rank of each energy among the source energies."""
        energies = energies.detach().double().cpu()
        # In the middle of equal values: a source distribution with ties has a mean rank of ½ too.
        below = torch.searchsorted(self._source, energies) + torch.searchsorted(self._source, energies, right=True)
        return below / (2 * len(self._source))

    @property
    def boundary(self) -> float:
        """What |S_t| exceeds at the present time only if there is drift, or with a probability of at most α."""
        variance = self.images / 4 + WIDTH
        source = math.sqrt(math.log(4 / self.alpha) / (2 * len(self._source)))
        return self.images * source + math.sqrt(variance * math.log(variance / (WIDTH * (self.alpha / 2) ** 2)))
