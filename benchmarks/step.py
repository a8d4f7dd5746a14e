"""What a step costs: methods beside textbook steps of TENT, CreTTA and TEA, and each setting of the kernels, in turns.

    python benchmarks/step.py [--network wrn …] [--part limits …] [--rounds 10] [--add]

Parts: `limits` has what the limits of this project are about, `methods` the other methods, `tea` TEA, whose steps take
a minute (three rounds), `textbook-tea` the same without ours, `paths` some methods with each setting of CRETTA_KERNELS
that this processor has. All steps of a part get the same images, begin with the same network and take turns; times are
medians, after steps that are not timed. Memory is the peak of tensors during a step beyond those that existed before;
GFLOPs are those of forward passes, as the paper counts. After each round the times are saved in benchmarks/results/,
from which scripts/write_speed.py writes docs/speed.md; `--add` adds rounds to those of an earlier run. All parts of all
networks take about an hour on two cores. A limit that is missed ends the run with an error.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor

import cretta
import results
from cretta.accelerate import kernels
from cretta.metrics import count_operations, peak_meter
from cretta.metrics.operations import OperationCount
from networks import CASES, SOURCE, Case
from textbook_steps import TextbookCreTTA, TextbookTEA, TextbookTent

FILE = "step.json"
PARTS = ("limits", "methods", "textbook-tea", "tea", "paths")
TEA_ROUNDS = 3
COUNTED = 10
"""Images with which operations are counted, a fifth of which is a whole number."""
OTHERS = ("pl", "shot", "shot_im", "eta", "eata", "aea", "sar")


class Contender:
    """A method's step and what it costs."""

    def __init__(self, name: str, make: Callable[[], Any], setting: str | None = None) -> None:
        self.name = name
        self.make = make
        self.setting = setting
        """Used instead of CRETTA_KERNELS."""
        self.row: dict[str, Any] = {"name": name, "seconds": []}

    def prepare(self, batches: list[Tensor], *, meter: bool) -> None:
        """Build it, time the first batch, and measure what a step takes."""
        begun = time.perf_counter()
        self.step = self.make()
        self._run(batches[0])
        self.row["first"] = time.perf_counter() - begun
        if meter:
            few = batches[0][:COUNTED]
            self.row["gigaflops"] = self._forwards(few) * len(batches[0]) / len(few) / 1e9
            with peak_meter(batches[0].device) as peak:
                self._run(batches[1 % len(batches)])
            self.row["megabytes"] = peak.peak / 2**20
        elif "TEA" not in self.name:
            self._run(batches[1 % len(batches)])

    def _run(self, batch: Tensor) -> None:
        with kernels.use(self.setting) if self.setting else nullcontext():
            self.step(batch)

    def _forwards(self, few: Tensor) -> int:
        if isinstance(self.step, cretta.Adapter):
            return count_operations(self.step, few)[1]
        twin = self.make()
        count = OperationCount(twin.networks)
        with count:
            twin(few)
        return count.forward

    def take(self, batch: Tensor) -> None:
        """Take one step and time it."""
        begun = time.perf_counter()
        self._run(batch)
        self.row["seconds"].append(time.perf_counter() - begun)


def contenders(case: Case, part: str) -> list[Contender]:
    """Return what takes turns in a part, cheap ones first."""
    net, source = case.network(), case.source()
    buffer = cretta.SourceBuffer(source, augment="none")
    # Batch statistics of one image of one pixel do not exist: small networks reduce images that far.
    statistics = {"statistics": "mixture"} if case.batch == 1 else {}

    def ours(name: str, label: str = "", setting: str | None = None, **options: Any) -> Contender:
        return Contender(
            label or name, lambda: cretta.adapt(net, name, buffer=buffer, **statistics, **options), setting
        )

    tent = Contender("textbook TENT", lambda: TextbookTent(net))
    fast = ours("cretta", "cretta fast", preset="fast")
    if part == "limits":
        textbook = Contender("textbook CreTTA", lambda: TextbookCreTTA(net, source))
        lean = ours("cretta", "cretta lean", lean=True)
        return [tent, textbook, ours("source"), ours("bn_adapt"), ours("tent"), ours("cretta"), lean, fast]
    if part == "methods":
        return [tent, *map(ours, OTHERS)]
    if part in ("tea", "textbook-tea"):
        replay = torch.empty(SOURCE, *source.shape[1:]).uniform_(-1, 1)
        textbook = Contender("textbook TEA", lambda: TextbookTEA(net, replay))
        return [tent, ours("cretta"), fast, textbook, *([ours("tea", replay=SOURCE)] if part == "tea" else [])]
    settings = ("auto", "off", *(path for path in kernels.paths() if len(kernels.paths()) > 1 or path == "avx2"))
    return [ours(name, f"{name}, {setting}", setting) for name in case.methods for setting in settings]


def measure(name: str, part: str, rounds: int, *, add: bool) -> dict[str, Any]:
    """Time a part of a network and save it after each round; return what was saved."""
    case = CASES[name]
    key = f"{name} {part}"
    saved = results.load(FILE)
    earlier = saved.get(key, {"rows": []}) if add else {"rows": []}
    everyone, batches = contenders(case, part), case.batches()
    for contender in everyone:
        contender.row["seconds"] += next((r["seconds"] for r in earlier["rows"] if r["name"] == contender.name), [])
    everyone[0].make()(batches[0])  # loads libraries
    with Progress(transient=True) as progress:
        task = progress.add_task("steps", total=len(everyone) * (rounds + 1))
        for contender in everyone:
            progress.update(task, description=f"{case.title}, {part}: {contender.name}, first steps")
            contender.prepare(batches, meter=part in ("limits", "methods"))
            progress.advance(task)
        for turn in range(rounds):
            for contender in everyone:
                progress.update(
                    task, description=f"{case.title}, {part}: round {turn + 1} of {rounds}, {contender.name}"
                )
                contender.take(batches[turn % len(batches)])
                progress.advance(task)
            model = next((one.step for one in everyone if one.name in ("cretta", "cretta, auto")), None)
            backend = getattr(model, "backend", None)
            content = {
                "title": case.title,
                "batch": case.batch,
                "machine": results.machine(),
                "backend": str(backend) if backend is not None else "",
                "rows": [contender.row for contender in everyone],
            }
            saved[key] = content
            results.save(FILE, saved)
    return content


# What is required.

LIMITS: tuple[tuple[str, str, str, str, str, float], ...] = (
    ("limits", "seconds", "cretta", "textbook TENT", "≤", 1.6),
    ("limits", "seconds", "cretta fast", "textbook TENT", "≤", 0.85),
    ("limits", "seconds", "cretta", "textbook CreTTA", "≤", 0.45),
    ("limits", "seconds", "tent", "textbook TENT", "≤", 0.5),
    ("textbook-tea", "seconds", "textbook TEA", "cretta", "≥", 14.0),
    ("textbook-tea", "seconds", "textbook TEA", "cretta fast", "≥", 26.0),
    ("limits", "megabytes", "cretta lean", "textbook TENT", "≤", 0.55),
    ("limits", "gigaflops", "cretta", "source", "≤", 4.01),
    ("limits", "gigaflops", "cretta fast", "source", "≤", 2.3),
)
"""Part, quantity, two rows, and the limit of their ratio, for WRN-40-2 with batches of 200."""
QUANTITIES = {"seconds": "time", "megabytes": "memory", "gigaflops": "GFLOPs, paper's counting"}
SLOWER = 1.03
"""The most that `auto` may take relative to `off`, on every network."""


def value(row: dict[str, Any], quantity: str) -> float:
    """Return the median of the times, or another quantity."""
    return float(statistics.median(row[quantity]) if quantity == "seconds" else row[quantity])


def table(content: dict[str, Any]) -> str:
    """Return the times of a part, and memory and operations where they were measured."""
    base = content["rows"][0]
    metered = "megabytes" in base
    head = f"{'':18}{'s per step':>11}{'images/s':>10}{'× ' + base['name']:>16}"
    lines = [head + (f"{'peak MB':>9}{'ratio':>7}{'GFLOPs':>9}{'first s':>9}" if metered else "")]
    for row in content["rows"]:
        seconds = value(row, "seconds")
        line = f"{row['name']:18}{seconds:11.4f}{content['batch'] / seconds:10.1f}"
        line += f"{seconds / value(base, 'seconds'):16.2f}"
        if metered:
            line += f"{row['megabytes']:9.0f}{row['megabytes'] / base['megabytes']:7.2f}"
            line += f"{row['gigaflops']:9.1f}{row['first']:9.2f}"
        lines.append(line)
    lines.append(f"medians of {min(len(row['seconds']) for row in content['rows'])} rounds or more")
    return "\n".join(lines)


def limits(saved: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return a line for each limit on WRN-40-2 that was measured, and whether it holds."""
    lines = []
    for part, quantity, one, other, sign, limit in LIMITS:
        rows = {row["name"]: row for row in saved.get(f"wrn {part}", {"rows": []})["rows"]}
        if one in rows and other in rows:
            ratio = value(rows[one], quantity) / value(rows[other], quantity)
            holds = ratio <= limit if sign == "≤" else ratio >= limit
            text = f"{QUANTITIES[quantity]:26}{one + ' / ' + other:32}{ratio:7.3f}  {sign} {limit:<5}"
            lines.append((text + ("" if holds else " MISSED"), holds))
    return lines


def slowdowns(content: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return a line for each method with `auto` relative to `off`, and whether it is not slower."""
    rows = {row["name"]: value(row, "seconds") for row in content["rows"]}
    lines = []
    for name in (name.removesuffix(", auto") for name in rows if name.endswith(", auto")):
        ratio = rows[f"{name}, auto"] / rows[f"{name}, off"]
        text = f"{content['title'] + ', ' + name:60}auto / off {ratio:6.3f}  ≤ {SLOWER}"
        lines.append((text + ("" if ratio <= SLOWER else " MISSED"), ratio <= SLOWER))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="append", choices=tuple(CASES), help="default: all")
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all for wrn, paths for the others")
    parser.add_argument("--rounds", type=int, help="default: by network, ten or more; three for tea")
    parser.add_argument("--add", action="store_true", help="add rounds to the saved ones")
    arguments = parser.parse_args()
    print(f"{results.machine()['processor']}; custom CPU kernels: {results.machine()['kernels']}")
    fine = True
    for name in arguments.network or CASES:
        default = tuple(part for part in PARTS if part != "textbook-tea") if name == "wrn" else ("paths",)
        for part in arguments.part or default:
            rounds = arguments.rounds or (TEA_ROUNDS if "tea" in part else CASES[name].rounds)
            content = measure(name, part, rounds, add=arguments.add)
            print(f"\n{content['title']}, {part}; {content['backend']}\n{table(content)}")
            checked = slowdowns(content) if part == "paths" else limits(results.load(FILE)) if name == "wrn" else []
            for line, holds in checked:
                print(line)
                fine &= holds
    if not fine:
        sys.exit("a limit was missed")


if __name__ == "__main__":
    main()
