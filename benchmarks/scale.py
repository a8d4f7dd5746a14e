"""What more workers, ranks and GPUs gain: measured here, and computed from that for ImageNet-C.

    python benchmarks/scale.py grid      # 28 runs by one and two workers, local and Ray: about 7 minutes
    python benchmarks/scale.py ranks     # adaptation by one and two ranks: about 3 minutes
    python benchmarks/scale.py cost      # images per second of the methods on ImageNet's size: about 2 minutes
    python benchmarks/scale.py lost      # how soon a rank notices that another was killed: seconds
    python benchmarks/scale.py tables    # write the tables of docs/scaling.md from the results, measure nothing

Several parts can be given. `--quick` takes a few images, prints the tables and saves nothing: it shows that the program
works, not how fast it is.

Measure on a machine that does nothing else: `grid` needs two free cores. Every worker and rank has one thread. The
results go to benchmarks/results/scale.json, under the name of the part, and from there into docs/scaling.md. `grid`
exits with status 1 if two workers do not reach 1.8 times the speed of one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "scale.json"
PAGE = ROOT / "docs" / "scaling.md"
NOT_MEASURED = "Not measured yet on an idle machine."
LEAST = 1.8
"""Speed of two workers over that of one."""
GPUS = (1, 8, 64)
TERAFLOPS = 10.0
"""What a GPU is assumed to sustain in these networks, in 10¹² operations per second; none was available."""
METHODS = ("bn_adapt", "tent")
BATCHES = (16, 64)
DOMAINS = 14
"""Corruptions of the grid: with many runs, no worker waits long for the last one of another."""
IMAGES, BATCH = 750, 20
"""Images per run of the grid, and per batch: enough that a worker mostly adapts, and seldom prepares a method."""


def grid(*, quick: bool = False) -> dict[str, Any]:
    """Time the runs of a grid by each engine, and compare the results."""
    from cretta.accelerate import kernels
    from cretta.bench import Buffer, Domain, Listener, Result, Run, RunContext, Store, engine
    from cretta.data import CORRUPTIONS

    # Without timing: processes could choose different kernels, which round differently.
    os.environ["CRETTA_KERNELS"] = next(iter(kernels.paths("auto")), "off")
    images, domains = (4, 4) if quick else (IMAGES, DOMAINS)
    base = Run(
        data="embedded",
        domains=(Domain("fog", 5),),
        model="wrn-40-2-cifar10",
        images=images,
        batch_size=images // 2 if quick else BATCH,
        buffer=Buffer(size=100),
    )
    shifts = [name for name in CORRUPTIONS if name != "frost"][:domains]  # whose photographs may not be there
    runs = [
        dataclasses.replace(base, method=method, domains=(Domain(shift, 5),)) for method in METHODS for shift in shifts
    ]
    seconds: dict[str, float] = {}
    working: dict[str, float] = {}
    contents = []

    class Progress(Listener):
        began, ended = 0.0, 0

        def begins(self, run: Run, images: int) -> None:
            """Record when the first run began."""
            self.began = self.began or time.perf_counter()

        def ends(self, run: Run, result: Result, *, stored: bool) -> None:
            """Print how many runs are finished, now and then."""
            self.ended += 1
            if self.ended % 8 == 0:
                print(f"  {self.ended}/{len(runs)} runs, {time.perf_counter() - self.began:.1f} s", flush=True)

    for name, workers in (("local", 1), ("local", 2), ("ray", 2)):
        label = f"{name}, {workers} worker{'s' * (workers > 1)}"
        print(label, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            begun, progress = time.perf_counter(), Progress()
            results = {}
            for run, result in engine(name, workers=workers, threads=1).run_all(
                runs, Store(folder), RunContext(), progress
            ):
                results[run] = comparable(result)
                working[label] = time.perf_counter() - progress.began  # until the last result, without the shutdown
            seconds[label] = time.perf_counter() - begun
            contents.append(results)
        print(f"{label}: {seconds[label]:.1f} s, {working[label]:.1f} s since the first run began", flush=True)
    differing = [run for run in runs if any(results[run] != contents[0][run] for results in contents)]
    if differing:
        raise SystemExit(
            f"expected identical results of all engines, got {len(differing)} different ones: {differing[0]}"
        )
    return {
        "runs": len(runs),
        "images_per_run": images,
        "kernels": os.environ["CRETTA_KERNELS"],
        "seconds": seconds,
        "working": working,
        "identical": True,
    }


def comparable(result: Any) -> Any:
    """Return a result without the seconds in it, and the commit, which may change while this runs."""
    rows = tuple(dataclasses.replace(row, seconds=0.0) for row in result.rows)
    return dataclasses.replace(result, rows=rows, provenance=result.provenance | {"commit": None})


def fork_ranks(size: int, work: Callable[[Any, Path], None], folder: Path) -> list[int]:
    """Fork ranks that call ``work``, and return their exit codes."""
    import torch.distributed as dist

    from cretta.distributed import join

    processes = []
    for rank in range(size):
        process = os.fork()
        if process == 0:
            code = 1
            try:
                dist.init_process_group(
                    "gloo", f"file://{folder}/group", rank=rank, world_size=size, timeout=timedelta(seconds=300)
                )
                work(join(), folder)
                code = 0
            except Exception as error:
                (folder / f"error-{rank}").write_text(f"{time.time()}\n{type(error).__name__}: {error}")
            finally:
                os._exit(code)
        processes.append(process)
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def ranks(*, quick: bool = False) -> dict[str, Any]:
    """Time steps of one process, and of one and two ranks, for two sizes of the batch."""
    import torch

    import cretta

    torch.set_num_threads(1)
    net = cretta.models.load("wrn-40-2-cifar10")
    images = torch.from_numpy(cretta.data.embedded("test").images).permute(0, 3, 1, 2) / 255
    buffer = cretta.SourceBuffer(images[-128:], augment="none")

    def seconds(method: str, x: Any, group: Any = None, **options: Any) -> float:
        model = cretta.adapt(net, method, buffer=buffer, **options)
        if group is not None:
            model.distribute(group)
            x = x[group.part(len(x))]
        times = []
        for number in range(4):
            begun = time.perf_counter()
            model(x)
            if number > 1:
                times.append(time.perf_counter() - begun)
        return statistics.median(times)

    rows = []
    for method in ("tent", "cretta"):
        for batch in (2, 4) if quick else BATCHES:
            x = images[:batch]
            row: dict[str, Any] = {"method": method, "batch": batch}
            for name, size, options in (
                ("alone", 1, {}),
                ("alone, plain", 1, {"fuse": False}),
                ("1 rank", 1, {}),
                ("2 ranks", 2, {}),
            ):

                def work(
                    group: Any,
                    folder: Path,
                    method: str = method,
                    x: Any = x,
                    name: str = name,
                    options: dict[str, Any] = options,
                ) -> None:
                    taken = seconds(method, x, group if "rank" in name else None, **options)
                    if group.rank == 0:
                        (folder / "seconds").write_text(str(taken))

                with tempfile.TemporaryDirectory() as scratch:
                    codes = fork_ranks(size, work, Path(scratch))
                    errors = [path.read_text() for path in Path(scratch).glob("error-*")]
                    assert codes == [0] * size, errors
                    row[name] = float((Path(scratch) / "seconds").read_text())
                print(f"{method}, batch of {batch}, {name}: {row[name]:.2f} s per step", flush=True)
            rows.append(row)
    return {"steps": rows}


def cost(*, quick: bool = False) -> dict[str, Any]:
    """Time and count the methods of the ImageNet items on a ResNet-18 with random weights, images of 224 px."""
    import torch

    import cretta
    from cretta import paper
    from cretta.metrics import count_operations
    from networks import resnet18

    torch.set_num_threads(1)
    torch.manual_seed(0)
    side = 32 if quick else 224
    net, x = resnet18().eval(), torch.rand(2, 3, side, side)
    buffer = cretta.SourceBuffer(torch.rand(16, 3, side, side), augment="none")
    planned = {
        run for item in paper.items().values() for run in item.plan(paper.scale("full")) if run.data == "imagenet"
    }
    rows = []
    for method in sorted({run.method for run in planned}):
        options: dict[str, Any] = {"replay": 16} if method == "tea" else {}
        model = cretta.adapt(net, method, buffer=buffer, **options)
        operations, _ = count_operations(model, x, scale_to=1)
        model.reset()
        begun = time.process_time()  # of one thread, so that other work on the machine does not count
        model(x)
        taken = time.process_time() - begun
        rows.append(
            {
                "method": method,
                "runs": sum(run.method == method for run in planned),
                "gflops": operations / 1e9,
                "images_per_second": len(x) / taken,
            }
        )
        print(rows[-1], flush=True)
    return {"images": 50_000, "methods": rows}


def lost(*, quick: bool = False) -> dict[str, Any]:
    """Kill one of two ranks in the middle of a step, and time the error of the other."""
    import torch

    import cretta
    from cretta.distributed import Group

    torch.set_num_threads(1)
    net = cretta.models.load("wrn-40-2-cifar10")
    x = torch.from_numpy(cretta.data.embedded("test").images[:16]).permute(0, 3, 1, 2) / 255

    def work(group: Group, folder: Path) -> None:
        model = cretta.adapt(net, "tent").distribute(group)
        model(x[group.part(16)])
        if group.rank == 1:

            def die(*_: object) -> None:
                (folder / "killed").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)

            group.average_gradients = die  # type: ignore[method-assign, assignment]  # in the middle of the step
        model(x[group.part(16)])

    with tempfile.TemporaryDirectory() as name:
        codes = fork_ranks(2, work, Path(name))
        noticed, message = (Path(name) / "error-0").read_text().split("\n", 1)
        killed = float((Path(name) / "killed").read_text())
    assert codes == [1, -signal.SIGKILL]
    return {"seconds": float(noticed) - killed, "message": message}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {"grid": grid, "ranks": ranks, "cost": cost, "lost": lost}


def table(headings: list[str], rows: Iterator[list[str]]) -> str:
    """Return a table in Markdown, numbers to the right."""
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def caption(measured: dict[str, Any]) -> str:
    """Return on which machine, and when, a part was measured; nothing if that was not saved."""
    if "machine" not in measured:
        return ""
    machine = measured["machine"]
    return f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, {machine['date']}.\n\n"


def speedup(results: dict[str, Any], engine: str) -> float:
    """Return the speed of two workers over that of one process, from the beginning of the first run on."""
    working = results["grid"]["working"]
    return float(working["local, 1 worker"] / working[f"{engine}, 2 workers"])


def hours(results: dict[str, Any], gpus: int) -> float:
    """Return the hours that the ImageNet runs take on ``gpus`` GPUs: longest runs first, each to the first free GPU."""
    measured = results["cost"]
    runs = [
        measured["images"] * row["gflops"] / (1e3 * TERAFLOPS) / 3600
        for row in measured["methods"]
        for _ in range(row["runs"])
    ]
    free = [0.0] * gpus
    for duration in sorted(runs, reverse=True):
        first = min(range(gpus), key=free.__getitem__)
        free[first] += duration
    return max(free)


def _between(content: str, match: re.Match[str]) -> str:
    return f"{match[1]}{content}{match[2]}"


def tables(results: dict[str, Any]) -> dict[str, str]:
    """Return the generated parts of the page by name."""
    content = dict.fromkeys(("grid", "ranks", "cost", "gpus"), NOT_MEASURED)
    if "grid" in results:
        seconds, working = results["grid"]["seconds"], results["grid"]["working"]
        images = results["grid"]["runs"] * results["grid"]["images_per_run"]
        rates = {name: images / taken for name, taken in working.items()}
        one = rates["local, 1 worker"]
        grid_rows = (
            [name, f"{seconds[name]:.0f}", f"{working[name]:.0f}", f"{rate:.1f}", f"{rate / one:.2f}"]
            for name, rate in rates.items()
        )
        headings = ["engine", "seconds", "of them since the first run began", "images/s", "× 1 worker"]
        content["grid"] = caption(results["grid"]) + table(headings, grid_rows)
    if "ranks" in results:
        rank_rows = (
            [row["method"], str(row["batch"])]
            + [f"{row['batch'] / row[name]:.1f}" for name in ("alone", "alone, plain", "1 rank", "2 ranks")]
            + [f"{row['1 rank'] / row['2 ranks']:.2f}", f"{row['alone'] / row['2 ranks']:.2f}"]
            for row in results["ranks"]["steps"]
        )
        headings = ["method", "batch", "one process", "not rewritten", "1 rank", "2 ranks"]
        headings += ["2 ranks / 1 rank", "2 ranks / one process"]
        content["ranks"] = caption(results["ranks"]) + table(headings, rank_rows)
    if "cost" in results:
        measured = results["cost"]
        cost_rows = (
            [
                row["method"],
                str(row["runs"]),
                f"{row['gflops']:.1f}",
                f"{row['images_per_second']:.2f}",
                f"{row['runs'] * measured['images'] / row['images_per_second'] / 3600:,.0f}",
                f"{row['runs'] * measured['images'] * row['gflops'] / (1e3 * TERAFLOPS) / 3600:,.0f}",
            ]
            for row in measured["methods"]
        )
        gpu_rows = ([str(gpus), f"{hours(results, gpus):,.1f}", f"{hours(results, gpus) / 24:.1f}"] for gpus in GPUS)
        headings = ["method", "runs", "GFLOP per image", "images/s here", "core hours here", "GPU hours"]
        content["cost"] = caption(measured) + table(headings, cost_rows)
        content["gpus"] = table(["GPUs", "hours", "days"], gpu_rows)
    return content


def page(text: str, results: dict[str, Any]) -> str:
    """Return the page with the tables of these results."""
    for name, content in tables(results).items():
        text = re.sub(
            rf"(<!-- generated: {name} -->\n).*?(\n<!-- end -->)",
            partial(_between, content),
            text,
            flags=re.DOTALL,
        )
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="+", choices=[*PARTS, "tables"], help="what to measure")
    parser.add_argument("--quick", action="store_true", help="few images; print the tables, save nothing")
    arguments = parser.parse_args()
    chosen, quick = arguments.part, arguments.quick
    if len(chosen) > 1:  # in a process each: one that has computed gradients cannot be forked any more
        options = ["--quick"] * quick
        return max(
            subprocess.run([sys.executable, __file__, part, *options], check=False).returncode for part in chosen
        )
    (part,) = chosen
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() and not quick else {}
    if part != "tables":
        begun = time.perf_counter()
        results[part] = PARTS[part](quick=quick)
        from results import machine

        results[part]["machine"] = machine()
        print(f"{part}: {time.perf_counter() - begun:.0f} s")
    if quick:
        print(*tables(results).values(), sep="\n\n")
    else:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        PAGE.write_text(page(PAGE.read_text(), results))
    if part == "grid":
        ratios = {name: speedup(results, name) for name in ("local", "ray")}
        print(", ".join(f"{name}: {ratio:.2f} × one worker" for name, ratio in ratios.items()))
        return int(min(ratios.values()) < LEAST and not quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
