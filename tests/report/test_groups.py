from __future__ import annotations

import dataclasses
import math

import pytest

from cretta.report.groups import ACCURACY, CALIBRATION, grouped
from cretta.report.summary import averaged, summary_charts, summary_tables
from made_results import comparison, made_result


def test_seeds_are_one_group_and_all_else_keeps_runs_apart() -> None:
    groups = grouped(
        [
            made_result("tent", seed=1),
            made_result("tent", seed=0),
            made_result("tent", seed=0, options={"lr": 0.1}),
            made_result("tent", seed=0, materials={"model": "other", "target": "bb", "corruptions": "generated"}),
        ]
    )
    assert [group.seeds for group in groups if group.label == "tent" and len(group.results) == 2] == [(0, 1)]
    assert len(groups) == 3


def test_a_preset_that_meant_something_else_is_told_apart() -> None:
    same = {"model": "aa", "target": "bb", "corruptions": "generated", "source": "cc"}
    groups = grouped(
        [
            made_result("cretta", preset="fast", materials=same | {"preset": meant})
            for meant in ('{"source_fraction": 0.2}', '{"source_fraction": 0.25}')
        ]
    )
    assert [group.label for group in groups] == ["cretta preset=fast", "cretta preset=fast #2"]


def test_a_number_stands_for_the_same_weights_on_every_shift() -> None:
    old, new = ({"model": model, "target": "bb", "corruptions": "generated"} for model in ("old", "new"))
    shifts = (("fog/5", old), ("fog/5", new), ("snow/5", new))
    groups = grouped([made_result("tent", (shift,), materials=materials) for shift, materials in shifts])
    labels = {(group.shift, group.results[0].provenance["materials"]["model"]): group.label for group in groups}
    assert labels == {("fog/5", "old"): "tent", ("fog/5", "new"): "tent #2", ("snow/5", "new"): "tent #2"}


def test_labels_tell_what_is_not_usual_and_nothing_more() -> None:
    groups = grouped(
        [
            made_result("source"),
            made_result("cretta", preset="cifar10"),
            made_result("cretta", preset="cifar10", options={"beta": 0.5}),
            made_result("cretta", preset="cifar10", options={"beta": 0.5, "skip": ["a", "b"]}),
            made_result("cretta", buffer={"data": "", "size": 0.01, "select": "random"}, preset="cifar10"),
        ]
    )
    assert sorted(group.label for group in groups) == [
        "cretta",
        "cretta beta=0.5",
        "cretta beta=0.5 skip=a+b",
        "cretta buffer size=0.01",
        "source",
    ]
    assert len({group.setting for group in groups}) == 1


def test_settings_keep_apart_what_cannot_be_compared() -> None:
    groups = grouped(
        [
            made_result("tent"),
            made_result("tent", ("fog/3",)),
            made_result("tent", batch_size=100),
            made_result("tent", model="another"),
            made_result("tent", data="cifar100"),
            made_result("tent", ("clean",)),
            made_result("tent", ("fog/5", "snow/5")),
        ]
    )
    assert len({group.setting for group in groups}) == 7
    assert all(group.label == "tent" for group in groups)


def test_streams_with_the_same_ends_have_names_of_their_own() -> None:
    one = made_result("tent", ("clean", "fog/1", "clean"), stream="gradual")
    two = made_result("tent", ("clean", "snow/1", "clean"), stream="gradual")
    mixed = made_result("tent", ("fog/5", "snow/5"), stream="mixed")
    names = [group.shift for group in grouped([one, two, mixed])]
    assert names == ["clean → … → clean (3 domains)", "clean → … → clean (3 domains) #2", "fog/5 + snow/5"]


def test_measures_are_those_of_the_rows() -> None:
    result = made_result("tent")
    (group,) = grouped([result, result])
    assert group.seeds == (0,)
    (accuracy, error) = group.cells((ACCURACY, CALIBRATION))
    right = sum(row.right for row in result.rows)
    assert accuracy.value == pytest.approx(100 * right / 120)
    assert accuracy.deviation is None
    gaps = [sum(row.bin_right[bin] - row.bin_confidence[bin] for row in result.rows) for bin in range(10)]
    assert error.value == pytest.approx(100 * sum(map(abs, gaps)) / 120)


def test_a_run_without_batches_is_left_out() -> None:
    assert grouped([dataclasses.replace(made_result(), rows=())]) == []


def test_the_mean_is_over_shifts_and_the_deviation_over_seeds() -> None:
    results = comparison(("tent",), seeds=3)
    groups = grouped(results)
    cell = averaged(groups, ACCURACY, ["fog/5", "snow/5"])
    by_seed = [
        sum(100 * result.scores.accuracy for result in results if result.run.seed == seed) / 2 for seed in range(3)
    ]
    mean = sum(by_seed) / 3
    assert cell.value == pytest.approx(mean)
    assert cell.deviation == pytest.approx(math.sqrt(sum((item - mean) ** 2 for item in by_seed) / 2))


def test_a_method_without_all_shifts_has_no_mean() -> None:
    tables = summary_tables(grouped([*comparison(("source",)), made_result("tent", ("fog/5",))]))
    summary = next(table for table in tables if table.name == "summary")
    tent = next(row for row in summary.rows if row.label == "tent")
    assert tent.cells[0].value is None
    assert tent.cells[0].note == "run on 1 of 2 shifts"
    seeds = [made_result("tent", ("fog/5",), 0), made_result("tent", ("snow/5",), 1)]
    assert averaged(grouped(seeds), ACCURACY, ["fog/5", "snow/5"]).note == "no seed was run on all shifts"


def test_what_diverged_is_not_hidden() -> None:
    complete, broken = made_result("tent", seed=0), made_result("tent", seed=1)
    rows = tuple(dataclasses.replace(row, negative_log_likelihood=math.nan) for row in broken.rows)
    tables = summary_tables(grouped([complete, dataclasses.replace(broken, rows=rows)]))
    index = next(index for index, column in enumerate(tables[0].columns) if column.title == "NLL")
    value = tables[0].rows[0].cells[index].value
    assert value is not None
    assert math.isnan(value)


def test_tables_by_shift_and_by_part_of_a_stream() -> None:
    by_shift = next(table for table in summary_tables(grouped(comparison())) if table.name == "shifts")
    assert [(row.group, row.label) for row in by_shift.rows] == [
        (shift, method) for shift in ("fog/5", "snow/5") for method in ("source", "tent", "cretta")
    ]
    assert by_shift.best_of == "group"
    stream = made_result("tent", ("fog/5", "snow/5"))
    parts = next(table for table in summary_tables(grouped([stream])) if table.name == "shifts")
    assert [row.group for row in parts.rows] == ["fog/5", "snow/5"]
    assert parts.rows[1].cells[0].value == pytest.approx(100 * stream.only(["snow/5"]).scores.accuracy)
    assert [table.name for table in summary_tables(grouped([made_result()]))] == ["summary"]


def test_several_settings_have_tables_and_charts_of_their_own() -> None:
    groups = grouped([*comparison(), *(made_result(method, data="cifar100") for method in ("source", "cretta"))])
    assert [table.name for table in summary_tables(groups)] == ["summary-1", "summary-2", "shifts-2"]
    charts = summary_charts(groups)
    assert [chart.name for chart in charts] == ["accuracy-ece-1", "accuracy-ece-2"]
    series = charts[1].panels[0].series
    assert [item.label for item in series] == ["source", "tent", "cretta"]
    assert all(len(item.x) == len(item.y) == 1 for item in series)
    assert summary_charts(grouped([made_result()])) == []
