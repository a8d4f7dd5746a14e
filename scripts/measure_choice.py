"""Measure which method and which buffer to choose, and write docs/results/choice.csv.

Five situations on the images that come with cretta, and other source images. Resumable: run it again. CIFAR-100 is
expected in the folder of datasets (`cretta data get cifar100`), or in the folder that is the only argument.
"""

from __future__ import annotations

import csv
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from cretta import methods
from cretta.bench import Buffer, Domain, Result, Run, RunContext, Store, benchmark, expand
from cretta.bench.run import Scalar
from cretta.cli.execute import execute

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs" / "results" / "choice.csv"
COLUMNS = ("situation", "method", "setting", "images", "accuracy %", "ECE %", "confidence − accuracy %")

SHIFTS = ("gaussian_noise", "glass_blur", "fog", "jpeg_compression")
FEW = ("source", "bn_adapt", "tent", "cretta")
BASE = Run(
    data="embedded",
    domains=(Domain("clean"),),
    model="wrn-40-2-cifar10",
    images=500,
    batch_size=50,
    buffer=Buffer(size=1000),
)


def _runs(
    names: Sequence[str],
    base: Run = BASE,
    shifts: Sequence[str] = SHIFTS,
    stream: str = "continual",
    options: Mapping[str, Scalar] | None = None,
) -> list[Run]:
    values: dict[str, Sequence[Mapping[str, Scalar]]] = {name: [options or {}] for name in names}
    delta = 0.1 if stream == "dirichlet" else None
    return expand(base, benchmark("embedded"), shifts=shifts, stream=stream, delta=delta, options=values)


def plan() -> Iterator[tuple[str, str, list[Run]]]:
    """Yield situation, setting and runs; the runs of a method on several streams are averaged."""
    one = dataclasses.replace(BASE, batch_size=1, images=150)
    learners = ("bn_adapt", "tent", "cretta")
    yield "no shift", "", _runs(FEW, shifts=["clean"])
    yield "shift after shift", "", _runs([name for name in methods.names() if name != "tea"])  # 23 passes per batch
    options: dict[str, Scalar]
    for statistics in ("", "mixture", "running"):
        names = learners if statistics == "mixture" else ("tent", "cretta") if statistics else FEW
        options = {"statistics": statistics} if statistics else {}
        yield (
            "class after class",
            _words(options),
            _runs(names, shifts=["fog", "glass_blur"], stream="dirichlet", options=options),
        )
    extra: Mapping[str, Scalar]
    for extra in ({}, {"statistics": "moving"}):
        names = learners if extra else FEW
        yield "single images", _words(extra), _runs(names, one, ["gaussian_noise", "fog"], options=extra)
    yield "other buffers", "1 000 of its training images", _runs(["cretta"])
    for words, buffer in (
        ("100 of its training images", Buffer(size=100)),
        ("10 of its training images", Buffer(size=10)),
        ("1 000 of CIFAR-100", Buffer(data="cifar100", size=1000)),
    ):
        yield "other buffers", words, _runs(["cretta"], dataclasses.replace(BASE, buffer=buffer))


def _words(options: Mapping[str, Scalar]) -> str:
    return ", ".join(f'{name}="{value}"' for name, value in options.items())


def _row(situation: str, setting: str, method: str, results: Sequence[Result]) -> tuple[str, ...]:
    scores = [result.scores for result in results]
    accuracy = 100 * fmean(one.accuracy for one in scores)
    error = 100 * fmean(one.calibration_error for one in scores)
    confidence = 100 * fmean(one.bins.mean_confidence for one in scores)
    images = sum(one.images for one in scores)
    return (situation, method, setting, str(images), f"{accuracy:.1f}", f"{error:.1f}", f"{confidence - accuracy:+.1f}")


def main(root: Path | None) -> None:
    store, context = Store(ROOT / "results" / "choice"), RunContext(root)
    rows = []
    for situation, setting, runs in plan():
        results = execute(runs, store, context)
        rows += [
            _row(situation, setting, method, [results[run] for run in runs if run.method == method])
            for method in dict.fromkeys(run.method for run in runs)
        ]
        OUTPUT.parent.mkdir(exist_ok=True)
        with OUTPUT.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
