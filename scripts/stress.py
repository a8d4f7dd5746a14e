"""Run the tests repeatedly, also beside busy loops: no test may depend on the speed of the machine.

Without options, this is what a release needs: the full suite four times, two of them under load, then every test that
starts, stops or kills a process (`pytest -m process`) thirty times under load, several rounds in each run of pytest. It
takes hours, and says every minute how far it is. With --log, finished runs are recorded in a file, and the same command
continues after the last of them, as long as the files under version control are the same. Arguments that are not listed
here are passed to pytest; without any, it runs on all cores, as `make test` does.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PROGRESS = 60.0
"""Seconds between two lines that say how far a run is."""
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
    parser.add_argument("--process", type=int, default=30, help="rounds of the process tests (default: %(default)s)")
    together = "rounds in one run of pytest, whose workers wait for each other only at its end (default: %(default)s)"
    parser.add_argument("--together", type=int, default=5, help=together)
    parser.add_argument("--loops", type=int, default=2, help="busy loops that make the load (default: %(default)s)")
    parser.add_argument("--log", type=Path, help="JSON lines of finished runs; continue after the last of them")
    options, others = parser.parse_known_args()
    if options.together < 1:
        parser.error(f"--together {options.together}: expected 1 or more rounds in one run of pytest.")
    everything: list[str] = []
    runs = [("full suite", everything, number >= options.suite - options.loaded) for number in range(options.suite)]
    starts = range(0, options.process, options.together)
    runs += [_rounds(min(options.together, options.process - start)) for start in starts]
    outcomes = _finished_runs(options.log, vars(options) | {"log": None, "others": others})
    for number, (name, selection, loaded) in enumerate(runs[len(outcomes) :], len(outcomes) + 1):
        loops = options.loops if loaded else 0
        title = f"{number} of {len(runs)}: {name}, {loops} busy loops"
        later = [_expected(outcomes, kind, options.loops if busy else 0) for kind, _, busy in runs[number:]]
        _say(title)
        command = [sys.executable, "-m", "pytest", "-q", *(others or ["--numprocesses", "auto"]), *selection]
        before, start = _processor_time(), time.monotonic()
        with load(loops):
            code, lines = _run(command, title, later)
            seconds, work = time.monotonic() - start, _processor_time() - before
        _say(f"{title}: {lines[-1] if lines else f'code {code}'}, {work:.0f} s of processor time")
        failures = [line.split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))]
        outcomes.append(
            {"run": name, "loops": loops, "code": code, "failures": failures, "last": lines[-1:]}
            | {"seconds": round(seconds, 1), "processor": round(work, 1)}
        )
        if options.log:
            with options.log.open("a", encoding="utf-8") as file:
                print(json.dumps(outcomes[-1]), file=file)
        if code:
            print(*lines, sep="\n", flush=True)
    for failure, times in Counter(failure for outcome in outcomes for failure in outcome["failures"]).most_common():
        print(f"{times} × {failure}")
    passed = sum(outcome["code"] == 0 for outcome in outcomes)
    print(f"{passed} of {len(runs)} {'run' if len(runs) == 1 else 'runs'} passed.")
    return int(passed < len(runs))


def _rounds(count: int) -> tuple[str, list[str], bool]:
    """Return a run of so many rounds: in their order, and a worker has a file of a round as a whole (conftest.py)."""
    repeated = ["--count", str(count), "--repeat-scope", "session", "--dist", "loadfile", "--no-loadscope-reorder"]
    return f"process tests, {count} {'round' if count == 1 else 'rounds'}", ["-m", "process", *repeated], True


def _run(command: list[str], title: str, later: list[float | None]) -> tuple[int, list[str]]:
    """Run pytest; say every minute how far it is. Return its exit code and its output."""
    lines, start, said = [], time.monotonic(), time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            done = re.search(r"\[ *(\d+)%\]$", lines[-1])
            now = time.monotonic()
            if done and int(done[1]) and now - said >= PROGRESS:
                said, part = now, int(done[1]) / 100
                left = (now - start) * (1 - part) / part
                rest = [seconds if seconds is not None else left + now - start for seconds in later]
                minutes = f"{(now - start) / 60:.0f} min, {left / 60:.0f} min left"
                _say(f"{title}: {done[1]} % in {minutes}, of all runs {(left + sum(rest)) / 3600:.1f} h")
    return process.returncode, lines


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, sep="  ", flush=True)


def _expected(outcomes: list[dict[str, Any]], name: str, loops: int) -> float | None:
    """Return the seconds of the last run of this kind, under the same load if there was one."""
    alike = [outcome for outcome in outcomes if outcome["run"] == name]
    alike = [outcome for outcome in alike if outcome["loops"] == loops] or alike
    return float(alike[-1]["seconds"]) if alike else None


def _processor_time() -> float:
    """Return that of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _content() -> str:
    """Return a digest of the files under version control as they are: tests read nearly all of them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256()
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None}\n".encode())
    return digest.hexdigest()


def _finished_runs(log: Path | None, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs recorded in the log, which begins with the content and the settings they belong to."""
    if log is None:
        return []
    first = json.dumps({"content": _content(), **settings})
    if not log.exists():
        log.write_text(first + "\n", encoding="utf-8")
    recorded, *lines = log.read_text(encoding="utf-8").splitlines()
    if recorded != first:
        sys.exit(f"{log}: expected runs of {first}, got runs of {recorded}; give another --log.")
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
