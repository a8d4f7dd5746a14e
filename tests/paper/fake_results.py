"""Results of runs that were never executed, with numbers that are easy to compute by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cretta.bench import BatchRow, Result, Run
from cretta.paper import Scale

Share = Callable[[Run, str, int], float]
"""A number by run, domain (as the row names it) and index of the batch in that domain."""


def row(
    batch: int, domain: str, images: int, right: float, confidence: float, energy: float, weight: float | None
) -> BatchRow:
    """All images in one bin: the calibration error of any such rows is |mean confidence - accuracy|."""
    count = round(right * images)
    return BatchRow(
        batch=batch,
        domain=domain,
        images=images,
        right=count,
        confidence=confidence * images,
        negative_log_likelihood=0.0,
        brier=0.0,
        energy=energy,
        bin_images=(0,) * 9 + (images,),
        bin_confidence=(0.0,) * 9 + (confidence * images,),
        bin_right=(0,) * 9 + (count,),
        source_energy=None,
        weight=weight,
        loss=None,
        adapted=True,
        skipped=False,
        reason="",
        seconds=0.1,
    )


def result(
    run: Run,
    right: Share = lambda run, domain, batch: 0.5,
    confidence: Share = lambda run, domain, batch: 0.75,
    energy: Share = lambda run, domain, batch: -1.0,
    weight: Share = lambda run, domain, batch: 0.25,
    batches: int = 2,
    images: int = 1000,
) -> Result:
    """Return a result with this many batches of this many images in each domain."""
    rows: list[BatchRow] = []
    for stage in range(len(run.domains)):
        domain = run.label(stage)
        for batch in range(batches):
            key = (run, domain, batch)
            rows.append(row(len(rows), domain, images, right(*key), confidence(*key), energy(*key), weight(*key)))
    return Result(
        key="key",
        run=run,
        rows=tuple(rows),
        cost={"gflops": 4.0, "paper_gflops": 2.0, "peak_megabytes": 7.0},
        provenance={"materials": {"corruptions": "generated"}},
    )


def results(runs: Iterable[Run], **values: Any) -> dict[Run, Result]:
    return {run: result(run, **values) for run in runs}


def everything(scale: Scale) -> list[Run]:
    from cretta.paper import items

    return list(dict.fromkeys(run for item in items().values() for run in item.plan(scale)))
