"""Ranks that share the batches of an adapter: forked from one process that has everything imported.

FOLDER cases 3      what three ranks compute for each of CASES: FOLDER/cases-3-<rank>.pt
FOLDER nccl 2       the same on GPUs, for each method: FOLDER/nccl-2-<rank>.pt
FOLDER killed       rank 1 of two is killed in the middle of a step, after a state was saved
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import cretta
import textbook
from cretta.distributed import Group, join
from cretta.normalization import NormStatistics
from processes import LONG, signal_in

IMAGES = 7
STEPS = 3
"""Few: most of the time goes into messages between ranks, several for each layer and step."""
LONGER = (IMAGES,) * 5
"""Of these batches some are left after the kill."""
LEARNING = [name for name in cretta.methods.names() if cretta.methods.get(name).facts.updates != "nothing"]
LENIENT: dict[str, dict[str, Any]] = {
    "pl": {"threshold": 0.0, "lr": 1e-3},
    "eta": {"entropy_margin": 10.0, "redundancy_margin": 2.0},
    "eata": {"entropy_margin": 10.0, "redundancy_margin": 2.0, "fisher_batch": 6},
    "sar": {"entropy_margin": 10.0, "reset_below": 0.0},
    "tea": {"sampling_steps": 2, "replay": 30},
}
"""So that each method learns from an untrained network's predictions, in little time."""


class Groups(nn.Module):
    """GroupNorm, and a view that fails for a batch of no images."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(textbook.CHANNELS, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.head = nn.Linear(8, textbook.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).view(len(x), -1))
        return logits


class Vectors(nn.Module):
    """BatchNorm of two-dimensional inputs, whose parameters do not learn or do not exist."""

    def __init__(self) -> None:
        super().__init__()
        self.bare = nn.BatchNorm1d(textbook.CHANNELS, affine=False, track_running_stats=False)
        self.norm = nn.BatchNorm1d(8)
        self.first, self.head = nn.Linear(textbook.CHANNELS, 8), nn.Linear(8, textbook.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.first(self.bare(x.mean((2, 3))))).relu())
        return logits


@functools.cache
def made(kind: str) -> nn.Module:
    """Return a network, which adapters only read; ranks have it from the process that they are forked from."""
    if kind == "batch":
        return textbook.small_net()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Groups() if kind == "group" else Vectors()
    return textbook.settle(net, [])


@functools.cache
def source_images() -> Tensor:
    return textbook.source_images(20)


def stream(sizes: tuple[int, ...] = (IMAGES,) * STEPS) -> list[Tensor]:
    return textbook.batches(sizes)


def with_nan() -> list[Tensor]:
    batches = stream()
    batches[1][-1, 0, 0, 0] = torch.nan
    return batches


def far_outside() -> list[Tensor]:
    batches = stream()
    batches[2][0] *= 1e4
    return batches


@dataclasses.dataclass(frozen=True)
class Case:
    method: str
    network: str = "batch"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    batches: Callable[[], list[Tensor]] = stream
    broken: str = ""
    """What ranks leave out, so that the result must be another one."""

    def model(self) -> cretta.Adapter[Any]:
        buffer = cretta.SourceBuffer(source_images(), augment="none")
        options = {**LENIENT.get(self.method, {}), **self.options}
        return cretta.adapt(made(self.network), self.method, buffer=buffer, **options)


METHODS = {f"{name}, {kind} norm": Case(name, kind) for name in LEARNING for kind in ("batch", "group")}
CASES = METHODS | {
    "vectors": Case("tent", "vectors"),
    "bn_adapt": Case("bn_adapt"),
    "source": Case("source"),
    "mixture": Case("cretta", options={"statistics": "mixture"}),
    "moving": Case("cretta", options={"statistics": "moving"}),
    "training's statistics": Case("tent", options={"statistics": "running"}),
    "lean": Case("cretta", options={"lean": True}),
    "a source image for two": Case("cretta", options={"source_fraction": 0.1}),
    "all pairs": Case("cretta", options={"pairs": "cartesian"}),
    "target as source": Case("cretta", options={"source": "target"}),
    "reference of the batch": Case("cretta", options={"reference": "batch"}),
    "drawn weights": Case("cretta", options={"weighting": "uniform"}),
    "nce": Case("cretta", options={"objective": "nce"}),
    "several steps": Case("tent", options={"steps": 2, "predict": "after"}),
    "every second batch": Case("tent", options={"adapt_every": 2}),
    "episodic": Case("tent", options={"episodic": True}),
    "a guard": Case("tent", options={"lr": 0.5, "guard": "rollback"}),
    "filters that select few": Case("eta", options={"entropy_margin": None, "redundancy_margin": None}),
    "a reset within a batch": Case("sar", options={"reset_below": 1.0}),
    "one or two generated images": Case("tea", batches=functools.partial(stream, (2, 1, 2))),
    "batches of several sizes": Case("tent", batches=functools.partial(stream, (7, 1, 2, 9, 4))),
    "a value that is not a number": Case("cretta", batches=with_nan),
    "an image far outside": Case("cretta", batches=far_outside),
    "an image far outside, no buffer": Case("tent", batches=far_outside),
    "a learning rate that is too large": Case("tent", options={"lr": 1e38, "predict": "after"}),
    "gradients of own images": Case("tent", broken="gradients"),
    "statistics of own images": Case("tent", broken="statistics"),
}


def split(count: int, size: int, *, even: bool) -> list[int]:
    """Return the images of each rank: nearly the same; or the first most of them and, of three, the second none."""
    if even:
        return [(rank + 1) * count // size - rank * count // size for rank in range(size)]
    first = (3 * count + 3) // 4
    return [first, *[0] * (size - 2), count - first]


def outcomes(
    model: cretta.Adapter[Any], batches: list[Tensor], part: Callable[[Tensor], Tensor] = lambda x: x
) -> list[tuple[Tensor | str, str]]:
    """Return the logits, or the error, of each batch, and what is recorded of it."""
    results: list[tuple[Tensor | str, str]] = []
    for x in batches:
        try:
            logits: Tensor | str = model(part(x))
        except cretta.BatchError as error:
            logits = str(error)
        last = model.last
        results.append((logits, f"{last.size} {last.adapted} {last.skipped} {last.reason} {last.guard}"))
    results.append((model.predict(part(batches[0])), ""))
    return results


@contextlib.contextmanager
def left_out(what: str) -> Iterator[None]:
    average, moments = Group.average_gradients, NormStatistics.moments
    try:
        if what == "gradients":
            Group.average_gradients = lambda self, gradients: None  # type: ignore[method-assign]
        if what == "statistics":
            NormStatistics.moments = lambda self, x: torch.var_mean(x, [0, 2, 3], correction=0)[::-1]  # type: ignore[method-assign]
        yield
    finally:
        Group.average_gradients, NormStatistics.moments = average, moments  # type: ignore[method-assign]


def run_cases(group: Group, folder: Path) -> None:
    results = {}
    for even in (True, False):

        def part(x: Tensor, even: bool = even) -> Tensor:
            parts: tuple[Tensor, ...] = x.split(split(len(x), group.size, even=even))
            return parts[group.rank]

        for name, case in (METHODS if even else CASES).items():
            with left_out(case.broken):
                results[name, even] = outcomes(case.model().distribute(group), case.batches(), part)
    exported = Case("tent").model().distribute(group)
    exported(stream()[0][group.part(IMAGES)])
    results["export", True] = exported.export()(stream()[1])
    torch.save(results, folder / f"cases-{group.size}-{group.rank}.pt")
    check_errors(group, folder)


def check_errors(group: Group, folder: Path) -> None:
    """Check that ranks that do not agree end with an error, on all of them."""

    def message(expected: type[Exception], action: Callable[[], object]) -> str:
        try:
            action()
        except expected as error:
            return str(error)
        raise AssertionError(f"expected {expected.__name__}")

    own, rank = cretta.DistributedError, group.rank
    model = Case("tent").model().distribute(group)
    before = model.state_dict()
    x = stream()[0][group.part(IMAGES)]
    bad = x[0, 0] if rank == 1 else x
    assert "has no batch dimension" in message(cretta.BatchError, lambda: model(bad[0] if rank == 1 else bad))
    assert "one shape and dtype on all ranks" in message(cretta.BatchError, lambda: model(x[:, :, rank:]))
    assert "empty on all ranks" in message(cretta.BatchError, lambda: model(x[:0]))
    textbook.assert_bits(model.state_dict(), before)
    assert "no such folder" not in message(
        cretta.StateError if rank == 0 else own, lambda: model.save(folder / "missing" / "state.safetensors")
    )
    assert "the same options" in message(
        own, lambda: Case("tent", options={"lr": 0.1 + rank}).model().distribute(group)
    )
    assert "the same threads" in message(own, lambda: other_threads(group))
    torch.set_num_threads(1)
    model.distribute(Group(check_every=2))
    if rank == 1:
        model.learnable.flat[0].data[0] += 1e-3
    model(x)
    assert "after 2 steps the parameters of rank 1 differ" in message(own, lambda: model(x))


def other_threads(group: Group) -> None:
    torch.set_num_threads(1 + group.rank)
    Case("tent").model().distribute(group)


def run_on_gpus(group: Group, folder: Path) -> None:
    """Run each method on a GPU per rank."""

    def part(x: Tensor) -> Tensor:
        return x[group.part(len(x))].cuda()

    results = {}
    for name, case in METHODS.items():
        model = case.model().to("cuda").distribute(group)
        results[name, True] = [
            (value.cpu() if isinstance(value, Tensor) else value, record)
            for value, record in outcomes(model, case.batches(), part)
        ]
    torch.save(results, folder / f"nccl-{group.size}-{group.rank}.pt")


def save_and_be_killed(group: Group, folder: Path) -> None:
    model = Case("cretta").model().distribute(group)
    own = group.part(IMAGES)
    for number, x in enumerate(stream(LONGER)):
        if number == 2:
            model.save(folder / "state.safetensors")
            if group.rank == 1:  # in the middle of the next step: after its first forward pass
                signal_in("cretta.distributed:Group.average_gradients", 1, signal.SIGKILL)
        model(x[own])


def rank_process(work: Callable[[Group, Path], None], folder: Path, name: str, rank: int, size: int) -> int:
    """Fork a rank; its error, if it raises one, goes to FOLDER/error-<rank>."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        on_gpus = work is run_on_gpus
        if on_gpus:
            torch.cuda.set_device(rank)
        dist.init_process_group(
            "nccl" if on_gpus else "gloo",
            f"file://{folder}/{name}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=LONG),
        )
        work(join(), folder)
        dist.destroy_process_group()
        code = 0
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    size = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    source_images()
    for kind in ("batch", "group", "vectors"):  # once, not in each rank
        made(kind)
    gc.collect()
    gc.freeze()  # otherwise each rank looks through all of PyTorch's objects again and again
    work = {"cases": run_cases, "nccl": run_on_gpus, "killed": save_and_be_killed}[mode]
    ranks = [rank_process(work, folder, f"{mode}-{size}", rank, size) for rank in range(size)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
    print(*codes)


if __name__ == "__main__":
    main()
