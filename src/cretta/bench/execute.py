"""Executes one run, and goes on where it was when it was cut off."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from cretta.adapter import Adapter
from cretta.bench.result import BatchRow, batch_row
from cretta.bench.run import Run
from cretta.bench.workshop import Domain, Workshop
from cretta.data.domains import CLEAN
from cretta.errors import StateError
from cretta.metrics import PeakMeter, count_operations, peak_meter
from cretta.storage import tensorfile
from cretta.streams import Batch

KIND = "state of a run"
SAVE_EVERY = 30.0
"""Seconds after which a long run notes where it is."""
COUNTED = 20
"""Images with which operations are counted: a share of them, such as a fifth, is mostly a whole number."""


@dataclasses.dataclass(frozen=True)
class Executed:
    """What came of a run."""

    rows: tuple[BatchRow, ...]
    clean_after: float | None
    """Accuracy on clean images afterwards, if the run asks for it."""
    peak_bytes: int
    """The most memory that a step took: of the second batch that was learnt from, or the first if there is none."""


def execute(
    run: Run,
    workshop: Workshop,
    *,
    progress: Callable[[BatchRow], None] = lambda row: None,
    unfinished: Path | None = None,
    save_every: float = SAVE_EVERY,
) -> Executed:
    """Takes the run's stream through its adapter.

    ``unfinished`` is where a long run notes how far it is; what is there is taken up.
    """
    domains = [workshop.domain(run, name) for name in run.domains]
    model = workshop.adapter(run)
    stream = run.schedule([domain.count for domain in domains], domains[0].labels.numpy())
    rows, peak = _taken_up(unfinished, run, model)
    saved = time.monotonic()
    again = model.options.adapt_every
    metered = again if again < len(stream) else 0
    for number, batch in enumerate(stream):
        if number < len(rows):
            continue
        meter = peak_meter(workshop.device) if number == metered else None
        row = _step(run, model, domains, batch, number, meter)
        peak = meter.peak if meter else peak
        rows.append(row)
        progress(row)
        # Not before the metered batch: whoever takes up the run computes first what is kept between batches.
        due = metered <= number < len(stream) - 1 and time.monotonic() - saved >= save_every
        if unfinished is not None and due:
            _note(unfinished, run, model, rows, peak)
            saved = time.monotonic()
    return Executed(tuple(rows), _clean_after(run, model, workshop), peak)


def operations_of(run: Run, workshop: Workshop) -> dict[str, float]:
    """GFLOPs of a step by both countings, counted once for all runs that differ in images and seed only.

    They are in proportion to the images, so that a few will do.
    """
    key = (run.data, run.size, run.model, run.method, run.preset, run.options, run.batch_size, run.buffer)
    if key not in workshop.operations:
        domain = workshop.domain(run, run.domains[0])
        batch = domain.batch(torch.arange(min(run.batch_size, domain.count, COUNTED))).to(workshop.device)
        total, forward = count_operations(workshop.adapter(run), batch, scale_to=run.batch_size)
        workshop.operations[key] = {"gflops": total / 1e9, "paper_gflops": forward / 1e9}
    return workshop.operations[key]


def _step(
    run: Run, model: Adapter[Any], domains: list[Domain], batch: Batch, number: int, meter: PeakMeter | None
) -> BatchRow:
    device = model.generator.device
    x, labels = _images(batch, domains)
    x = x.to(device)
    learns = all(run.adapts_to(int(name)) for name, _, _ in batch.parts())
    begun = _now(device)
    with meter or nullcontext():
        logits = model(x) if learns else model.predict(x)
    seconds = _now(device) - begun
    names = "+".join(run.domains[int(name)] for name, _, _ in batch.parts())
    # The source met again at the end of a gradual stream is told apart from its beginning.
    domain = names if learns else f"{names} again"
    return batch_row(number, domain, logits, labels, model.last if learns else None, seconds)


def _images(batch: Batch, domains: list[Domain]) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [
        (int(name), torch.from_numpy(places), torch.from_numpy(indices)) for name, places, indices in batch.parts()
    ]
    if len(parts) == 1:
        place, _, indices = parts[0]
        return domains[place].batch(indices), domains[place].labels[indices]
    pieces = [domains[place].batch(indices) for place, _, indices in parts]
    labels = torch.cat([domains[place].labels[indices] for place, _, indices in parts])
    order = torch.cat([places for _, places, _ in parts]).argsort()
    return torch.cat(pieces)[order], labels[order]


def _clean_after(run: Run, model: Adapter[Any], workshop: Workshop) -> float | None:
    if not run.clean_after:
        return None
    clean = workshop.domain(dataclasses.replace(run, images=run.clean_after), CLEAN)
    right = 0
    for indices in torch.arange(clean.count).split(run.batch_size):
        logits = model.predict(clean.batch(indices).to(workshop.device))
        right += int((logits.argmax(-1).cpu() == clean.labels[indices]).sum())
    return right / clean.count


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _note(path: Path, run: Run, model: Adapter[Any], rows: list[BatchRow], peak: int) -> None:
    """Rows first, under the number of batches; the adapter's state, whose name says which rows go with it, last."""
    told = [dataclasses.asdict(row) for row in rows]
    facts = {"kind": KIND, "run": run.describe(), "rows": told, "peak": peak}
    path.mkdir(parents=True, exist_ok=True)
    tensorfile.write(path / f"{len(rows):06d}.rows", {}, facts)
    model.save(path / f"{len(rows):06d}.state")
    for old in path.iterdir():
        if old.stem != f"{len(rows):06d}":
            old.unlink(missing_ok=True)


def _taken_up(path: Path | None, run: Run, model: Adapter[Any]) -> tuple[list[BatchRow], int]:
    """Rows and peak of the newest whole note, and the adapter as it was then; none, where there is no such."""
    if path is None or not path.is_dir():
        return [], 0
    for state in sorted(path.glob("*.state"), reverse=True):
        try:
            _, facts = tensorfile.read(state.with_suffix(".rows"), KIND)
            if facts["run"] != json.loads(json.dumps(run.describe())):
                continue
            model.restore(state)
        except StateError:
            continue
        rows = [BatchRow(**{key: _tupled(value) for key, value in row.items()}) for row in facts["rows"]]
        return rows, facts["peak"]
    return [], 0


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
