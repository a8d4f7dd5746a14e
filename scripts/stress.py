"""Run the tests repeatedly, also beside busy loops: no test may depend on the speed of the machine.

Without options, this is what a release needs: the full suite four times, two of them under load, then every test that
starts, stops or kills a process (`pytest -m process`) thirty times under load. It takes hours. With --log, finished
runs are recorded in a file, and the same command continues after the last of them. Arguments that are not listed here
are passed to pytest; without any, it runs on all cores, as `make test` does.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# Ends on its own if this process is killed.
LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(1_000_000))"


@contextlib.contextmanager
def load(loops: int) -> Iterator[None]:
    """Keep this number of cores busy."""
    running = [subprocess.Popen([sys.executable, "-c", LOOP, str(os.getpid())]) for _ in range(loops)]
    try:
        yield
        for loop in running:
            if loop.poll() is not None:
                raise RuntimeError(f"a busy loop ended with code {loop.returncode}: these tests ran under less load.")
    finally:
        for loop in running:
            loop.kill()
            loop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=int, default=4, help="runs of the full suite (default: %(default)s)")
    parser.add_argument("--loaded", type=int, default=2, help="how many of them under load (default: %(default)s)")
    parser.add_argument("--process", type=int, default=30, help="runs of the process tests (default: %(default)s)")
    parser.add_argument("--loops", type=int, default=2, help="busy loops that make the load (default: %(default)s)")
    parser.add_argument("--log", type=Path, help="JSON lines of finished runs; continue after the last of them")
    options, others = parser.parse_known_args()
    everything: list[str] = []
    runs = [("full suite", everything, number >= options.suite - options.loaded) for number in range(options.suite)]
    runs += [("process tests", ["-m", "process"], True)] * options.process
    outcomes = _finished_runs(options.log, vars(options) | {"log": None, "others": others})
    for number, (name, selection, loaded) in enumerate(runs[len(outcomes) :], len(outcomes) + 1):
        loops = options.loops if loaded else 0
        now = time.strftime("%H:%M:%S")
        print(f"{now}  {number} of {len(runs)}: {name}, {loops} busy loops … ", end="", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", *selection, *(others or ["--numprocesses", "auto"])]
        with load(loops):
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = ended.stdout.splitlines()
        print(lines[-1] if lines else f"code {ended.returncode}", flush=True)
        failures = [line.split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))]
        outcomes.append(
            {"run": name, "loops": loops, "code": ended.returncode, "failures": failures, "last": lines[-1:]}
        )
        if options.log:
            with options.log.open("a", encoding="utf-8") as file:
                print(json.dumps(outcomes[-1]), file=file)
        if ended.returncode:
            print(ended.stdout, ended.stderr, sep="\n", flush=True)
    for failure, times in Counter(failure for outcome in outcomes for failure in outcome["failures"]).most_common():
        print(f"{times} × {failure}")
    passed = sum(outcome["code"] == 0 for outcome in outcomes)
    print(f"{passed} of {len(runs)} {'run' if len(runs) == 1 else 'runs'} passed.")
    return int(passed < len(runs))


def _finished_runs(log: Path | None, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs recorded in the log, which begins with the commit and the settings they belong to."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    first = json.dumps({"commit": commit.stdout.strip(), **settings})
    if log is None:
        return []
    if not log.exists():
        log.write_text(first + "\n", encoding="utf-8")
    recorded, *lines = log.read_text(encoding="utf-8").splitlines()
    if recorded != first:
        sys.exit(f"{log}: expected runs of {first}, got runs of {recorded}; give another --log.")
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
