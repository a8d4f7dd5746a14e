"""Execute one run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cretta import streams
from cretta.adapter import Adapter
from cretta.bench.context import RunContext
from cretta.bench.result import BatchRow, Result, batch_row
from cretta.bench.run import Run
from cretta.bench.store import provenance
from cretta.metrics import count_operations, peak_meter
from cretta.streams import Batch

COUNTED = 20
"""Images with which operations are counted: a share of them, such as a fifth, is mostly a whole number."""


def execute(run: Run, context: RunContext, *, progress: Callable[[BatchRow], None] = lambda row: None) -> Result:
    """Take the adapter of the run through its stream, and return what it did.

    Peak memory is that of the second batch that the model adapts to, or of the first if there is no other.
    """
    domains = [context.domain(run, name) for name in run.domains]
    model = context.adapter(run)
    stream = run.schedule([domain.count for domain in domains], domains[0].labels.numpy())
    rows: list[BatchRow] = []
    peak = 0
    # The first batch computes what all share, such as the energies of source samples.
    second = model.options.adapt_every
    metered = second if second < len(stream) else 0

    def meter(batch: Batch, x: Tensor) -> None:
        nonlocal peak
        if batch.number == metered:
            peak = _peak_bytes(model, x, warm_up=batch.number == 0)

    def read(batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the images and the labels of a batch, in its order."""
        parts = [(domains[domain], torch.from_numpy(indices)) for domain, _, indices in batch.parts()]
        images = [domain.batch(indices, context.device) for domain, indices in parts]
        labels = [domain.labels[indices] for domain, indices in parts]
        if len(parts) == 1:
            return images[0], labels[0]
        order = torch.cat([torch.from_numpy(positions) for _, positions, _ in batch.parts()]).argsort()
        return torch.cat(images)[order.to(context.device)], torch.cat(labels)[order]

    for step in streams.follow(stream, read, model, frozen=model.predict, before=meter):
        label = "+".join(run.label(domain) for domain, _, _ in step.batch.parts())
        record = model.last if step.batch.adapts else None
        rows.append(batch_row(step.batch.number, label, step.logits, step.extra, record, step.seconds))
        progress(rows[-1])
    return Result(
        key=context.key(run),
        run=run,
        rows=tuple(rows),
        cost={**operations_of(run, context), "peak_megabytes": peak / 2**20},
        provenance=provenance(context.input_fingerprints(run), context.device),
    )


def operations_of(run: Run, context: RunContext) -> dict[str, float]:
    """Return the GFLOPs of a step by both countings; computed once for runs that differ in images and seed only.

    They are in proportion to the images, so that a few are enough.
    """
    key = (run.data, run.size, run.model, run.method, run.preset, run.options, run.batch_size, run.buffer)
    if key not in context.operations:
        domain = context.domain(run, run.domains[0])
        batch = domain.batch(torch.arange(min(run.batch_size, domain.count, COUNTED)), context.device)
        total, forward = count_operations(context.adapter(run), batch, scale_to=run.batch_size)
        context.operations[key] = {"gflops": total / 1e9, "paper_gflops": forward / 1e9}
    return context.operations[key]


def _peak_bytes(model: Adapter[Any], x: Tensor, *, warm_up: bool) -> int:
    """Return the peak memory of a step; the model is then in the state it was in, so that the step can be timed.

    ``warm_up`` takes the step twice and meters the second: the first one ever also verifies the backend.
    """
    state = model.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the timed step repeats them
        if warm_up:
            model(x)
            model.load_state_dict(state)
        with peak_meter(x.device) as meter:
            model(x)
        model.load_state_dict(state)
    return meter.peak
