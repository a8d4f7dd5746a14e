"""How far two measured numbers must differ before one of them is better."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from statistics import variance

import numpy as np

from cretta.bench import BatchRow, Result
from cretta.errors import OptionError
from cretta.report.content import Cell

BLOCKS = 10
"""Blocks of batches at most: enough degrees of freedom, and quick for long streams."""
FEWEST = 3
"""Batches below which their spread is unknown."""
ROUNDING = 1e-5
"""Relative differences below this are those of float32 sums in another order."""
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t for two-sided tests at 5 %, from 1 to 10 degrees of freedom."""


def margin(a: Cell, b: Cell) -> float:
    """Return how far two numbers may differ by chance: a paired t-test at 5 %; infinity where no spread is known.

    The variance of the difference is that over blocks of batches, in which both methods had the same images, plus that
    over the seeds that both were run with. Numbers without blocks are exact.
    """
    if a.blocks is None or b.blocks is None or a.value is None or b.value is None:
        return 0.0
    batches = [x - y for x, y in zip(a.blocks, b.blocks, strict=True)] if len(a.blocks) == len(b.blocks) else []
    seeds = [a.seeds[seed] - b.seeds[seed] for seed in a.seeds.keys() & b.seeds.keys()]
    # Variances of the means.
    parts = [(variance(values) / len(values), len(values) - 1) for values in (batches, seeds) if len(values) > 1]
    total = math.fsum(part for part, _ in parts)
    if not math.sqrt(total) > ROUNDING * max(abs(a.value), abs(b.value)):
        # What no batch changes is exact, as GFLOPs; otherwise there are too few batches or seeds to show a spread.
        return 0.0 if len(set(a.blocks)) == len(set(b.blocks)) == 1 else math.inf
    # Degrees of freedom of a sum of variances, by Welch and Satterthwaite.
    freedom = total**2 / math.fsum(part**2 / degrees for part, degrees in parts)
    # Between integer degrees of freedom log t is interpolated over their inverse.
    t = math.exp(np.interp(-1 / freedom, -1 / np.arange(1, len(_T) + 1), np.log(_T)))
    return t * math.sqrt(total)


def jackknife(results: Sequence[Result], value: Callable[[list[Result]], float]) -> tuple[float, ...]:
    """Return the jackknife pseudo-values of a number over blocks of batches; none where the stream is too short.

    Their mean has the spread of the number, also where that is not a mean over images, as ECE.
    """
    try:
        return pseudo_values(value(list(results)), [value(rest) for rest in less_one_block(results)])
    except OptionError:  # such as a source model that makes no error in the remaining batches
        return ()


def pseudo_values(total: float | None, rest: Sequence[float | None]) -> tuple[float, ...]:
    """Return n·θ - (n - 1)·θ₋ₖ for each of the n values θ₋ₖ without block k; nothing where any is missing."""
    known = [value for value in rest if value is not None]
    if total is None or len(known) < len(rest):
        return ()
    return tuple(total + (len(rest) - 1) * (total - value) for value in known)


def less_one_block(results: Sequence[Result]) -> list[list[Result]]:
    """Return the results without each block of batches in turn; nothing where a domain has too few batches."""
    streams = [list(_by_domain(result).values()) for result in results]
    count = min(BLOCKS, *(len(rows) for domains in streams for rows in domains))
    if count < FEWEST:
        return []
    return [
        [
            # What does not come from the batches has no spread over them.
            dataclasses.replace(result, rows=_without(domains, block, count), clean_after=None)
            for result, domains in zip(results, streams, strict=True)
        ]
        for block in range(count)
    ]


def _by_domain(result: Result) -> dict[str, list[BatchRow]]:
    """Return the rows of each domain; those of a mixed stream, where each batch may have other domains, together."""
    domains: dict[str, list[BatchRow]] = {}
    for row in result.rows:
        domains.setdefault("" if result.run.stream == "mixed" else row.domain, []).append(row)
    return domains


def _without(domains: Sequence[Sequence[BatchRow]], block: int, count: int) -> tuple[BatchRow, ...]:
    return tuple(row for rows in domains for index, row in enumerate(rows) if index * count // len(rows) != block)
