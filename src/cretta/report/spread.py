"""How far two measured numbers must differ before one of them is better."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from statistics import fmean, stdev, variance

from cretta.bench import BatchRow, Result
from cretta.report.content import Cell

FEWEST = 3
"""Blocks of batches below which their spread is unknown."""
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t for two-sided tests at 5 %, for 2 to 10 values."""
BLOCKS = len(_T) + 1
"""Blocks of batches at most."""


def margin(a: Cell, b: Cell) -> float:
    """Return how far two numbers may differ by chance: paired t-tests at 5 %; infinity where no spread is known.

    The larger margin counts, of that over blocks of batches, in which both methods had the same images, and that over
    the seeds that both were run with. Blocks of other images are independent: their differences have the spread of
    both. Where the numbers of blocks differ, the test is not paired. Numbers without blocks are exact.
    """
    if a.blocks is None or b.blocks is None:
        return 0.0
    fewest = min(len(a.blocks), len(b.blocks))
    if fewest < FEWEST:
        return math.inf
    if len(a.blocks) != len(b.blocks):
        return _T[fewest - 2] * math.sqrt(sum(variance(blocks) / len(blocks) for blocks in (a.blocks, b.blocks)))
    blocks = [x - y for x, y in zip(a.blocks, b.blocks, strict=True)]
    seeds = [a.seeds[seed] - b.seeds[seed] for seed in a.seeds.keys() & b.seeds.keys()]
    return max(
        _T[min(len(values), BLOCKS) - 2] * stdev(values) / math.sqrt(len(values))
        for values in (blocks, seeds)
        if len(values) > 1
    )


def on_same_seeds(a: Cell, b: Cell) -> tuple[float, float]:
    """Return the values of two measured cells over the seeds that both have, as :func:`margin` compares them.

    >>> on_same_seeds(Cell(2.0, seeds={0: 1.0, 1: 3.0}), Cell(1.5, seeds={0: 1.5}))
    (1.0, 1.5)
    """
    common = a.seeds.keys() & b.seeds.keys()
    if not common:
        return a.value or 0.0, b.value or 0.0
    return fmean(a.seeds[seed] for seed in common), fmean(b.seeds[seed] for seed in common)


def blocks_of(results: Sequence[Result]) -> list[list[Result]]:
    """Return the results with only the batches of each block in turn; nothing where a domain has too few batches."""
    streams = [list(_by_domain(result).values()) for result in results]
    count = min(BLOCKS, *(len(rows) for domains in streams for rows in domains))
    if count < FEWEST:
        return []
    return [
        [
            dataclasses.replace(result, rows=_block(domains, number, count))
            for result, domains in zip(results, streams, strict=True)
        ]
        for number in range(count)
    ]


def _by_domain(result: Result) -> dict[str, list[BatchRow]]:
    """Return the rows of each domain; those of a mixed stream, where each batch may have other domains, together."""
    domains: dict[str, list[BatchRow]] = {}
    for row in result.rows:
        domains.setdefault("" if result.run.stream == "mixed" else row.domain, []).append(row)
    return domains


def _block(domains: Sequence[Sequence[BatchRow]], number: int, count: int) -> tuple[BatchRow, ...]:
    return tuple(row for rows in domains for index, row in enumerate(rows) if index * count // len(rows) == number)
