"""Settings of CreTTA on the four validation corruptions of CIFAR-10, beside the paper's and other methods.

    python benchmarks/settings.py [--part drift] [--images 2000] [--minutes 60] [--only NAME] --root DATASETS

Two parts. *drift*: all four corruptions at severity 5 in a row without a reset, in batches of 50; *alone*: the
mean over every corruption by itself, in batches of 200. Settings are chosen by these numbers only; the fifteen
corruptions of the paper and other datasets are for the report. Rows are saved in benchmarks/results/settings.json after
each setting, runs in --store: run the same command again to continue. The settings that matter most come first.
`python scripts/write_docs.py` writes the table of docs/choosing.md from the file.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cretta.bench import Domain, Run, RunContext, Store, run_all
from cretta.bench.result import Result
from cretta.data import VALIDATION_CORRUPTIONS
from cretta.paper import values
from cretta.report.spread import blocks_of
from cretta.storage import atomic_write

RESULTS = Path(__file__).parent / "results" / "settings.json"
PARTS = ("drift", "alone")
BATCH = {"drift": 50, "alone": 200}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{method: (method, {}) for method in ("source", "bn_adapt", "tent", "shot")},
    **{f"{method}: lr 3e-3": (method, {"lr": 3e-3}) for method in ("tent", "shot")},
}
"""Other methods, in the paper's setting and with the learning rate that is tried most for CreTTA."""
LARGER = {"lr": 3e-3}
SMALL = {**LARGER, "beta": 0.1}
SAME = {**SMALL, "reference": "batch"}
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "lr 3e-3": LARGER,
    "lr 3e-3, β 0.1, reference batch": SAME,
    "lr 3e-3, α 0.5": {**LARGER, "contrast": 0.5},
    "lr 3e-3, α 0": {**LARGER, "contrast": 0.0},
    "lr 1e-2": {"lr": 1e-2},
    "lr 3e-3, β 0.1": SMALL,
    "lr 3e-3, reference batch": {**LARGER, "reference": "batch"},
    "lr 3e-3, logits before": {**LARGER, "predict": "before"},
    "lr 3e-3, mixture 0.8": {**LARGER, "statistics": "mixture", "batch_weight": 0.8},
    "lr 3e-3, source fraction 0.2": {**LARGER, "source_fraction": 0.2},
    "lr 3e-3, β 2": {**LARGER, "beta": 2.0},
    "lr 3e-3, β 0.1, α 0.5": {**SMALL, "contrast": 0.5},
    "lr 3e-3, β 0.1, reference batch, α 0.5": {**SAME, "contrast": 0.5},
    "lr 5e-3, β 0.1, reference batch": {**SAME, "lr": 5e-3},
    "lr 5e-3": {"lr": 5e-3},
    "lr 3e-3, β 0.05": {**LARGER, "beta": 0.05},
    "β 0.1": {"beta": 0.1},
    "α 0.5": {"contrast": 0.5},
    "β 2": {"beta": 2.0},
    "lr 2e-3": {"lr": 2e-3},
    "lr 3e-3, β 0.3": {**LARGER, "beta": 0.3},
    "lr 3e-3, α 0.8": {**LARGER, "contrast": 0.8},
}


def runs_of(part: str, method: str, options: dict[str, Any], network: str, images: int) -> list[Run]:
    """Return the runs of a part: one for each corruption, or one with all in a row."""
    domains = tuple(Domain(name, 5) for name in VALIDATION_CORRUPTIONS)
    shared: dict[str, Any] = {
        "data": "cifar10",
        "model": network,
        "method": method,
        "preset": "cifar10" if method not in ("source", "bn_adapt") else None,
        "options": tuple(options.items()),
        "images": images,
        "batch_size": BATCH[part],
    }
    if part == "drift":
        return [Run(domains=domains, stream="continual", **shared)]
    return [Run(domains=(domain,), **shared) for domain in domains]


def numbers_of(results: Sequence[Result]) -> dict[str, Any]:
    """Return accuracy and ECE in percent, as means over the runs, also on each block of batches, and the cost."""
    blocks = blocks_of(results)
    return {
        "images": sum(result.scores.images for result in results),
        "accuracy": values.accuracy(results),
        "ECE": values.calibration_error(results),
        "accuracy of blocks": [values.accuracy(block) for block in blocks],
        "ECE of blocks": [values.calibration_error(block) for block in blocks],
        "GFLOPs per batch": results[0].cost["gflops"],
        "batch": results[0].run.batch_size,
    }


def cases() -> list[tuple[str, str, dict[str, Any]]]:
    """Return name, method and options of everything that is compared."""
    others = [(name, method, options) for name, (method, options) in OTHERS.items()]
    return others + [(f"cretta: {setting}", "cretta", options) for setting, options in SETTINGS.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="wrn-40-2-cifar10", help="a shipped model, or a file of weights")
    parser.add_argument("--part", choices=PARTS, action="append", help="can be repeated; both by default")
    parser.add_argument("--images", type=int, default=2000, help="per corruption; %(default)s by default")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no setting after so many")
    parser.add_argument("--only", action="append", help="the name of a setting; can be repeated; all by default")
    parser.add_argument("--root", type=Path, help="folder of all datasets")
    parser.add_argument("--store", type=Path, default=Path("results-settings"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    start = time.monotonic()
    store, context = Store(arguments.store), RunContext(arguments.root)
    network = Path(arguments.network).stem
    rows: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    for part in arguments.part or PARTS:
        for setting, method, options in (case for case in cases() if case[0] in (arguments.only or [case[0]])):
            if time.monotonic() - start > 60 * arguments.minutes:
                print(f"after {arguments.minutes:g} minutes, not measured: {part}, {setting}", flush=True)
                continue
            runs = runs_of(part, method, options, arguments.network, arguments.images)
            results = dict(run_all(runs, store, context))
            done = [results[run] for run in runs]
            origin = {name: done[0].provenance[name] for name in ("commit", "materials", "versions")}
            origin["kernels"] = done[0].provenance["machine"]["kernels"]["setting"]
            row = {"network": network, "part": part, "setting": setting, "options": options, **numbers_of(done)}
            rows[f"{network} · {part} · {setting}"] = {**row, "provenance": origin}
            with atomic_write(RESULTS) as temporary:
                temporary.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
            minutes = (time.monotonic() - start) / 60
            print(f"{minutes:5.1f} min  {part:6s} {setting:45s} {row['accuracy']:6.2f} {row['ECE']:6.2f}", flush=True)


if __name__ == "__main__":
    main()
