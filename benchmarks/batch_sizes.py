"""How many images a batch needs: methods on three corruptions of the embedded CIFAR-10 images, by the size of batches.

    CRETTA_KERNELS=avx512 python benchmarks/batch_sizes.py [--images 320] [--size 2 --size 64] [--store FOLDER]

Each corruption is a stream of its own at severity 5. All sizes have the same images in the same order. Some methods
get the clean images, too: what the statistics of small batches cost where nothing shifted. Rows are saved in
benchmarks/results/batch_sizes.json one by one, runs in --store: run the same command again to continue. `python
scripts/write_docs.py` writes the tables of docs/verdict.md from the file.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cretta.bench import Buffer, Domain, Run, RunContext, Store, run_all
from cretta.data.domains import CLEAN
from cretta.storage import atomic_write
from settings import numbers_of

RESULTS = Path(__file__).parent / "results" / "batch_sizes.json"
NETWORK = "wrn-40-2-cifar10"
SHIFTED = tuple(Domain(name, 5) for name in ("gaussian_noise", "fog", "jpeg_compression"))
SIZES = (64, 32, 16, 8, 4, 2)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{method: (method, {}) for method in ("source", "bn_adapt", "tent", "cretta")},
    **{f'cretta, statistics="{name}"': ("cretta", {"statistics": name}) for name in ("auto", "moving")},
}
PARTS: dict[str, tuple[tuple[Domain, ...], tuple[str, ...]]] = {
    "shifted": (SHIFTED, tuple(METHODS)),
    "clean": ((Domain(CLEAN),), ("source", "bn_adapt", 'cretta, statistics="moving"')),
}
"""Domains, each a stream of its own, and methods."""


def runs_of(name: str, domains: Sequence[Domain], size: int, images: int) -> list[Run]:
    """Return the runs of a method, one for each domain."""
    method, options = METHODS[name]
    return [
        Run(
            data="embedded",
            domains=(domain,),
            model=NETWORK,
            method=method,
            preset="cifar10" if method in ("tent", "cretta") else None,
            options=tuple(options.items()),
            images=images,
            batch_size=size,
            buffer=Buffer(size=1000),
        )
        for domain in domains
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, action="append", help="images per batch; can be repeated; all by default")
    parser.add_argument("--images", type=int, default=320, help="per corruption; %(default)s by default")
    parser.add_argument("--store", type=Path, default=Path("results-batch-sizes"))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    start, store, context = time.monotonic(), Store(arguments.store), RunContext()
    rows: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    cases = [
        (part, domains, size, name)
        for part, (domains, names) in PARTS.items()
        for size in arguments.size or SIZES
        for name in names
    ]
    for part, domains, size, name in cases:
        runs = runs_of(name, domains, size, arguments.images)
        results = dict(run_all(runs, store, context))
        done = [results[run] for run in runs]
        origin = {key: done[0].provenance[key] for key in ("commit", "versions")}
        machine = done[0].provenance["machine"]
        origin |= {"kernels": machine["kernels"]["setting"], "threads": machine["threads"]}
        case = {"network": NETWORK, "part": part, "domains": list(map(str, domains)), "method": name}
        row = {**case, **numbers_of(done), "provenance": origin}
        rows[f"{part} · {size} · {name}"] = row
        with atomic_write(RESULTS) as temporary:
            temporary.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
        minutes = (time.monotonic() - start) / 60
        scores = f"{row['accuracy']:6.2f} {row['ECE']:6.2f}"
        print(f"{minutes:5.1f} min  {part:7s} {size:3d}  {name:26s} {scores}", flush=True)


if __name__ == "__main__":
    main()
