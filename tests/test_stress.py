"""The script that runs the tests repeatedly, and the marker by which it selects those that start processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from processes import ENVIRONMENT, LONG

pytestmark = pytest.mark.process
STRESS = Path(__file__).parent.parent / "scripts" / "stress.py"
TESTS = """
import os, pathlib, subprocess, sys
import pytest

LOG = pathlib.Path(__file__).with_name("log")

def note(name):
    children = pathlib.Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
    with LOG.open("a") as file:
        file.write(f"{name} {len(children) - 1}\\n")  # this process is one of them

@pytest.mark.process
def test_process():
    note("process")
    assert LOG.read_text().count("process") != 2

def test_other():
    note("other")
"""
MARKED = """
import subprocess, sys
import pytest

@pytest.fixture(scope="module")
def process():
    subprocess.run([sys.executable, "--version"], check=True)

@pytest.mark.process
def test_marked():
    subprocess.run([sys.executable, "--version"], check=True)

def test_unmarked(process): pass

def test_without(): pass
"""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, *map(str, command)]
    environment = {**ENVIRONMENT, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which start slowly
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=LONG, check=False)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the busy loops")
def test_all_runs_are_made_under_their_load_and_failures_counted(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    log = tmp_path / "runs.jsonl"
    arguments = ("--suite", 2, "--loaded", 1, "--process", 2, "--loops", 1, "--log", log, file)
    ended = run(STRESS, *arguments)
    assert ended.returncode == 1, ended.stderr
    assert (tmp_path / "log").read_text().split("\n") == [
        *("process 0", "other 0"),
        *("process 1", "other 1"),
        *("process 1", "process 1", ""),
    ]
    failed, passed = ended.stdout.splitlines()[-2:]
    assert failed.startswith("1 × FAILED ")
    assert failed.endswith("test_some.py::test_process")
    assert passed == "3 of 4 runs passed."
    # The first two runs are in the log: the same command makes the other two, and counts all four.
    (tmp_path / "log").unlink()
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]))
    again = run(STRESS, *arguments)
    assert (tmp_path / "log").read_text().split("\n") == ["process 1", "process 1", ""]
    assert again.returncode == 1
    other = run(STRESS, "--suite", 3, *arguments[2:])
    assert other.returncode == 1
    assert "give another --log" in other.stderr
    ended = run(STRESS, "--suite", 0, "--process", 1, "--loops", 0, file)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.endswith("1 of 1 run passed.\n")


def test_a_test_that_starts_a_process_must_say_so(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(MARKED)
    ended = run("-m", "pytest", "-p", "conftest", "-q", file)
    assert "1 failed, 2 passed" in ended.stdout
    assert "test_some.py::test_unmarked" in ended.stdout
    assert "add @pytest.mark.process" in ended.stdout
