"""Compare the time of a step between two versions of the source code, in one run.

    git worktree add ../before REVISION
    python benchmarks/versions.py ../before/src src [--steps 11] [--batch 200]

Each version runs in a process of its own; their steps alternate, so that both meet the same machine. Shipped WRN-40-2,
TENT and CreTTA. A median that is more than 3 % longer in the second version ends the run with an error.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

LIMIT = 1.03
STEPS = """
import sys, time
import torch, cretta
from cretta.data import embedded

def images(split, count):
    return torch.from_numpy(embedded(split).images[:count]).permute(0, 3, 1, 2).float() / 255

batch = int(sys.argv[1])
net, x = cretta.models.load("wrn-40-2-cifar10"), images("test", batch)
buffer = cretta.SourceBuffer(images("train", 1000), augment="none")
adapters = {"tent": cretta.adapt(net, "tent"), "cretta": cretta.adapt(net, "cretta", buffer=buffer)}
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    adapters[line.strip()](x)
    print(time.perf_counter() - start, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs=2, type=Path, metavar="SRC", help="folders that hold the package cretta")
    parser.add_argument("--steps", type=int, default=11, help="timed steps per method and version (default: 11)")
    parser.add_argument("--batch", type=int, default=200, help="images per batch (default: 200)")
    arguments = parser.parse_args()
    versions = [
        subprocess.Popen(
            [sys.executable, "-c", STEPS, str(arguments.batch)],
            env={**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_WAIT_POLICY": "PASSIVE"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for source in arguments.sources
    ]

    def answer(version: subprocess.Popen[str], method: str = "") -> str:
        assert version.stdin is not None
        assert version.stdout is not None
        if method:
            print(method, file=version.stdin, flush=True)
        return version.stdout.readline()

    for version in versions:
        if answer(version) != "ready\n":
            sys.exit("a version did not start; its error is above")
    print(f"{'method':8} {'before, s':>10} {'after, s':>10} {'ratio':>6}")
    slower = False
    for method in ("tent", "cretta"):
        times: list[list[float]] = [[], []]
        for step in range(arguments.steps + 2):  # the first two are not timed: choices are made there
            for version, measured in zip(versions, times, strict=True):
                seconds = float(answer(version, method))
                if step >= 2:
                    measured.append(seconds)
        before, after = map(statistics.median, times)
        ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
        slower |= ratio > LIMIT
        print(f"{method:8} {before:10.3f} {after:10.3f} {ratio:6.3f}", flush=True)
    for version in versions:
        version.communicate()
    if slower:
        sys.exit(f"the second version is slower by more than {100 * LIMIT - 100:.0f} %")


if __name__ == "__main__":
    main()
