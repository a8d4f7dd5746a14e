"""Compute published runs again, and compare every number of every batch with the published one, bit for bit.

    CRETTA_DATA=FOLDER python benchmarks/repeat.py --shift fog/5 --method tent --method shot [--images 2000]

Runs are those of benchmarks/results/paper. They are computed with the kernels and the threads they were computed with;
what is left to differ is the processor, the versions of the libraries, and the code. Times are not compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from cretta.bench.result import BatchRow, Result

PUBLISHED = Path(__file__).parent / "results" / "paper"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10", help="by default %(default)s")
    parser.add_argument("--shift", action="append", required=True, help="such as fog/5; can be repeated")
    parser.add_argument("--method", action="append", required=True, help="can be repeated")
    parser.add_argument("--images", type=int, help="of runs with this number of images; without it, all of a shift")
    arguments = parser.parse_args()
    from cretta.paper.results import read_results

    chosen = [
        result
        for result in read_results(PUBLISHED).values()
        if (result.run.data, result.run.images) == (arguments.dataset, arguments.images)
        and result.run.method in arguments.method
        and [str(domain) for domain in result.run.domains] in [[shift] for shift in arguments.shift]
    ]
    if not chosen:
        sys.exit(f"no such run in {PUBLISHED}: runs.csv there lists them all")
    settings = {published.provenance["machine"]["kernels"]["setting"] for published in chosen}
    setting = settings.pop()
    if settings:
        sys.exit(f"expected runs with one setting of the kernels, got also {settings}: choose fewer")
    os.environ["CRETTA_KERNELS"] = str(PUBLISHED / setting) if setting.endswith(".json") else setting
    from results import printed

    with printed("repeat"):
        compare(chosen)


def compare(chosen: list[Result]) -> None:
    import torch

    from cretta.bench import RunContext
    from cretta.bench.execute import execute

    print("method     shift              code          numbers  differ  accuracy %, ECE %: published, again")
    for published in chosen:
        torch.set_num_threads(published.provenance["machine"]["threads"])
        again = execute(published.run, RunContext())
        rows = zip(published.rows, again.rows, strict=True)
        same = [
            one == other for before, after in rows for one, other in zip(numbers(before), numbers(after), strict=True)
        ]
        scores = [
            f"{100 * result.scores.accuracy:.3f}, {100 * result.scores.calibration_error:.3f}"
            for result in (published, again)
        ]
        print(
            f"{published.run.method:10} {published.run.domains[0]!s:18} {published.provenance['commit'] or '':12} "
            f"{len(same):8} {same.count(False):7}  {'; '.join(scores)}"
        )


def numbers(row: BatchRow) -> list[object]:
    """Return all numbers of a batch that do not depend on time."""
    values = [value for name, value in dataclasses.asdict(row).items() if name not in ("seconds", "domain", "reason")]
    return [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]


if __name__ == "__main__":
    main()
