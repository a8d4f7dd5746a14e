"""Results that never ran, with numbers to reckon by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cretta.bench import BatchRow, Result, Run
from cretta.paper import Scale

Share = Callable[[Run, str, int], float]
"""Of a run, a domain's name as the row has it, and the batch in that domain."""


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
    """So many batches of so many images in each domain."""
    rows: list[BatchRow] = []
    for place, name in enumerate(run.domains):
        domain = f"{name} again" if run.stream == "gradual" and place == len(run.domains) - 1 else name
        for batch in range(batches):
            at = (run, domain, batch)
            rows.append(row(len(rows), domain, images, right(*at), confidence(*at), energy(*at), weight(*at)))
    return Result(
        key="made",
        run=run.describe(),
        rows=tuple(rows),
        clean_after=None,
        cost={"gflops": 4.0, "paper_gflops": 2.0, "peak_megabytes": 7.0},
        provenance={"materials": {"corruptions": "generated"}},
    )


def results(runs: Iterable[Run], **given: Any) -> dict[Run, Result]:
    return {run: result(run, **given) for run in runs}


def everything(scale: Scale) -> list[Run]:
    from cretta.paper import items

    return list(dict.fromkeys(run for item in items().values() for run in item.plan(scale)))
