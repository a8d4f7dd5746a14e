"""Results that are committed show every item as the store does, without data, weights or a computation."""

from __future__ import annotations

import csv
import dataclasses
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_results import everything, result
from fake_results import results as results_of

from cretta.bench import Result, Run, Store
from cretta.errors import StateError
from cretta.paper import DAY, QUICK, SMOKE, best_scale, get, items, read_results, write_summary
from cretta.paper.results import SUMMARY, portable
from cretta.storage import require_lock


def made(runs: list[Run]) -> dict[Run, Result]:
    """Results that all differ, with keys as a store names its files."""
    numbers = {run: number for number, run in enumerate(runs)}
    done = results_of(
        runs,
        right=lambda run, domain, batch: 0.3 + numbers[run] % 97 / 200 + batch / 50,
        confidence=lambda run, domain, batch: 0.6 + numbers[run] % 89 / 400,
        energy=lambda run, domain, batch: -10 - numbers[run] / 7 - batch,
        batches=4,
    )
    return {run: dataclasses.replace(entry, key=f"{numbers[run]:024}") for run, entry in done.items()}


@pytest.fixture(scope="module")
def results() -> dict[Run, Result]:
    return made(everything(SMOKE.resolve("/here", models="/there")))


def commands(results: Mapping[Run, Result]) -> dict[Run, str]:
    return dict.fromkeys(results, "cretta reproduce")


def test_every_item_is_the_same_from_store_summary_and_results(results: dict[Run, Result], tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for entry in results.values():
        store.put(entry)
    write_summary(results, commands(results), tmp_path / "summary")
    for folder in (tmp_path / "store", tmp_path / "summary"):
        stored = read_results(folder)
        assert len(stored) == len(results)
        for name, item in items().items():
            scale = best_scale(item, stored, [SMOKE])
            assert scale is not None, name
            shown = item.show(stored, scale)
            assert shown == item.show(results, SMOKE.resolve("/here", models="/there")), name


def test_a_summary_is_small_and_grows(results: dict[Run, Result], tmp_path: Path) -> None:
    first = dict(list(results.items())[:300])
    size = write_summary(first, commands(first), tmp_path)
    assert size < 2000 * len(first)
    assert write_summary(results, commands(results), tmp_path) > size
    assert len(read_results(tmp_path)) == len(results)
    with (tmp_path / "runs.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(results)
    assert {line["command"] for line in lines} == {"cretta reproduce"}
    assert all(line["accuracy %"] and line["ECE %"] and line["materials"] for line in lines)


def test_the_scale_is_the_one_whose_results_say_most() -> None:
    item = get("main")
    for scale in (QUICK, DAY):
        done = {portable(run): result(run) for run in item.plan(scale)}
        chosen = best_scale(item, done)
        assert chosen is not None
        assert chosen.name == scale.name
    first = {portable(run) for run in item.plan(DAY) if (run.data, run.seed) == ("cifar10", 0)}
    part = first - {portable(run) for run in item.plan(DAY) if run.method == "tent"}
    for measured, name in ((first, "day"), (part, "quick")):
        done = {portable(run): result(run) for run in item.plan(QUICK)}
        done |= {run: result(run, images=5000) for run in measured}
        chosen = best_scale(item, done)
        assert chosen is not None
        assert chosen.name == name, "that with more images, once its main methods are complete"
    embedded = dataclasses.replace(QUICK.family("cifar10"), data="embedded")
    fallback = dataclasses.replace(QUICK, families={**QUICK.families, "cifar10": embedded})
    done = {portable(run): result(run) for run in get("cost").plan(fallback)}
    chosen = best_scale(get("cost"), done)
    assert chosen is not None
    assert (chosen.name, chosen.family("cifar10").data) == ("quick", "embedded")
    assert best_scale(get("pacs"), done) is None


def test_two_results_of_one_run_are_refused(results: dict[Run, Result], tmp_path: Path) -> None:
    store = Store(tmp_path)
    entry = next(iter(results.values()))
    store.put(entry)
    store.put(dataclasses.replace(entry, key="x" * 24))
    with pytest.raises(StateError, match="two results of the same run"):
        read_results(tmp_path)


def test_the_scale_of_an_ablation_has_its_variants() -> None:
    item = get("contrastive")
    done = {portable(run): result(run) for run in item.plan(QUICK)}
    done |= {portable(run): result(run, images=10_000) for run in item.plan(DAY) if not run.options}
    assert (chosen := best_scale(item, done))
    assert chosen.name == "quick", "more images of CreTTA alone show no difference"


def test_a_scale_at_which_nothing_is_complete_is_not_shown() -> None:
    item = get("gain-cost")
    worst = {portable(run) for run in item.plan(DAY) if run.domains[0].severity == 5 and not run.seed}
    done = {portable(run): result(run) for run in item.plan(QUICK)}
    done |= {run: result(run, images=10_000) for run in worst}
    assert (chosen := best_scale(item, done))
    assert chosen.name == "quick", "its means are over all severities, of which the larger scale has one"


def test_a_scale_at_which_no_line_has_two_points_is_not_shown() -> None:
    item = get("ece-severity")
    few = [run for run in item.plan(QUICK) if run.data == "cifar10" and run.method in ("source", "cretta")]
    worst = [run for run in item.plan(DAY) if run.data == "cifar10" and run.domains[0].severity == 5 and not run.seed]
    done = {portable(run): result(run) for run in few}
    done |= {portable(run): result(run, images=10_000) for run in worst}
    assert (chosen := best_scale(item, done))
    assert chosen.name == "quick", "at the larger one all results are of one severity"


def test_a_scale_that_never_runs_a_method_of_the_item_is_not_shown_if_another_does() -> None:
    item = get("cost")
    done = {portable(run): result(run, images=10_000) for run in item.plan(DAY)}
    assert (chosen := best_scale(item, done))
    assert chosen.name == "day"
    assert (chosen := best_scale(item, done | {portable(run): result(run) for run in item.plan(QUICK)}))
    assert chosen.name == "quick", "below severity 5 the larger one does not run TEA"


def test_of_scales_with_the_same_results_the_one_that_is_nearest_to_complete_is_shown() -> None:
    item = get("chosen-setting")
    done = {portable(run): result(run) for run in item.plan(DAY) if run.data == "cifar10" and run.seed == 0}
    assert (chosen := best_scale(item, done))
    assert chosen.name == "day"


def test_a_scale_at_which_one_line_is_measured_is_not_shown() -> None:
    item = get("ece-severity")
    done = {portable(run): result(run) for run in item.plan(QUICK) if run.data == "cifar10"}
    done |= {portable(run): result(run, images=10_000) for run in item.plan(DAY) if run.method == "source"}
    done |= {portable(run): result(run, images=10_000) for run in item.plan(DAY) if run.domains[0].severity == 5}
    assert (chosen := best_scale(item, done))
    assert chosen.name == "quick"


def test_of_scales_with_the_same_runs_the_smallest_is_shown() -> None:
    item = get("imagenet")
    assert item.plan(DAY) == item.plan(QUICK)
    chosen = best_scale(item, {portable(run): result(run) for run in item.plan(DAY)})
    assert chosen
    assert chosen.name == "quick"


def test_a_damaged_summary_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / SUMMARY).write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(StateError, match=r"runs\.parquet cannot be read .*version control"):
        read_results(tmp_path)


@pytest.mark.parametrize("error", [pa.ArrowNotImplementedError("unknown type\nmore"), ValueError()])
def test_a_summary_of_another_arrow_is_an_error_with_a_remedy(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / SUMMARY).touch()
    monkeypatch.setattr(pq, "read_table", Mock(side_effect=error))
    with pytest.raises(StateError, match=r"cannot be read \((unknown type|ValueError)\): it is damaged"):
        read_results(tmp_path)


def test_commands_that_write_into_one_summary_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = get("cost")
    first, second = ({run: result(run)} for run in item.plan(QUICK)[:2])
    commands = dict.fromkeys([*first, *second], "cretta reproduce cost")
    elsewhere, asked = tmp_path / "elsewhere", threading.Event()
    write_summary(first, commands, elsewhere)

    def asking(path: Path, *, wait: bool) -> AbstractContextManager[None]:
        asked.set()
        return require_lock(path, wait=wait)

    monkeypatch.setattr("cretta.paper.results.require_lock", asking)
    with require_lock(tmp_path / "lock"):
        other = threading.Thread(target=write_summary, args=(second, commands, tmp_path))
        other.start()
        asked.wait()
        (elsewhere / SUMMARY).rename(tmp_path / SUMMARY)
    other.join()
    assert set(read_results(tmp_path)) == {portable(run) for run in (*first, *second)}
