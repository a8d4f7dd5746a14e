"""Every engine gives the store that one process gives, whatever is killed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from tiny import BASE

import forks
import processes
from cretta.bench import Engine, Listener, Result, Run, RunContext, Store, engine, expand
from cretta.bench.engines.collect import LOSSES, collect
from cretta.bench.engines.local import LocalWorkers, _portable
from cretta.bench.engines.ray import LOOPBACK, SLOW, STARTS, RayWorkers
from cretta.bench.engines.worker import IDENTITY, Ended, Lost, Task, Work
from cretta.errors import DistributedError, OptionError, StateError
from processes import ENVIRONMENT, LONG, command

HERE = Path(__file__).parent
METHODS = ("source", "bn_adapt", "tent", "cretta")
SHIFTS = ("fog/5", "contrast/5", "clean")
# Not rewritten, because a rewritten network does not run its Python code.
GRID = expand(
    dataclasses.replace(BASE, model="mortal:network"),
    RunContext().benchmark("embedded"),
    shifts=SHIFTS,
    options={method: [{"fuse": False}] for method in METHODS},
    seeds=(0, 1),
)
COMMAND = [
    *("run", "--model", "mortal:network", "--images", 60, "--batch-size", 20, "--buffer", 40, "--option", "fuse=false"),
    *(argument for method in METHODS for argument in ("--method", method)),
    *(argument for shift in SHIFTS for argument in ("--shift", shift)),
    *("--seed", 0, "--seed", 1),
]
"""The grid as arguments of cretta."""
# A token of its own, so that Ray neither reads nor writes one in the home folder.
CHANGES = {
    "PYTHONPATH": os.pathsep.join([str(HERE), ENVIRONMENT["PYTHONPATH"]]),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_gcs_server_port_wait_time_s": str(int(LONG)),
}
WORKERS = {name: value for name, value in ENVIRONMENT.items() if name != "RAY_ADDRESS"} | CHANGES
"""The environment of nodes, commands and workers."""


class Computed(Listener):
    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.batches = 0

    def batch(self, run: Run, row: Any) -> None:
        self.batches += 1

    def ends(self, run: Run, result: Result, *, stored: bool) -> None:
        if not stored:
            self.runs.append(run)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What workers inherit; and the number of threads, which an engine sets."""
    for name, value in CHANGES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def need_ray(name: str) -> None:
    if name == "ray":
        pytest.importorskip("ray", reason="the extra cretta[ray] is not installed")


def contents(folder: Path) -> dict[str, Result]:
    """Return all results of a store, without the time that they took, and the commit: it may change during a test."""
    store = Store(folder)
    results = {
        result.key: dataclasses.replace(
            result,
            rows=tuple(dataclasses.replace(row, seconds=0.0) for row in result.rows),
            provenance=result.provenance | {"commit": None},
        )
        for result in store
    }
    assert not store.damaged
    assert not [
        path.name for path in folder.iterdir() if path.suffix not in (".parquet", ".lock") and path.name != IDENTITY
    ]
    return results


def assert_same(folder: Path, expected: dict[str, Result]) -> None:
    found = contents(folder)
    assert found.keys() == expected.keys()
    differ = [
        (result.run.method, str(result.run.domains[0]), result.run.seed, row, other)
        for key, result in found.items()
        for row, other in zip(result.rows, expected[key].rows, strict=True)
        if row != other
    ]
    assert not differ
    assert found == expected


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    folder, threads = tmp_path_factory.mktemp("serial"), torch.get_num_threads()
    done = dict(engine("serial", threads=1).run_all(GRID, Store(folder), RunContext()))
    torch.set_num_threads(threads)
    assert list(map(len, (done, GRID))) == [24, 24]
    return contents(folder)


@pytest.mark.slow
@pytest.mark.process
def test_two_workers_give_the_store_of_one_process_though_one_is_killed(
    serial: dict[str, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kill").touch()
    monkeypatch.setenv("CRETTA_KILL", str(tmp_path))
    heard, store = Computed(), Store(tmp_path / "store")
    results = dict(engine("local", workers=2).run_all(GRID, store, RunContext(), heard))
    assert not (tmp_path / "kill").exists()
    assert sorted(map(repr, heard.runs)) == sorted(map(repr, GRID))
    assert results.keys() == set(GRID)
    assert heard.batches >= 24 * 3
    assert_same(store.folder, serial)
    again = Computed()
    assert dict(engine("local", workers=2).run_all(GRID, store, RunContext(), again)) == results
    assert not again.runs


@dataclasses.dataclass
class Node:
    """A node of a Ray cluster, with all its processes in one process group."""

    folder: Path
    arguments: tuple[object, ...]
    process: subprocess.Popen[bytes] = dataclasses.field(init=False)

    def start(self) -> None:
        """Return when the node has started and its address is written; again if Ray found the machine too slow."""
        limit = time.monotonic() + LONG
        self._launch()
        while "This command will now block" not in (log := self._log.read_text()):
            assert time.monotonic() < limit, log
            if self.process.poll() is not None:
                self.end()
                assert SLOW in log, log
                self._launch()
            time.sleep(0.1)

    def _launch(self) -> None:
        self.folder.mkdir(exist_ok=True)
        folder = self.folder / str(len(list(self.folder.iterdir())))
        folder.mkdir()
        self._log = folder / "log"
        program = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        program += ["--num-cpus", "1", "--object-store-memory", str(100 * 2**20), "--temp-dir", str(folder)]
        program += ["--node-ip-address", LOOPBACK]
        program += map(str, self.arguments)
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                program,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=WORKERS | {"CRETTA_KILL": str(self.requests)},
            )

    @property
    def requests(self) -> Path:
        """Where its workers look for requests to wait; that of the cluster."""
        return self.folder.parent / "requests"

    @property
    def address(self) -> str:
        """That of the cluster, if this is its first node."""
        return (self._log.parent / "ray_current_cluster").read_text().strip()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LONG)


@pytest.fixture(scope="module")
def head() -> Iterator[Node]:
    """The first node of a cluster, with one core."""
    need_ray("ray")
    # Ray's sockets are in this folder, and their paths must be short.
    with contextlib.ExitStack() as stack:
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)))
        (short / "requests").mkdir()
        node = Node(short / "a", ("--head", "--port", 0, "--include-dashboard", "false"))
        stack.callback(lambda: node.end())
        node.start()
        yield node


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", ["local", "ray"])
def test_a_killed_command_is_continued_by_the_next(
    serial: dict[str, Result], tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    """A worker is killed, then the command; with Ray, the next command uses another cluster."""
    address = request.getfixturevalue("head").address if name == "ray" else None
    (tmp_path / "kill").touch()
    folder = tmp_path / "store"
    store = Store(folder)
    arguments = [*COMMAND, "--store", folder, "--engine", name, "--workers", 2]
    stop = ("cretta.cli.execute:RunProgress.ends", 7, signal.SIGKILL)
    first = processes.run if name == "local" else forks.run  # one is a new interpreter
    killed = first(command(*arguments, stop=stop), env=WORKERS | {"CRETTA_KILL": str(tmp_path)}, cwd=HERE)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "kill").exists()
    finished = set(store.keys())
    assert 6 <= len(finished) < 24
    times = {key: store.path(key).stat().st_mtime_ns for key in finished}
    done = forks.run(command(*arguments, *(["--address", address] if address else [])), env=WORKERS, cwd=HERE)
    assert done.returncode == 0, done.stderr
    stored = re.search(r"(\d+) of 24 runs are in", done.stdout)
    assert stored is not None
    assert int(stored[1]) >= len(finished)
    assert times == {key: store.path(key).stat().st_mtime_ns for key in finished}
    assert_same(folder, serial)


def wait_until(condition: Callable[[], bool], *waited: subprocess.Popen[bytes] | forks.Process) -> None:
    """Wait for a condition while the processes live."""
    limit = time.monotonic() + LONG
    while not condition():
        assert all(process.poll() is None for process in waited), "a process has ended"
        assert time.monotonic() < limit
        time.sleep(0.1)


CALLER = """
import json, sys
from test_engines import GRID, Computed
from cretta.bench import RunContext, Store, engine
heard = Computed()
done = dict(engine("ray", address=sys.argv[2]).run_all(GRID, Store(sys.argv[1]), RunContext(), heard))
assert done.keys() == set(heard.runs) == set(GRID)
print(json.dumps({"computed": len(heard.runs), "batches": heard.batches}))
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_cluster_of_two_nodes_continues_when_one_is_killed(
    serial: dict[str, Result], head: Node, tmp_path: Path
) -> None:
    other = Node(head.folder.with_name("b"), ("--address", head.address))
    requests, store = head.requests, tmp_path / "store"
    for path in requests.glob("waits-*"):  # of an earlier round, if tests are repeated
        path.unlink()
    (requests / "wait").touch()
    program = [sys.executable, "-c", CALLER, store, head.address]
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: other.end())
        other.start()
        caller = stack.enter_context(forks.Process(program, cwd=HERE, stdout=subprocess.PIPE, env=WORKERS))
        # Both nodes have one core: two processes that wait in a run are on one node each.
        wait_until(lambda: len(list(requests.glob("waits-*"))) == 2, head.process, other.process, caller)
        nodes = {os.getsid(int(path.name.partition("-")[2])) for path in requests.glob("waits-*")}
        assert nodes == {head.process.pid, other.process.pid}
        other.end()
        (requests / "wait").unlink()
        assert caller.stdout is not None
        heard = json.loads(caller.stdout.read())
        assert caller.wait() == 0
    assert heard["computed"] == 24
    assert heard["batches"] >= 24 * 3
    assert_same(store, serial)


def test_a_worker_that_does_not_see_the_store_returns_its_results(serial: dict[str, Result], tmp_path: Path) -> None:
    store, events = Store(tmp_path), list[Any]()
    work = Work.on(store, RunContext(), threads=1)
    assert Work.on(store, RunContext(), threads=1) == work
    task = Task(GRID[0], RunContext().key(GRID[0]))
    dataclasses.replace(work, identity="of another store").execute(task, events.append)
    assert events[0] == 60
    assert [row.batch for row in events[1:-1]] == [0, 1, 2]
    assert not store.keys()
    store.path(task.key).write_bytes(b"damaged")
    workers = Always(events[-1])
    assert [run for run, _ in collect(deque([task]), workers, store, Listener())] == [task.run]
    assert store.get(task.key) is not None
    assert contents(tmp_path) == {task.key: serial[task.key]}


def test_a_worker_with_other_files_is_an_error(tmp_path: Path) -> None:
    work = Work.on(Store(tmp_path), RunContext(), threads=1)
    with pytest.raises(StateError, match="differ from those where the command was started"):
        work.execute(Task(GRID[0], "another key"), print)
    assert [path.name for path in tmp_path.iterdir()] == [IDENTITY]


class Always:
    """Workers that report one event for each run, in this order, and the last one again and again."""

    capacity = 1

    def __init__(self, *events: Any) -> None:
        self.events = events
        self.submitted: list[Task] = []

    def submit(self, task: Task) -> None:
        self.submitted.append(task)

    def event(self) -> tuple[Task, Any]:
        return self.submitted[-1], self.events[min(len(self.submitted), len(self.events)) - 1]


def test_a_task_for_an_idle_worker_that_was_killed_is_lost(tmp_path: Path) -> None:
    workers = LocalWorkers(Work.on(Store(tmp_path), RunContext(), threads=1), 1)
    pipe, other = multiprocessing.Pipe()
    other.close()
    workers._processes[pipe] = Mock(exitcode=-9)
    task = Task(GRID[0], "key")
    workers.submit(task)
    assert workers.event() == (task, Lost("its process ended with code -9"))
    assert not workers._processes


class TwoArgumentsError(Exception):
    """Cannot be unpickled: it is made again from its text alone."""

    def __init__(self, count: int, what: str) -> None:
        super().__init__(f"{count} {what}")


def test_an_error_that_cannot_be_sent_to_another_process_keeps_its_text() -> None:
    error = ValueError("too many classes")
    assert _portable(error) is error
    sent = _portable(TwoArgumentsError(11, "classes"))
    assert isinstance(sent, StateError)
    assert str(sent) == "TwoArgumentsError: 11 classes"


def test_a_run_that_always_loses_its_worker_ends_the_grid(tmp_path: Path) -> None:
    workers = Always(Lost("it was killed"))
    with pytest.raises(DistributedError, match=rf"{LOSSES + 1} workers were lost.*because it was killed"):
        list(collect(deque([Task(GRID[0], "key")]), workers, Store(tmp_path), Listener()))
    assert len(workers.submitted) == LOSSES + 1


def test_runs_of_other_processes_come_last(tmp_path: Path, serial: dict[str, Result]) -> None:
    tasks = [Task(result.run, result.key) for result in serial.values()][:2]
    results = [Ended(serial[task.key], stored=False) for task in tasks]
    busy = Ended(None, stored=False)
    workers = Always(busy, results[1], busy, results[0])
    done = list(collect(deque(tasks), workers, Store(tmp_path), Listener()))
    assert [run for run, _ in done] == [tasks[1].run, tasks[0].run]
    assert [tasks.index(task) for task in workers.submitted] == [0, 1, 0, 0]


@pytest.mark.process
def test_an_error_in_a_worker_is_the_caller_s(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import torch\nfrom tiny import Network\n"
        "class Fails(Network):\n    def forward(self, x):\n        raise ValueError('a defect of the network')\n"
        "def network():\n    torch.manual_seed(0)\n    return Fails()\n"
    )
    sys.path.insert(0, str(tmp_path))  # workers look for modules where their caller does
    try:
        run = dataclasses.replace(GRID[0], model="fails:network")
        with pytest.raises(ValueError, match="a defect of the network"):
            list(engine("local", workers=1).run_all([run], Store(tmp_path / "store"), RunContext()))
    finally:
        sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("slurm", {}, "engine"),
        ("serial", {"workers": 2}, "use engine='local' or 'ray'"),
        ("local", {"address": "auto"}, "use engine='ray'"),
    ],
)
def test_options_that_do_not_fit(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        engine(name, **options)


def test_threads_are_set(tmp_path: Path) -> None:
    ((_, result),) = engine("serial", threads=2).run_all([BASE], Store(tmp_path), RunContext())
    assert torch.get_num_threads() == 2
    assert result.provenance["machine"]["threads"] == 2


def test_without_ray_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"pip install 'cretta\[ray\]'"):
        list(engine("ray").run_all([BASE], Store(tmp_path), RunContext()))


@pytest.mark.parametrize(
    ("address", "raised", "starts", "message"),
    [
        (None, [f"The current node {SLOW}."] * (STARTS - 1) + [None], STARTS, None),
        (None, [f"The current node {SLOW}."] * STARTS, STARTS, "cannot be started on this machine"),
        (None, ["Timed out waiting for file gcs_server_port."], 1, "server_port. Ray's logs .* session_latest/logs"),
        (None, ["no memory"], 1, "cannot be started on this machine: no memory"),
        ("127.0.0.1:1", ["InvalidAuthToken"], 1, "reached there .InvalidAuthToken.*RAY_AUTH_MODE=token"),
    ],
)
def test_a_cluster_that_does_not_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str | None,
    raised: list[str | None],
    starts: int,
    message: str | None,
) -> None:
    ray = Mock()
    ray.init.side_effect = [None if text is None else Exception(text) for text in raised]
    monkeypatch.setitem(sys.modules, "ray", ray)
    workers = RayWorkers(Work.on(Store(tmp_path), RunContext(), threads=1), RunContext(), 1, address)
    with contextlib.nullcontext() if message is None else pytest.raises(StateError, match=message), workers:
        pass
    assert ray.init.call_count == starts


def test_longest_runs_start_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = MagicMock(capacity=len(GRID))
    workers.__enter__.return_value = workers
    workers.__exit__.return_value = None
    workers.event.side_effect = KeyboardInterrupt  # when all are submitted
    monkeypatch.setattr(Engine, "_start", lambda *_: workers)
    with pytest.raises(KeyboardInterrupt):
        list(engine("local", workers=2).run_all(GRID, Store(tmp_path), RunContext()))
    methods = [call.args[0].run.method for call in workers.submit.call_args_list]
    assert methods[:12] == ["cretta"] * 6 + ["tent"] * 6
    assert sorted(methods[12:]) == ["bn_adapt"] * 6 + ["source"] * 6


def test_workers_use_the_kernels_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRETTA_KERNELS", "off")
    work = Work.on(Store(tmp_path), RunContext(), threads=1)
    monkeypatch.setenv("CRETTA_KERNELS", "avx2")
    events: list[Any] = []
    work.execute(Task(BASE, RunContext().key(BASE)), events.append)
    assert events[-1].result.provenance["machine"]["kernels"]["setting"] == "off"
