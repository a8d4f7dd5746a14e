"""The processor time that starting takes: help of every command, and imports, in new processes.

    python benchmarks/startup.py [--repeat 5]

Prints the least user plus system seconds of each, because other work on the machine only adds to it. Exits with status
1 if `cretta --help` or `cretta --version` takes more than LIMIT seconds, or if `import cretta` and the use of a name of
it takes more than IMPORT_LIMIT times as long as `import torch`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import results
from cretta.cli import app

LIMIT = 0.4
"""Seconds of `cretta --help`."""
IMPORT_LIMIT = 1.15
IMPORTS = ("import torch", "import cretta", "import cretta; cretta.adapt")
"""The last one loads what an adapter needs, torch first."""


def processor_seconds(*arguments: str) -> float:
    """Return the user and system seconds of Python with these arguments."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="processes per command (default: %(default)s)")
    repeat = parser.parse_args().repeat
    with results.printed("startup"):
        fine = show(repeat)
    return int(not fine)


def show(repeat: int) -> bool:
    """Print all times; return whether the limits hold."""
    commands = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    commands += [group.name or "" for group in app.registered_groups]
    runs = [["--version"], ["--help"], *([name, "--help"] for name in commands)]
    least = {" ".join(run): min(processor_seconds("-m", "cretta", *run) for _ in range(repeat)) for run in runs}
    # In turns, because they are compared.
    rounds = [[processor_seconds("-c", code) for code in IMPORTS] for _ in range(repeat)]
    imports = dict(zip(IMPORTS, map(min, zip(*rounds, strict=True)), strict=True))
    for name, seconds in least.items():
        print(f"{seconds:.2f} s  cretta {name}")
    for name, seconds in imports.items():
        print(f"{seconds:.2f} s  python -c '{name}'")
    ratio = imports[IMPORTS[-1]] / imports["import torch"]
    print(f"the last one / import torch: {ratio:.3f}, limit {IMPORT_LIMIT}; limit of --help and --version: {LIMIT} s")
    return max(least["--help"], least["--version"]) <= LIMIT and ratio <= IMPORT_LIMIT


if __name__ == "__main__":
    sys.exit(main())
