"""The processor time that help takes: every command, in new processes.

    python benchmarks/startup.py [--repeat 5]

Prints the least user plus system seconds of each command, because other work on the machine only adds to it. Exits with
status 1 if `cretta --help` takes more than LIMIT seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from cretta.cli import app

LIMIT = 0.4
"""Seconds of `cretta --help`."""


def processor_seconds(arguments: list[str]) -> float:
    """Return the user and system seconds of one process."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "cretta", *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="processes per command (default: %(default)s)")
    repeat = parser.parse_args().repeat
    commands = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    commands += [group.name or "" for group in app.registered_groups]
    least = {}
    for path in [[], *([name] for name in commands)]:
        least[" ".join(path)] = min(processor_seconds([*path, "--help"]) for _ in range(repeat))
        print(f"{least[' '.join(path)]:.2f} s  cretta {' '.join([*path, '--help'])}", flush=True)
    return int(least[""] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
