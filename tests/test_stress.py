"""The script that runs the tests repeatedly, and the marker by which it selects those that start processes."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import processes
from processes import ENVIRONMENT

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
    assert LOG.read_text().count("process") != 4

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


UNPLUGGED = {**ENVIRONMENT, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Plugins start slowly."""


def run(*command: object, env: dict[str, str] = UNPLUGGED) -> subprocess.CompletedProcess[str]:
    return processes.run([sys.executable, *command], env=env)


@pytest.fixture
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which conftest.py starts fast: of PyTorch it uses one function, which is all that is there."""
    folder = tmp_path_factory.mktemp("without_torch")
    (folder / "torch.py").write_text("def set_num_threads(number): pass\n")
    return {**UNPLUGGED, "PYTHONPATH": f"{folder}{os.pathsep}{UNPLUGGED['PYTHONPATH']}"}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the busy loops")
def test_all_runs_are_made_under_their_load_and_failures_counted(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    log = tmp_path / "runs.jsonl"
    plugins = ("-p", "pytest_repeat", "-p", "xdist.plugin", "--numprocesses", 0)
    arguments = ("--suite", 2, "--loaded", 1, "--process", 6, "--loops", 1, "--log", log, *plugins, file)
    ended = run(STRESS, *arguments)
    assert ended.returncode == 1, ended.stderr
    assert (tmp_path / "log").read_text().split("\n") == [
        *("process 0", "other 0"),
        *("process 1", "other 1"),
        *["process 1"] * 6,
        "",
    ]
    assert [line.split("  ")[1] for line in ended.stdout.splitlines() if line.endswith(" busy loops")] == [
        "1 of 4: full suite, 0 busy loops",
        "2 of 4: full suite, 1 busy loops",
        "3 of 4: process tests, 5 rounds, 1 busy loops",
        "4 of 4: process tests, 1 round, 1 busy loops",
    ]
    assert ended.stdout.count(" s of processor time\n") == 4
    content, *records = map(json.loads, log.read_text().splitlines())
    assert len(content["content"]) == 64
    assert all(record["seconds"] > 0 and record["processor"] > 0 for record in records)
    failed, passed = ended.stdout.splitlines()[-2:]
    assert failed.startswith("1 × FAILED ")
    assert failed.endswith("test_some.py::test_process[2-5]")
    assert passed == "3 of 4 runs passed."
    # The first three runs are in the log: the same command makes the last one, and counts all four.
    (tmp_path / "log").unlink()
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:4]))
    again = run(STRESS, *arguments)
    assert (tmp_path / "log").read_text().split("\n") == ["process 1", ""]
    assert again.returncode == 1
    other = run(STRESS, "--suite", 3, *arguments[2:])
    assert other.returncode == 1
    assert "give another --log" in other.stderr
    ended = run(STRESS, "--suite", 0, "--process", 1, "--loops", 0, *plugins, file)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.endswith("1 of 1 run passed.\n")


def test_it_says_how_far_it_is_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    script = runpy.run_path(str(STRESS))
    run_pytest = script["_run"]
    run_pytest.__globals__["PROGRESS"] = 0.0
    run_pytest.__globals__["time"] = Mock(monotonic=Mock(side_effect=[0.0, 0.0, 60.0, 120.0]), strftime=str)
    program = [sys.executable, "-c", "print('.. [ 50%]')\nprint('2 passed')"]
    assert run_pytest(program, "a run", [3600.0, None]) == (0, [".. [ 50%]", "2 passed"])
    # One minute is left of this one; then an hour; then what this one takes.
    assert capsys.readouterr().out.endswith("a run: 50 % in 1 min, 1 min left, of all runs 1.1 h\n")
    outcomes = [{"run": "a", "loops": 0, "seconds": 1}, {"run": "a", "loops": 2, "seconds": 2}]
    assert [script["_expected"](outcomes, *kind) for kind in (("a", 0), ("a", 2), ("a", 1), ("b", 0))] == [
        1,
        2,
        2,
        None,
    ]


def test_a_worker_has_a_file_of_a_round_as_a_whole(tmp_path: Path, without_torch: dict[str, str]) -> None:
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text("".join(f"def test_{n}(): pass\n" for n in range(6)))
    _, (_, _, *rounds), _ = runpy.run_path(str(STRESS))["_rounds"](2)
    plugins = ("-p", "conftest", "-p", "pytest_repeat", "-p", "xdist.plugin", "--numprocesses", 2)
    ended = run("-m", "pytest", *plugins, "-v", *rounds, tmp_path, env=without_torch)
    done = re.findall(r"\[(gw\d)\].*PASSED \S*test_(\w)\.py::test_(\d)\[(\d)-2\]", ended.stdout)
    assert len(done) == 24, ended.stdout
    assert len({(worker, file, number) for worker, file, _, number in done}) == 4, ended.stdout
    for worker in ("gw0", "gw1"):  # one that is faster may have a third file
        numbers = [number for each, _, _, number in done if each == worker]
        assert numbers[:6] == ["1"] * 6
        assert numbers == sorted(numbers)


def test_a_test_that_starts_a_process_must_say_so(tmp_path: Path, without_torch: dict[str, str]) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(MARKED)
    ended = run("-m", "pytest", "-p", "conftest", "-q", file, env=without_torch)
    assert "1 failed, 2 passed" in ended.stdout
    assert "test_some.py::test_unmarked" in ended.stdout
    assert "add @pytest.mark.process" in ended.stdout
