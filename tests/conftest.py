"""One thread: the networks here are so small that a second one only waits, and sums keep their order.

One path of the custom CPU kernels, without timing: two processes could choose differently, and results are compared
bit for bit. Tests of the choice set CRETTA_KERNELS themselves.

No AMX: some virtual machines announce its instructions and do not execute them, which ends the process at PyTorch's
first operation in bfloat16.

Ray's workers with the priority of other processes: with its default they have nearly no time on a busy machine.

A test that starts a process says so by its marker, so that `make stress` finds it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

torch.set_num_threads(1)
os.environ.setdefault("CRETTA_KERNELS", "avx2")
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
STARTS = frozenset(
    {"forks.Process", "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
)
"""Audit events."""
ENDED = ("git", "fc-list", "pandoc")
"""Programs that have ended when the call returns: benchmarks, Matplotlib and Jupytext ask them something."""
_started: list[str] = []


def _note(
    event: str, arguments: tuple[Any, ...], starts: frozenset[str] = STARTS, ended: tuple[str, ...] = ENDED
) -> None:
    if event in starts and not (arguments and arguments[0] in ended):
        _started.append(event)


sys.addaudithook(_note)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m process`, do not import files without such a test: each run of `make stress` would."""
    if config.option.markexpr == "process" and collection_path.suffix == ".py":
        return "mark.process" not in collection_path.read_text(encoding="utf-8") or None
    return None


class FilesOfRounds(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """A worker runs a file of a round as a whole: what the tests of a file share is made once in each round."""

    def _split_scope(self, nodeid: str) -> str:
        number = re.search(r"(\d+)-\d+\]$", nodeid)  # of the round, as pytest-repeat writes it
        return f"{nodeid.partition('::')[0]} {number and number[1]}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With several rounds, as in `make stress`, distribute files of rounds."""
    return FilesOfRounds(config, log) if config.getoption("count", 1) > 1 else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    _started.clear()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    yield
    if _started and item.get_closest_marker("process") is None:
        pytest.fail("expected no new process in a test without the marker, got one; add @pytest.mark.process.")
