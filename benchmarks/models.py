"""Measure source models without adaptation, on clean and on shifted images, and write the table of docs/models.md.

    python benchmarks/models.py wrn-40-2-cifar10 [--root DATA] [--models FOLDER] [--images 2000]
    python benchmarks/models.py --write

The first command measures the models that are named (all, if none is) and saves what it measured in
benchmarks/results/models.json, one entry per model; the second writes the table from that file. Shifted: for PACS the
mean over the three other domains, otherwise over the fifteen corruptions at severity 5. `--images` is the number of
images per shifted domain; clean images are all of the test set. Resumable: run it again.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from cretta.bench import Buffer, Domain, Run, RunContext, Store, run_all
from cretta.data.corruptions import CORRUPTIONS
from cretta.models.weights import card, names

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "models.json"
PAGE = ROOT / "docs" / "models.md"
LOGS = ROOT / "docs" / "results"
MARKS = ("<!-- generated: source models -->", "<!-- end -->")
PACS = ("photo", "art_painting", "cartoon", "sketch")
HEADINGS = (
    "model",
    "data",
    "images",
    "clean accuracy / ECE %",
    "shifted accuracy / ECE %",
    "epochs",
    "hours",
    "trained by",
)


@dataclasses.dataclass(frozen=True)
class Source:
    """A source model, its data, and the command that trained it."""

    data: str
    model: str
    command: str
    log: Path | None = None
    """The training log; its last row has epochs and minutes."""
    size: int | None = None

    @property
    def shifts(self) -> list[Domain]:
        """The domains that the paper averages over."""
        if self.data.startswith("pacs:"):
            return [Domain(name) for name in PACS if name != self.data.partition(":")[2]]
        return [Domain(name, 5) for name in CORRUPTIONS[:15]]


TRAIN_PACS = (
    "cretta train pacs --size 224 --architecture efficientnet-lite0 --init cretta.models.imagenet:efficientnet_lite0 "
    '--learn "norm and head" --best --holdout 84 --epochs 10 --batch-size 32 --lr 0.03 --augmix 0 --progressive 0 '
    "--output 'pacs-{source}.safetensors'"
)


def sources(folder: Path) -> dict[str, Source]:
    """Return all source models; those that do not ship are in ``folder``."""
    found = {
        name: Source(name.rpartition("-")[2], name, card(name)["command"], LOGS / f"training-{name}.csv")
        for name in names()
    }
    found["tiny_imagenet"] = Source("tiny-imagenet", "cretta.models.imagenet:tiny_imagenet", "not trained here")
    for name in PACS:
        model = folder / f"pacs-{name}.safetensors"
        found[f"pacs-{name}"] = Source(f"pacs:{name}", str(model), TRAIN_PACS, model.with_suffix(".csv"), size=224)
    return found


def measure(name: str, source: Source, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the scores of a model, computed or read from the store."""
    runs = [
        Run(
            data=source.data,
            domains=(domain,),
            model=source.model,
            method="source",
            images=None if domain.name == "clean" else arguments.images,
            size=source.size,
            batch_size=100,
            buffer=Buffer(size=1),
        )
        for domain in (Domain("clean"), *source.shifts)
    ]
    results = dict(run_all(runs, Store(arguments.store), RunContext(arguments.root)))
    scores = [results[run].scores for run in runs]
    last = list(csv.DictReader(source.log.open()))[-1] if source.log and source.log.exists() else {}
    return {
        "data": source.data,
        "images": [score.images for score in scores],
        "clean": [100 * scores[0].accuracy, 100 * scores[0].calibration_error],
        "shifted": {
            str(run.domains[0]): [100 * score.accuracy, 100 * score.calibration_error]
            for run, score in zip(runs[1:], scores[1:], strict=True)
        },
        "epochs": float(last["epoch"]) if last else None,
        "hours": float(last["minutes"]) / 60 if last else None,
        "trained by": source.command,
        "command": f"python benchmarks/models.py {name!r} --images {arguments.images}",
    }


def table(measured: dict[str, dict[str, Any]]) -> str:
    """Return the table of the page."""
    rows = [HEADINGS, ("---",) * len(HEADINGS)]
    for name, entry in measured.items():
        accuracy, error = (statistics.mean(pair[k] for pair in entry["shifted"].values()) for k in range(2))
        rows.append(
            (
                f"`{name}`",
                entry["data"],
                "–".join(map(str, sorted({min(entry["images"]), max(entry["images"])}))),
                f"{entry['clean'][0]:.1f} / {entry['clean'][1]:.1f}",
                f"{accuracy:.1f} / {error:.1f}",
                "–" if entry["epochs"] is None else f"{entry['epochs']:.1f}",
                "–" if entry["hours"] is None else f"{entry['hours']:.1f}",
                f"`{entry['trained by']}`" if entry["trained by"].startswith("cretta") else entry["trained by"],
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"among {', '.join(sources(Path()))}")
    parser.add_argument("--root", type=Path, help="folder of all datasets")
    parser.add_argument("--models", type=Path, default=Path(), help="folder of trained models and their logs")
    parser.add_argument("--images", type=int, help="images per shifted domain (default: all)")
    parser.add_argument("--store", type=Path, default=Path("results-models"))
    parser.add_argument("--write", action="store_true", help="only write the table")
    arguments = parser.parse_args()
    known = sources(arguments.models)
    if unknown := set(arguments.names) - set(known):
        sys.exit(f"{', '.join(sorted(unknown))}: expected names among {', '.join(known)}")
    measured = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    for name in () if arguments.write else arguments.names or known:
        print(f"measuring {name}", flush=True)
        measured[name] = measure(name, known[name], arguments)
        RESULTS.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n", "utf-8")
    before, _, rest = PAGE.read_text("utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    PAGE.write_text(f"{before}{MARKS[0]}\n{table(measured)}\n{MARKS[1]}{after}", "utf-8")


if __name__ == "__main__":
    main()
