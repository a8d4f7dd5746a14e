from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import BASE, without_time

from cretta.bench import Result, Run, Store, Workshop, collect, product, run_all
from cretta.bench.estimate import estimate
from cretta.bench.grid import Silent
from cretta.errors import CrettaError

HERE = Path(__file__).parent


class Counting(Silent):
    def __init__(self) -> None:
        self.computed: list[Run] = []
        self.kept: list[Run] = []

    def ends(self, run: Run, result: Result, *, kept: bool) -> None:
        (self.kept if kept else self.computed).append(run)


def test_a_finished_run_is_never_computed_again(tmp_path: Path) -> None:
    runs = product(BASE, method=("source", "tent"), seed=(0, 1))
    heard = Counting()
    first = dict(run_all(runs, Store(tmp_path), Workshop(), heard))
    assert len(heard.computed) == 4
    again = Counting()
    second = dict(run_all([*runs, *runs], Store(tmp_path), Workshop(), again))
    assert (len(again.computed), len(again.kept)) == (0, 4)
    assert first == second
    assert collect(runs, Store(tmp_path), Workshop()) == first
    assert first[runs[0]].provenance["versions"]["torch"]
    assert first[runs[0]].cost["paper_gflops"] > 0


def test_a_damaged_result_is_computed_anew(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ((_, first),) = run_all([BASE], store, Workshop())
    store.path(first.key).write_bytes(b"damaged")
    heard = Counting()
    ((_, second),) = run_all([BASE], store, Workshop(), heard)
    assert heard.computed == [BASE]
    assert without_time(first) == without_time(second)
    assert len(store.set_aside) == 1


def test_a_wrong_run_stops_the_grid_before_it_begins(tmp_path: Path) -> None:
    heard = Counting()
    with pytest.raises(CrettaError):
        list(run_all([BASE, dataclasses.replace(BASE, domains=("rain/5",))], Store(tmp_path), Workshop(), heard))
    assert not heard.computed
    assert not list(tmp_path.iterdir())


def test_expected_times_fall_to_nothing_as_runs_are_done(tmp_path: Path) -> None:
    runs = product(BASE, method=("source", "cretta"))
    store, workshop = Store(tmp_path), Workshop()
    before = estimate(runs, store, workshop)
    assert 0 < before[runs[0]] < before[runs[1]]
    list(run_all(runs[:1], store, workshop))
    between = estimate(runs, store, workshop)
    assert between[runs[0]] == 0 < between[runs[1]]
    list(run_all(runs, store, workshop))
    assert set(estimate(runs, store, workshop).values()) == {0}
    # What the store knows of a method counts for others of its kind.
    taken = store.get(runs[1].key(workshop.materials(runs[1])))
    assert taken is not None
    other, another = (dataclasses.replace(runs[1], seed=seed) for seed in (8, 9))
    expected = estimate([other, another], store, workshop)
    assert expected[another] == pytest.approx(taken.of().seconds)
    assert expected[other] == pytest.approx(taken.of().seconds * (60 + 3 * 16) / 60)  # operations are counted, too


# Forks of one process that has everything imported: kills then fall into the work, not into imports.
HARNESS = """
import json, os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from cretta.bench import Store, Workshop, product, run_all
from cretta.bench.grid import Silent
import kornia.augmentation, torch._dynamo
from tiny import BASE

folder, mode = sys.argv[1], sys.argv[2]
runs = product(BASE, method=("source", "tent", "cretta", "sar"), domains=(("fog/5",), ("contrast/5",)))

class Counting(Silent):
    def ends(self, run, result, *, kept):
        if not kept:
            with open(os.path.join(folder, "computed.log"), "a") as log:
                log.write(result.key + "\\n")

def work():
    for _ in run_all(runs, Store(os.path.join(folder, "store")), Workshop(), Counting(), save_every=0.0):
        pass

def child(delay):
    process = os.fork()
    if process == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    if delay is not None:
        time.sleep(delay)
        os.kill(process, signal.SIGKILL)
    return process

if mode == "kill":
    random.seed(0)
    killed = 0
    for _ in range(20):
        process = child(random.uniform(0.05, 1.0))
        killed += os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    print(json.dumps({"killed": killed}))
    assert os.waitpid(child(None), 0)[1] == 0
else:
    processes = [child(None) for _ in range(int(mode))]
    assert all(os.waitpid(process, 0)[1] == 0 for process in processes)
"""


def harness(folder: Path, mode: str) -> dict[str, Result]:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, str(folder), mode], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if mode == "kill":
        assert json.loads(done.stdout)["killed"] >= 5
    store = Store(folder / "store")
    results = {result.key: without_time(result) for result in store}
    assert not store.set_aside
    assert not [path.name for path in (folder / "store").iterdir() if path.suffix != ".parquet"]
    return results


def test_killed_twenty_times_a_grid_gives_what_an_undisturbed_one_gives(tmp_path: Path) -> None:
    killed, undisturbed = harness(tmp_path / "killed", "kill"), harness(tmp_path / "undisturbed", "1")
    assert len(undisturbed) == 8
    assert killed == undisturbed


def test_processes_on_one_store_do_each_run_once(tmp_path: Path) -> None:
    results = harness(tmp_path / "shared", "3")
    computed = (tmp_path / "shared" / "computed.log").read_text().split()
    assert sorted(computed) == sorted(results)
    assert len(computed) == 8


def test_the_thread_count_is_kept_with_the_result(tmp_path: Path) -> None:
    ((_, result),) = run_all([BASE], Store(tmp_path), Workshop())
    assert result.provenance["machine"]["threads"] == torch.get_num_threads()
