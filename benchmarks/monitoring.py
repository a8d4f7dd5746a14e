"""What the benchmarks of docs/monitoring.md share: networks, images, and results that are saved row by row.

The networks other than the shipped one are trained by

    cretta train cifar10 --architecture resnet-20 --augmix 0 --epochs 5 --output resnet-20-cifar10.safetensors
    cretta train cifar100 --architecture resnet-20 --augmix 0 --epochs 6 --label-smoothing 0.5 \
        --output resnet-20-cifar100-smoothed.safetensors

into the folder that ``--networks`` names.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import cretta
from cretta.cli.progress import detail_bars
from cretta.data.dataset import ArrayDataset, as_batch
from cretta.models import open_model
from cretta.storage import atomic_write

RESULTS = Path(__file__).parent / "results"
SHIPPED = "wrn-40-2-cifar10"
Row = dict[str, Any]


def parser(text: str | None, images: int) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--networks", type=Path, default=Path(), help="folder of the trained networks")
    arguments.add_argument("--root", type=Path, default=None, help="folder of the datasets, for CIFAR-100")
    arguments.add_argument("--images", type=int, default=images, help=f"per stream; {images} by default")
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    arguments.add_argument("--only", default="", help="rows whose key contains this text")
    arguments.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return arguments


def network(name: str, folder: Path) -> nn.Module:
    return open_model(name if name == SHIPPED else str(folder / f"{name}.safetensors")).net.eval()


def dataset(name: str, split: str, root: Path | None) -> ArrayDataset:
    if name == "cifar10":
        return cretta.data.embedded("test" if split == "test" else "train")
    return cretta.data.cifar100(cretta.data.dataset_path("cifar100", root), "test" if split == "test" else "train")


def labeled_buffer(name: str, root: Path | None, count: int = 500) -> cretta.SourceBuffer:
    source = dataset(name, "train", root)
    if len(source) > count:
        return cretta.SourceBuffer.sample(_Items(source), size=count)
    return cretta.SourceBuffer(source.images, source.labels)


class _Items:
    """A dataset as ``SourceBuffer.sample`` takes it."""

    def __init__(self, source: ArrayDataset) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        return self.source.images[index], int(self.source.labels[index])


def pixels(images: NDArray[np.uint8]) -> Tensor:
    return as_batch(np.ascontiguousarray(images), "cpu")


def follow(model: Callable[[Tensor], Tensor], batches: Iterable[Tensor]) -> list[Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [model(x).detach() for x in batches]


def accuracy(logits: Iterable[Tensor], labels: Iterable[Tensor]) -> float:
    correct = [(z.argmax(-1) == y).double() for z, y in zip(logits, labels, strict=True)]
    return float(torch.cat(correct).mean())


def run_rows(path: Path, cases: Mapping[str, Callable[[], Row]], only: str = "") -> list[Row]:
    """Compute what is missing in the file of results, and save it after each row; return all rows."""
    rows: dict[str, Row] = {row["key"]: row for row in json.loads(path.read_text())} if path.exists() else {}
    due = [key for key in cases if key not in rows and only in key]
    path.parent.mkdir(exist_ok=True)
    with detail_bars() as bar:
        task = bar.add_task(path.stem, total=len(due), details="")
        for key in due:
            begun = time.perf_counter()
            rows[key] = {"key": key, **cases[key]()}
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps([rows[k] for k in sorted(rows)], indent=1) + "\n")
            bar.update(task, advance=1, details=f"{key} · {time.perf_counter() - begun:.0f} s")
    return [rows[key] for key in sorted(rows)]
