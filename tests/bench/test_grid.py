from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
from tiny import BASE, without_time

import forks
from cretta.bench import Domain, Listener, Result, Run, RunContext, Store, benchmark, expand, run_all
from cretta.bench.estimate import estimate
from cretta.errors import CrettaError, OptionError
from processes import ENVIRONMENT

HERE = Path(__file__).parent


class Counting(Listener):
    def __init__(self) -> None:
        self.computed: list[Run] = []
        self.stored: list[Run] = []

    def ends(self, run: Run, result: Result, *, stored: bool) -> None:
        (self.stored if stored else self.computed).append(run)


def test_a_finished_run_is_never_computed_again(tmp_path: Path) -> None:
    runs = [dataclasses.replace(BASE, method=name, seed=seed) for name in ("source", "tent") for seed in (0, 1)]
    heard = Counting()
    first = dict(run_all(runs, Store(tmp_path), RunContext(), heard))
    assert len(heard.computed) == 4
    again = Counting()
    second = dict(run_all([*runs, *runs], Store(tmp_path), RunContext(), again))
    assert (len(again.computed), len(again.stored)) == (0, 4)
    assert first == second
    assert {result.key: result for result in first.values()} == {result.key: result for result in Store(tmp_path)}
    assert first[runs[0]].provenance["versions"]["torch"]
    assert first[runs[0]].cost["paper_gflops"] > 0


def test_a_damaged_result_is_computed_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ((_, first),) = run_all([BASE], store, RunContext())
    store.path(first.key).write_bytes(b"damaged")
    heard = Counting()
    ((_, second),) = run_all([BASE], store, RunContext(), heard)
    assert heard.computed == [BASE]
    assert without_time(first) == without_time(second)
    assert store.damaged == {store.path(first.key)}


def test_a_wrong_run_stops_the_grid_before_it_begins(tmp_path: Path) -> None:
    heard, unknown = Counting(), dataclasses.replace(BASE, domains=(Domain("rain", 5),))
    with pytest.raises(CrettaError):
        list(run_all([BASE, unknown], Store(tmp_path), RunContext(), heard))
    assert not heard.computed
    assert not list(tmp_path.iterdir())


def test_expected_times_fall_to_nothing_as_runs_are_done(tmp_path: Path) -> None:
    runs = [dataclasses.replace(BASE, method=name) for name in ("source", "cretta")]
    store, context = Store(tmp_path), RunContext()
    before = estimate(runs, store, context)
    assert 0 < before[runs[0]] < before[runs[1]]
    list(run_all(runs[:1], store, context))
    between = estimate(runs, store, context)
    assert between[runs[0]] == 0 < between[runs[1]]
    list(run_all(runs, store, context))
    assert set(estimate(runs, store, context).values()) == {0}
    store.path(context.key(runs[1])).write_bytes(b"damaged")
    after = estimate(runs, store, context)
    assert after[runs[0]] == 0 < after[runs[1]]


def test_stored_runs_tell_how_fast_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed then: on a machine that is busy at that moment, a timed pass says little."""
    other = dataclasses.replace(BASE, method="tent", domains=Domain.parse_all("fog/5"))
    runs = [dataclasses.replace(BASE, method=name) for name in ("source", "tent", "bn_adapt")]
    store, context = Store(tmp_path), RunContext()
    for (_, result), seconds in zip(run_all(runs[:2], store, context), (0.1, 4.8), strict=True):
        (tmp_path / f"{result.key}.parquet").unlink()
        rows = [dataclasses.replace(row, seconds=seconds if row.batch else 99.0) for row in result.rows]
        store.put(dataclasses.replace(result, rows=tuple(rows)))
    monkeypatch.setattr("cretta.bench.estimate._forward_seconds", lambda run, context: 1 / 0)
    # In batches of 20 images: 0.1 s for a pass forward, 4.8 s for one forward and one backward; 60 images are three.
    expected = estimate([*runs, other], store, context)
    assert list(expected.values()) == pytest.approx([0, 0, 3 * (0.1 + 4.8 / 2.4) / 2, 3 * 4.8])


# Forks of one process that has everything imported, the images decoded and Git asked: kills then fall into the work.
# They come after a number of function calls, not of seconds, so that the work is never done before.
HARNESS = """
import dataclasses, functools, itertools, json, os, random, signal, sys
import torch
torch.set_num_threads(1)
from cretta import methods
from cretta.bench import Buffer, Domain, Listener, RunContext, Store, run_all
from cretta.bench.store import provenance
from cretta.data import registry
import kornia.augmentation
from processes import on_every_call, signal_at
from tiny import BASE

folder, mode = sys.argv[1], sys.argv[2]
streams = (Domain("fog", 5),), (Domain("contrast", 5),)
names = ("source", "tent", "cretta", "sar")
small = dataclasses.replace(BASE, images=12, batch_size=4, buffer=Buffer(size=8))
runs = [dataclasses.replace(small, method=name, domains=domains) for name in names for domains in streams]

registry.embedded = functools.cache(registry.embedded)
for split in ("train", "test"):
    registry.embedded(split)
methods.names(), provenance({}, torch.device("cpu"))

class Counting(Listener):
    def ends(self, run, result, *, stored):
        if not stored:
            with open(os.path.join(folder, "computed.log"), "a") as log:
                log.write(result.key + "\\n")

def work(store):
    for _ in run_all(runs, Store(os.path.join(folder, store)), RunContext(), Counting()):
        pass

def child(store, last=None):
    process = os.fork()
    if process == 0:
        code, calls = 1, itertools.count()
        try:
            on_every_call(calls.__next__ if last is None else signal_at(last, signal.SIGKILL))
            work(store)
            sys.setprofile(None)
            with open(os.path.join(folder, "calls"), "w") as file:
                file.write(str(next(calls)))
            code = 0
        finally:
            os._exit(code)
    return process

def ended(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

if mode == "kill":
    assert ended(child("undisturbed")) == 0
    with open(os.path.join(folder, "calls")) as file:
        half = int(file.read()) // 2
    random.seed(0)
    killed = done = 0
    while killed < 20:
        # A process with fewer calls left to make has finished a grid that was killed before; then comes the next.
        code = ended(child(f"killed-{done}", random.randint(1, half)))
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
        done += code == 0
    assert ended(child(f"killed-{done}")) == 0
    print(json.dumps({"grids": done + 1}))
else:
    processes = [child("store") for _ in range(int(mode))]
    assert all(ended(process) == 0 for process in processes)
    print(json.dumps({}))
"""


def harness(folder: Path, mode: str) -> dict[str, int]:
    folder.mkdir()
    done = forks.run([sys.executable, "-c", HARNESS, folder, mode], cwd=HERE, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def stored_results(folder: Path) -> dict[str, Result]:
    store = Store(folder)
    results = {result.key: without_time(result) for result in store}
    assert not store.damaged
    # An empty lock may be left by who was killed between keeping a result and leaving.
    assert not [path.name for path in folder.iterdir() if path.suffix not in (".parquet", ".lock")]
    return results


@pytest.mark.process
def test_killed_twenty_times_a_grid_gives_what_an_undisturbed_one_gives(tmp_path: Path) -> None:
    counts = harness(tmp_path / "stores", "kill")
    undisturbed = stored_results(tmp_path / "stores" / "undisturbed")
    assert len(undisturbed) == 8
    for number in range(counts["grids"]):
        assert stored_results(tmp_path / "stores" / f"killed-{number}") == undisturbed


@pytest.mark.process
def test_processes_on_one_store_do_each_run_once(tmp_path: Path) -> None:
    harness(tmp_path / "shared", "3")
    results = stored_results(tmp_path / "shared" / "store")
    computed = (tmp_path / "shared" / "computed.log").read_text().split()
    assert sorted(computed) == sorted(results)
    assert len(computed) == 8


def test_the_thread_count_is_stored_with_the_result(tmp_path: Path) -> None:
    ((_, result),) = run_all([BASE], Store(tmp_path), RunContext())
    assert result.provenance["machine"]["threads"] == torch.get_num_threads()


# Grids.

LEVELS = tuple(f"fog/{level}" for level in range(1, 6))


def streams_of(data: str, stream: str, shifts: list[str], severities: list[int]) -> list[tuple[str, ...]]:
    runs = expand(
        BASE, benchmark(data), shifts=shifts, severities=severities, stream=stream, options={"source": [{}]}, seeds=(0,)
    )
    return [tuple(map(str, run.domains)) for run in runs]


@pytest.mark.parametrize(
    ("stream", "shifts", "severities", "expected"),
    [
        ("iid", ["fog", "snow/3", "clean", "fog/5"], [], [("fog/5",), ("snow/3",), ("clean",)]),
        ("ordered", ["fog"], [1, 2], [("fog/1",), ("fog/2",)]),
        ("mixed", ["fog", "snow"], [2], [("fog/2", "snow/2")]),
        ("continual", ["fog"], [1, 2], [("fog/1", "fog/2")]),
        ("gradual", ["fog", "clean", "fog/5"], [], [("clean", *LEVELS, "clean")]),
    ],
)
def test_domains_of_streams(
    stream: str, shifts: list[str], severities: list[int], expected: list[tuple[str, ...]]
) -> None:
    assert streams_of("embedded", stream, shifts, severities) == expected


def test_all_shifts_are_those_of_the_benchmark() -> None:
    assert streams_of("embedded", "iid", ["all"], [3]) == [(f"{name}/3",) for name in benchmark("embedded").domains]
    assert streams_of("pacs:photo", "continual", ["all"], []) == [benchmark("pacs:photo").domains]


@pytest.mark.parametrize(
    ("shifts", "severities", "message"),
    [(["fog"], [3], "severity=3, stream='gradual'"), (["clean"], [], "expected a corruption")],
)
def test_gradual_streams_need_a_corruption_without_severity(
    shifts: list[str], severities: list[int], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        streams_of("embedded", "gradual", shifts, severities)


def test_methods_options_and_seeds_are_combined() -> None:
    options: dict[str, list[dict[str, float]]] = {"source": [{}], "cretta": [{"beta": 1.0}, {"beta": 2.0}]}
    runs = expand(BASE, benchmark("embedded"), shifts=["fog"], options=options, seeds=(0, 1))
    settings = [(run.method, run.preset, dict(run.options), run.seed) for run in runs]
    assert settings[:2] == [("source", None, {}, 0), ("source", None, {}, 1)]
    assert settings[2:] == [("cretta", "cifar10", {"beta": beta}, seed) for beta in (1.0, 2.0) for seed in (0, 1)]
