"""Results as a store would give them, made up: quick, and the same every time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from cretta.bench import BatchRow, Result, Run
from cretta.metrics import BatchScores

BINS = 10


def scores_of(rows: Sequence[BatchRow]) -> BatchScores:
    """The scores of all rows together."""
    return BatchScores.sum(row.scores for row in rows)


def made_row(batch: int, domain: str, images: int, skill: float, draw: random.Random, *, learns: bool) -> BatchRow:
    """Predictions whose confidence lies above their chance to be right."""
    count, confidence, right = [0] * BINS, [0.0] * BINS, [0] * BINS
    for _ in range(images):
        sure = min(0.999, max(0.11, draw.betavariate(5, 1.6)))
        index = min(BINS - 1, int(sure * BINS))
        count[index] += 1
        confidence[index] += sure
        right[index] += draw.random() < sure - 0.3 + 0.35 * skill
    return BatchRow(
        batch=batch,
        domain=domain,
        images=images,
        right=sum(right),
        confidence=sum(confidence),
        negative_log_likelihood=images * draw.uniform(0.5, 1.2),
        brier=images * draw.uniform(0.2, 0.5),
        energy=-5 - draw.random(),
        bin_images=tuple(count),
        bin_confidence=tuple(confidence),
        bin_right=tuple(right),
        source_energy=-8 - draw.random() if learns else None,
        weight=0.5 + 0.01 * draw.random() if learns else None,
        loss=draw.random() if learns else None,
        adapted=learns,
        skipped=learns and batch == 2,
        reason="the loss is not finite" if learns and batch == 2 else "",
        seconds=0.25,
    )


def made_result(
    method: str = "cretta",
    domains: tuple[str, ...] = ("fog/5",),
    seed: int = 0,
    *,
    skill: float = 0.6,
    batches: int = 6,
    images: int = 20,
    options: dict[str, Any] | None = None,
    materials: dict[str, str] | None = None,
    **run: Any,
) -> Result:
    """A result of so many batches of each domain; ``run`` is over the fields of its description."""
    described = {
        "data": "embedded",
        "domains": list(domains),
        "model": "wrn-40-2-cifar10",
        "method": method,
        "preset": None,
        "options": options or {},
        "stream": "iid" if len(domains) == 1 else "continual",
        "delta": None,
        "images": batches * images,
        "size": None,
        "batch_size": images,
        "buffer": {"data": "", "size": 0.1, "select": "random"},
        "seed": seed,
        **run,
    }
    draw = random.Random(repr(described))
    rows = [
        made_row(index * batches + batch, domain, images, skill, draw, learns=method == "cretta")
        for index, domain in enumerate(domains)
        for batch in range(batches)
    ]
    return Result(
        key=f"{draw.getrandbits(96):024x}",
        run=Run.from_description(described),
        rows=tuple(rows),
        cost={"gflops": 131.5, "paper_gflops": 131.5, "peak_megabytes": 402.25},
        provenance={
            "materials": materials or {"model": "aa", "target": "bb", "corruptions": "generated"},
            "versions": {"python": "3.11.7", "cretta": "0.1.0", "torch": "2.13.0"},
            "commit": None,
            "machine": {"system": "Linux", "cores": 2, "threads": 1, "device": "cpu"},
        },
    )


def comparison(
    methods: tuple[str, ...] = ("source", "tent", "cretta"), seeds: int = 2, images: int = 20
) -> list[Result]:
    """Methods on two shifts, each better than the one before."""
    return [
        made_result(method, (shift,), seed, skill=0.2 + 0.3 * index, images=images)
        for index, method in enumerate(methods)
        for shift in ("fog/5", "snow/5")
        for seed in range(seeds)
    ]
