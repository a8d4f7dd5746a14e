"""Settings of CreTTA on the four validation corruptions of CIFAR-10, beside the paper's and other methods.

    python benchmarks/settings.py [--network wrn-40-2-cifar10] [--images 2000] [--only TEXT] --root DATASETS

For each setting: every validation corruption at severity 5 on its own, in batches of 200, then all four in a row
without a reset, in batches of 50 (a quarter of the images each). Settings are chosen by these numbers only; the fifteen
corruptions of the paper and other datasets are for the report. Rows are saved in benchmarks/results/settings.json, runs
in --store; run the same command again to continue.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from cretta.bench import Domain, Run, RunContext, Store, run_all
from cretta.bench.result import Result
from cretta.cli.progress import detail_bars
from cretta.data import VALIDATION_CORRUPTIONS
from cretta.storage import atomic_write

RESULTS = Path(__file__).parent / "results" / "settings.json"
OTHERS = ("source", "bn_adapt", "tent", "shot")
LARGER = {"lr": 3e-3}
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "lr 2e-3": {"lr": 2e-3},
    "lr 3e-3": LARGER,
    "lr 5e-3": {"lr": 5e-3},
    "lr 1e-2": {"lr": 1e-2},
    "β 0.1": {"beta": 0.1},
    "β 2": {"beta": 2.0},
    "lr 3e-3, β 0.05": {**LARGER, "beta": 0.05},
    "lr 3e-3, β 0.1": {**LARGER, "beta": 0.1},
    "lr 3e-3, β 0.3": {**LARGER, "beta": 0.3},
    "lr 3e-3, β 2": {**LARGER, "beta": 2.0},
    "lr 3e-3, reference batch": {**LARGER, "reference": "batch"},
    "lr 3e-3, β 0.1, reference batch": {**LARGER, "beta": 0.1, "reference": "batch"},
    "lr 5e-3, β 0.1, reference batch": {"lr": 5e-3, "beta": 0.1, "reference": "batch"},
    "α 0.5": {"contrast": 0.5},
    "lr 3e-3, α 0": {**LARGER, "contrast": 0.0},
    "lr 3e-3, α 0.5": {**LARGER, "contrast": 0.5},
    "lr 3e-3, α 0.8": {**LARGER, "contrast": 0.8},
    "lr 3e-3, β 0.1, α 0.5": {**LARGER, "beta": 0.1, "contrast": 0.5},
    "lr 3e-3, logits before": {**LARGER, "predict": "before"},
    "lr 3e-3, source fraction 0.2": {**LARGER, "source_fraction": 0.2},
    "lr 3e-3, mixture 0.8": {**LARGER, "statistics": "mixture", "batch_weight": 0.8},
}


def runs_of(method: str, options: dict[str, Any], network: str, images: int) -> list[Run]:
    """Return the run of each corruption, then that of all in a row."""
    domains = tuple(Domain(name, 5) for name in VALIDATION_CORRUPTIONS)
    shared: dict[str, Any] = {
        "data": "cifar10",
        "model": network,
        "method": method,
        "preset": "cifar10" if method not in ("source", "bn_adapt") else None,
        "options": tuple(options.items()),
    }
    alone = [Run(domains=(domain,), images=images, batch_size=200, **shared) for domain in domains]
    return [*alone, Run(domains=domains, stream="continual", images=images // 4, batch_size=50, **shared)]


def row_of(network: str, setting: str, images: int, results: list[Result]) -> dict[str, Any]:
    """Return accuracy and ECE in percent: means over the corruptions alone, and of the drifting stream."""
    scores = [result.scores for result in results]
    numbers = [(100 * score.accuracy, 100 * score.calibration_error) for score in scores]
    accuracy, error = (statistics.mean(values) for values in zip(*numbers[:-1], strict=True))
    return {
        "network": network,
        "setting": setting,
        "images": images,
        "accuracy": accuracy,
        "ECE": error,
        "drift accuracy": numbers[-1][0],
        "drift ECE": numbers[-1][1],
        "alone": dict(zip(VALIDATION_CORRUPTIONS, numbers[:-1], strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="wrn-40-2-cifar10", help="a shipped model, or a file of weights")
    parser.add_argument("--images", type=int, default=2000, help="per corruption; %(default)s by default")
    parser.add_argument("--only", default="", help="settings whose name contains this text")
    parser.add_argument("--root", type=Path, help="folder of all datasets")
    parser.add_argument("--store", type=Path, default=Path("results-settings"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    store, context = Store(arguments.store), RunContext(arguments.root)
    name = Path(arguments.network).stem
    rows: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    cases: list[tuple[str, str, dict[str, Any]]] = [(method, method, {}) for method in OTHERS]
    cases += [(f"cretta: {setting}", "cretta", options) for setting, options in SETTINGS.items()]
    cases = [case for case in cases if arguments.only in case[0]]
    with detail_bars() as bar:
        task = bar.add_task("settings", total=len(cases), details="")
        for setting, method, options in cases:
            runs = runs_of(method, options, arguments.network, arguments.images)
            results = dict(run_all(runs, store, context))
            row = row_of(name, setting, arguments.images, [results[run] for run in runs])
            rows[f"{name} · {setting}"] = row
            with atomic_write(RESULTS) as temporary:
                temporary.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
            bar.update(task, advance=1, details=f"{setting} {row['accuracy']:.1f} / {row['ECE']:.1f}")
    print(f"{'setting':45s} accuracy    ECE   drift: accuracy    ECE")
    for row in sorted((row for row in rows.values() if row["network"] == name), key=lambda row: row["ECE"]):
        numbers = (row["accuracy"], row["ECE"], row["drift accuracy"], row["drift ECE"])
        print(f"{row['setting']:45s} {numbers[0]:8.2f} {numbers[1]:6.2f} {numbers[2]:17.2f} {numbers[3]:6.2f}")


if __name__ == "__main__":
    main()
