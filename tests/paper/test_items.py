"""What items plan and show, against numbers computed by hand."""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path

import pytest
from fake_results import everything, result, results
from rich.console import Console

from cretta.bench import Run, RunContext, Store, run_all
from cretta.data.corruptions import CORRUPTIONS
from cretta.data.domains import Domain
from cretta.errors import OptionError
from cretta.methods import get as method
from cretta.paper import DAY, FULL, QUICK, SMOKE, Scale, get, incomplete, items, measured, missing
from cretta.paper.ablations import batch_index
from cretta.paper.verdict import claims, judge, verdict
from cretta.report.content import Cell, Chart, Table
from cretta.report.ranking import marks
from cretta.report.tables import markdown
from cretta.report.terminal import terminal

FOG = Domain("fog", 5)
TWO_SEEDS = dataclasses.replace(SMOKE, seeds=(0, 1))
SCALES = pytest.mark.parametrize("scale", [SMOKE, QUICK, FULL], ids=lambda scale: str(scale.name))


def table(name: str, shown: object, which: int = 0) -> Table:
    assert isinstance(shown, tuple)
    drawn = shown[which]
    assert isinstance(drawn, Table), name
    return drawn


def chart(shown: object, which: int = 0) -> Chart:
    assert isinstance(shown, tuple)
    drawn = shown[which]
    assert isinstance(drawn, Chart)
    return drawn


def cell(drawn: Table, row: str, column: str, group: str = "") -> Cell:
    (cells,) = [entry.cells for entry in drawn.rows if entry.label == row]
    (index,) = [n for n, entry in enumerate(drawn.columns) if entry.title == column and entry.group == group]
    return cells[index]


# Plans


@SCALES
def test_plans_are_runs_that_methods_understand(scale: Scale) -> None:
    for name, item in items().items():
        plan = item.plan(scale)
        assert plan, name
        assert len(plan) == len(set(plan)), name
        for run in {(run.method, run.preset, run.options): run for run in plan}.values():
            of = method(run.method)
            of.option_type.make(run.method, of.presets[run.preset] if run.preset else {}, dict(run.options))
            assert Run.from_description(run.describe()) == run


def test_items_share_their_runs() -> None:
    plans = {name: set(item.plan(SMOKE)) for name, item in items().items()}
    assert plans["main"] < plans["accuracy"]
    assert plans["ece-severity"] <= plans["main"]
    assert plans["overconfidence"] < plans["main"]
    assert plans["cost"] < plans["main"]
    assert plans["gain-cost"] < plans["cost"]
    assert plans["imagenet"] >= plans["imagenet-batches"] | plans["imagenet-corruptions"]
    # Every ablation includes CreTTA in its default setting.
    for name in ("contrastive", "buffer-size", "source-model", "uniform-weight", "single-sample", "pairs", "beta"):
        assert plans[name] & plans["main"], name
    assert len(set().union(*plans.values())) < sum(map(len, plans.values())) / 2


def test_the_beta_of_the_preset_adds_no_run() -> None:
    family = SMOKE.family("cifar100")
    assert family.run(FOG, options={"beta": 2.0}) == family.run(FOG)
    assert family.run(FOG, options={"beta": 1.0}) != family.run(FOG)


def test_eta_eata_and_sar_have_the_papers_thresholds() -> None:
    assert SMOKE.family("cifar10").run(FOG, method="eta").preset == "paper"
    run = SMOKE.family("cifar100").run(FOG, method="eata")
    assert run.preset == "cifar100"
    assert dict(run.options) == {"entropy_margin": 0.4 * math.log(1000), "redundancy_margin": 0.05}
    assert SMOKE.family("cifar100").run(FOG, method="tent").preset is None


def test_the_full_scale_is_the_papers() -> None:
    runs = get("main").plan(FULL)
    # Source once, ten methods with three seeds; 15 corruptions, 5 severities, 3 benchmarks.
    assert len(runs) == (1 + 10 * 3) * 15 * 5 * 3
    assert len(get("accuracy").plan(FULL)) == len(runs) + (1 + 10 * 3) * 3
    assert {(run.data, run.batch_size, run.images) for run in runs} == {
        ("cifar10", 200, None),
        ("cifar100", 200, None),
        ("tiny-imagenet", 1000, None),
    }
    assert {run.batch_size for run in get("imagenet").plan(FULL)} == {64}
    pacs = get("pacs").plan(FULL)
    assert {(run.batch_size, run.size) for run in pacs} == {(100, 224)}
    assert len(pacs) == 3 * 3 * 4 * 3
    assert {run.delta for run in get("non-iid").plan(FULL)} == {10.0, 1.0, 0.1, 0.01}
    assert len(get("gradual").plan(FULL)) == 2 * 3 * 3 * 15


# Numbers


def test_mean_corruption_error_by_hand() -> None:
    errors = {
        "source": {"gaussian_noise/1": 0.2, "gaussian_noise/5": 0.4, "fog/1": 0.1, "fog/5": 0.2},
        "tent": {"gaussian_noise/1": 0.1, "gaussian_noise/5": 0.3, "fog/1": 0.1, "fog/5": 0.1},
    }
    runs = [run for run in get("main").plan(SMOKE) if run.method in errors and run.data == "embedded"]
    done = results(
        runs,
        right=lambda run, domain, batch: 1 - errors[run.method][domain],
        confidence=lambda run, domain, batch: 1.0 - errors[run.method][domain] + (0.02 if domain[-1] == "5" else 0.01),
    )
    drawn = table("main", get("main").show(done, SMOKE))
    worst, average = "CIFAR10-C, severity 5", "CIFAR10-C, severities 1, 5"
    assert cell(drawn, "Source", "mCE", worst) == Cell(100.0, None, 100.0)
    assert cell(drawn, "Source", "mCE", average) == Cell(100.0, None, 100.0)
    assert cell(drawn, "TENT", "mCE", worst).value == pytest.approx(100 * (0.3 / 0.4 + 0.1 / 0.2) / 2)
    assert cell(drawn, "TENT", "mCE", average).value == pytest.approx(100 * (0.4 / 0.6 + 0.2 / 0.3) / 2)
    assert cell(drawn, "TENT", "ECE", worst).value == pytest.approx(2.0)
    assert cell(drawn, "TENT", "ECE", average).value == pytest.approx(1.5)
    assert cell(drawn, "TENT", "ECE", average).printed == 3.89
    assert cell(drawn, "TENT", "mCE", "TinyImageNet-C, severity 5") == Cell(printed=94.03, note="not run")


def test_accuracy_with_clean_images_and_two_seeds() -> None:
    runs = [run for run in get("accuracy").plan(TWO_SEEDS) if run.method in ("source", "cretta")]
    done = results(
        runs,
        right=lambda run, domain, batch: {"clean": 0.9, "1": 0.8, "5": 0.6}[domain.split("/")[-1]] - 0.02 * run.seed,
    )
    drawn = table("accuracy", get("accuracy").show(done, TWO_SEEDS))
    clean = cell(drawn, "CreTTA", "Acc", "CIFAR100-C, clean")
    assert clean.value == pytest.approx(89.0)
    assert clean.deviation == pytest.approx(math.sqrt(2))
    assert clean.printed == 75.26
    assert cell(drawn, "CreTTA", "Acc", "CIFAR100-C, severities 1, 5").value == pytest.approx(69.0)
    # The source model has one seed: its predictions do not depend on the order.
    assert cell(drawn, "Source", "Acc", "CIFAR10-C, severity 5") == Cell(60.0, None, 81.73)
    assert cell(drawn, "PL", "Acc", "CIFAR10-C, clean").note == "not run"


def test_a_source_model_without_errors_gives_a_note() -> None:
    runs = [run for run in get("main").plan(SMOKE) if run.method in ("source", "tent") and run.data == "embedded"]
    drawn = table("main", get("main").show(results(runs, right=lambda *_: 1.0), SMOKE))
    assert "makes no error" in cell(drawn, "TENT", "mCE", "CIFAR10-C, severity 5").note


def test_gradual_shift_has_a_row_for_each_domain() -> None:
    right = {"clean": 0.9, "clean again": 0.85} | {f"gaussian_noise/{s}": 0.9 - 0.1 * s for s in range(1, 6)}
    done = results(get("gradual").plan(SMOKE), right=lambda run, domain, batch: right[domain])
    drawn = table("gradual", get("gradual").show(done, SMOKE))
    values = [cell(drawn, row.label, "TEA", "CIFAR10-C").value for row in drawn.rows]
    assert values == pytest.approx([90, 80, 70, 60, 50, 40, 85])
    assert [row.label for row in drawn.rows][-1] == "Source (Q) again"
    assert cell(drawn, "Source (Q) again", "TEA", "CIFAR100-C").printed == 69.25
    assert cell(drawn, "Source (Q) again", "TENT", "CIFAR100-C").printed is None
    assert cell(drawn, "3", "TENT", "CIFAR100-C").printed == 70.04
    assert cell(drawn, "5 (P)", "CreTTA", "CIFAR10-C").printed == 89.47


def test_batches_are_compared_at_the_same_share_of_the_stream() -> None:
    item = get("contrastive-batches")
    done = {
        run: result(
            run,
            energy=lambda run, domain, batch: -10.0 - batch * (2 if dict(run.options) else 1),
            right=lambda run, domain, batch: 0.5,
            confidence=lambda run, domain, batch: 0.6 + 0.1 * batch,
            batches=3,
        )
        for run in item.plan(SMOKE)
    }
    drawn = table("contrastive-batches", item.show(done, SMOKE))
    assert [batch_index(batch, 3) for batch in (0, 9, 19, 29, 39, 49)] == [0, 0, 1, 1, 2, 2]
    energies = [entry.cells[0].value for entry in drawn.rows]
    assert energies == pytest.approx([-10, -10, -11, -11, -12, -12, -2])
    assert [entry.cells[1].value for entry in drawn.rows][-1] == pytest.approx(-4)
    assert [entry.cells[2].value for entry in drawn.rows] == pytest.approx([10, 10, 20, 20, 30, 30, 20])
    assert drawn.rows[0].cells[0].printed == -9.9781
    assert drawn.rows[-1].cells[3].printed == 1.35


def test_the_gradient_weight_and_its_complement() -> None:
    item = get("target-weight")
    done = results(
        item.plan(SMOKE), weight=lambda run, domain, batch: (0.4 if dict(run.options) else 0.2) + 0.1 * batch
    )
    drawn = table("target-weight", item.show(done, SMOKE))
    assert [entry.value for entry in drawn.rows[0].cells] == pytest.approx([0.2, 0.4, 0.8, 0.6])
    assert [entry.value for entry in drawn.rows[-1].cells] == pytest.approx([0.25, 0.45, 0.75, 0.55])
    assert [entry.printed for entry in drawn.rows[-1].cells] == [0.572, 0.454, None, None]


def test_gains_over_bn_adapt() -> None:
    item = get("target-as-source")
    done = results(item.plan(SMOKE), right=lambda run, domain, batch: 0.6 if run.method == "bn_adapt" else 0.65)
    drawn = table("target-as-source", item.show(done, SMOKE))
    assert cell(drawn, "BN Adapt", "gain over BN Adapt") == Cell(0.0, None, None)
    gained = cell(drawn, "CreTTA", "gain over BN Adapt")
    assert gained.value == pytest.approx(5.0)
    assert gained.printed == 3.78


def test_pacs_averages_targets_and_sources() -> None:
    item = get("pacs")
    right = {"photo": 0.1, "art_painting": 0.2, "cartoon": 0.3, "sketch": 0.7}
    done = results(item.plan(SMOKE), right=lambda run, domain, batch: right[domain], confidence=lambda *_: 1.0)
    accuracies, errors = (table("pacs", item.show(done, SMOKE), which) for which in (0, 1))
    assert cell(accuracies, "TEA", "photo").value == pytest.approx(100 * (0.2 + 0.3 + 0.7) / 3)
    assert cell(accuracies, "TEA", "sketch").value == pytest.approx(100 * (0.1 + 0.2 + 0.3) / 3)
    assert cell(accuracies, "TEA", "average").value == pytest.approx(100 * 1.3 / 4)
    assert cell(errors, "CreTTA", "average").value == pytest.approx(100 - 100 * 1.3 / 4)
    assert cell(errors, "CreTTA", "cartoon").printed == 26.65


def test_accuracy_by_delta_and_its_average() -> None:
    item = get("non-iid")
    done = results(
        item.plan(SMOKE), right=lambda run, domain, batch: {10: 0.8, 1: 0.7, 0.1: 0.6, 0.01: 0.3}[run.delta or 0]
    )
    drawn = table("non-iid", item.show(done, SMOKE))
    assert [entry.value for entry in drawn.rows[0].cells] == pytest.approx([80, 70, 60, 30, 60])
    assert drawn.rows[-1].cells[-1].printed == 60.99


def test_costs_are_scaled_to_the_papers_batch() -> None:
    item = get("cost")
    drawn = table("cost", item.show(results(item.plan(SMOKE)), SMOKE))
    factor = 200 / SMOKE.family("cifar10").batch_size
    cells = next(row.cells for row in drawn.rows if row.label == "TEA")
    assert [entry.value for entry in cells] == pytest.approx([2 * factor, 4 * factor, 7.0, 50.0, 25.0])
    assert [entry.printed for entry in cells] == [
        4335.82,
        None,
        None,
        90.67,
        2.68,
    ]  # memory of fewer images is not compared
    assert "Memory is that of 16 images; the paper's, of 200, is not shown beside it." in drawn.notes
    assert drawn.columns[-1].group == "severities 1, 5"
    full = table("cost", item.show(results(item.plan(FULL)), FULL))
    assert full.rows[0].cells[0].value == 2.0
    assert full.rows[0].cells[2].printed == 443.98
    assert full.columns[-1].group == "severities 1–5"
    assert not any("Memory is that of" in note for note in full.notes)
    for entry in ("norm layers and activations", "131.96 are counted", "3034.98"):
        assert entry in " ".join(full.notes)


def test_the_gain_is_over_the_source_model() -> None:
    item = get("gain-cost")
    done = results(
        item.plan(SMOKE),
        right=lambda run, domain, batch: 0.5 if run.method == "source" else 0.6,
        confidence=lambda run, domain, batch: 0.7,
    )
    errors, calibration = chart(item.show(done, SMOKE)).panels
    series = {entry.label: (entry.x, entry.y) for entry in errors.series}
    assert series["CreTTA"][1] == pytest.approx((20.0,))
    assert series["CreTTA (paper)"] == ((527.40,), (15.6,))
    assert {entry.label: entry.y for entry in calibration.series}["TEA"] == pytest.approx((10.0,))
    assert {entry.label: entry.y for entry in calibration.series}["TEA (paper)"] == (2.77,)


def test_lines_on_fewer_images_are_marked() -> None:
    for name, which in (("gain-cost", 0), ("ece-severity", 0), ("ece-severity", 1), ("beta", 1)):
        shown = get(name).show(results(get(name).plan(QUICK)), QUICK)
        for panel in chart(shown, which).panels:
            labels = [line.label for line in panel.series]
            assert [label for label in labels if "TEA" in label] in (["TEA †"], ["TEA †", "TEA (paper)"]), name
            assert [label for label in labels if "†" in label] == ["TEA †"], name


def test_rows_on_fewer_images_are_marked_and_not_ranked() -> None:
    right = {"tea": 0.95, "cretta": 0.9}

    def share(run: Run, domain: str, batch: int) -> float:
        return right.get(run.method, 0.8) - 0.01 * batch

    for name in ("cost", "pacs"):
        shown = get(name).show(results(get(name).plan(QUICK), right=share, batches=4), QUICK)
        drawn = table(name, shown)
        best = {row.label: marked for row, marked in zip(drawn.rows, marks(drawn), strict=True)}
        assert [row.label for row in drawn.rows if not row.compared] == ["TEA †"]
        assert not any(best["TEA †"])
        accuracy = [index for index, column in enumerate(drawn.columns) if column.better == "higher"]
        assert all(best["CreTTA"][index] for index in accuracy), "of the others it is the most accurate"
        assert {row.group for row in drawn.rows} == {""}


def without_reset(collapsed: float) -> Chart:
    """A stream on which CreTTA is a point better than others, and one method collapses without the guard."""
    item = get("recurring")
    right = {"cretta": 0.81, "source": 0.60}

    def share(run: Run, domain: str, batch: int) -> float:
        guarded = "guard" in dict(run.options)
        return collapsed if run.method == "pl" and not guarded else right.get(run.method, 0.80)

    done = results(item.plan(SMOKE), right=share, confidence=lambda *_: 0.80)
    return chart(item.show(done, SMOKE), 1)


def test_lines_far_from_all_others_are_in_the_background_and_named() -> None:
    drawn = without_reset(collapsed=0.10)
    back = {(panel.title, panel.y): [s.label for s in panel.series if s.background] for panel in drawn.panels}
    assert back == {
        ("guard off", "Acc, % ↑"): ["Source", "PL"],
        ("guard on", "Acc, % ↑"): ["Source"],
        ("guard off", "ECE, % ↓"): ["Source", "PL"],
        ("guard on", "ECE, % ↓"): ["Source"],
    }
    (note,) = [note for note in drawn.notes if note.startswith("Thin lines")]
    assert note.endswith("are on average more than 5 points from the median line: Source, PL.")
    assert drawn.shared_y
    (note,) = [note for note in without_reset(collapsed=0.76).notes if note.startswith("Thin lines")]
    assert note.endswith(": Source.")


def test_of_two_lines_none_is_far_from_the_others() -> None:
    item = get("continual")
    runs = [run for run in item.plan(SMOKE) if run.method in ("source", "cretta")]
    done = results(runs, right=lambda run, domain, batch: 0.3 if run.method == "source" else 0.9)
    drawn = chart(item.show(done, SMOKE), 1)
    assert not any(line.background for panel in drawn.panels for line in panel.series)
    assert not any(note.startswith("Thin lines") for note in drawn.notes)


def test_visits_are_counted_from_one_in_parts_with_names_of_words() -> None:
    drawn = without_reset(collapsed=0.10)
    assert drawn.parts[:3] == ((0.5, 1.5, "gaussian noise"), (1.5, 2.5, "fog"), (2.5, 3.5, "gaussian noise"))
    assert len(drawn.parts) == 10
    assert {line.x for panel in drawn.panels for line in panel.series} == {tuple(map(float, range(1, 11)))}


def test_methods_are_compared_on_the_same_axes() -> None:
    item = get("overconfidence")
    assert all(entry.shared_y for entry in item.show({}, SMOKE) if isinstance(entry, Chart))
    # The accuracies of two datasets are not compared.
    assert not any(entry.shared_y for entry in get("beta").show({}, SMOKE) if isinstance(entry, Chart))


def test_curves_over_batches() -> None:
    done = results(
        everything(SMOKE),
        right=lambda run, domain, batch: 0.5 + 0.2 * batch,
        confidence=lambda run, domain, batch: 0.9,
        energy=lambda run, domain, batch: -float(batch + (10 if run.options else 0)),
    )
    so_far = chart(get("imagenet-batches").show(done, SMOKE)).panels
    assert so_far[0].series[0].y == pytest.approx((40.0, 30.0))
    assert so_far[1].series[0].y == pytest.approx((50.0, 60.0))
    alone = chart(get("overconfidence").show(done, SMOKE)).panels
    assert [panel.title for panel in alone] == ["TENT: confidence", "CreTTA: confidence", "TENT: ECE", "CreTTA: ECE"]
    assert alone[0].series[0].y == pytest.approx((90.0, 90.0))
    assert alone[3].series[1].y == pytest.approx((40.0, 20.0))
    by_severity, biased = chart(get("energy").show(done, SMOKE)).panels
    assert [entry.label for entry in by_severity.series] == ["severity 1", "severity 5"]
    assert {entry.label: entry.y for entry in biased.series} == {
        "CreTTA": pytest.approx((0.0, -1.0)),
        "without bias terms": pytest.approx((-10.0, -11.0)),
        "BN Adapt": pytest.approx((0.0, -1.0)),
    }


def test_curves_over_beta_severity_and_corruption() -> None:
    def right(run: Run, domain: str, batch: int) -> float:
        beta = dict(run.options).get("beta", method(run.method).presets.get(run.preset or "", {}).get("beta", 0.0))
        assert isinstance(beta, float)
        return 0.5 + 0.1 * beta + (0.05 if domain.endswith("/1") else 0.0)

    done = results(everything(SMOKE), right=right, confidence=lambda *_: 1.0)
    cifar, tiny = (chart(get("beta").show(done, SMOKE), which) for which in (0, 1))
    assert cifar.panels[0].series[0].x == (0.5, 1.0, 2.0)
    assert cifar.panels[0].series[0].y == pytest.approx((60.0, 65.0, 75.0))
    assert cifar.panels[0].series[1].y == pytest.approx((55.0, 60.0, 70.0))
    assert [entry.label for entry in tiny.panels[0].series] == ["CreTTA", "TENT", "TEA"]
    assert tiny.panels[0].series[0].y == pytest.approx((57.5, 62.5, 72.5))
    assert tiny.panels[0].series[1].y == pytest.approx((52.5, 52.5, 52.5))
    lines = chart(get("ece-severity").show(done, SMOKE)).panels[0].series
    assert len(lines) == 11
    assert lines[0].y == pytest.approx((45.0, 50.0))
    bars = chart(get("imagenet-corruptions").show(done, SMOKE)).panels[0].series
    assert bars[0].x == ("gaussian_noise", "fog")


# What is measured, and what is missing


@SCALES
def test_with_all_results_nothing_is_missing(scale: Scale) -> None:
    # The full scale has too many runs to invent them all here.
    names = items() if scale is SMOKE else {name: get(name) for name in ("imagenet", "pacs", "pairs", "energy")}
    for name, item in names.items():
        shown = item.show(results(item.plan(scale)), scale)
        assert shown, name
        for entry in shown:
            if isinstance(entry, Table):
                for row in entry.rows:
                    assert len(row.cells) == len(entry.columns)
                    empty = [drawn for drawn in row.cells if drawn.value is None]
                    assert not empty, (name, row.label)
            else:
                assert all(panel.series for panel in entry.panels), name


def test_the_chosen_setting_runs_on_every_benchmark_and_on_another_network_and_has_no_printed_numbers() -> None:
    item = get("chosen-setting")
    changed = [run for run in item.plan(DAY) if run.options and run.method == "cretta"]
    others = [run for run in item.plan(DAY) if run.options and run.method != "cretta"]
    assert {(run.method, run.options) for run in others} == {("tent", (("lr", 3e-3),))}
    names = ("cifar10", "cifar10-resnet", "cifar100", "tiny-imagenet")
    families = [DAY.family(name) for name in names]
    assert {dict(run.options)["reference"] for run in changed} == {"batch"}
    assert {(run.model, run.preset, dict(run.options)["lr"]) for run in changed} == {
        (family.model, family.record.preset, 3e-3) for family in families
    }
    for family in families:
        expected = CORRUPTIONS if family.name != "tiny-imagenet" else ("gaussian_noise", "fog", "jpeg_compression")
        for runs in (changed, others):
            assert {run.domains for run in runs if run.model == family.model} == {
                (Domain(name, 5),) for name in expected
            }
    others += [run for run in item.plan(DAY) if run.model == DAY.family("cifar10-resnet").model]
    # What others need is not run again for it.
    assert set(item.plan(DAY)) - {*changed, *others} < set(get("accuracy").plan(DAY))
    drawn = table("chosen-setting", item.show(results(item.plan(SMOKE)), SMOKE))
    assert {cell.printed for row in drawn.rows for cell in row.cells} == {None}
    assert all(cell.value is not None for row in drawn.rows for cell in row.cells)


def test_names_of_outputs_are_all_different() -> None:
    names = [entry.name for item in items().values() for entry in item.show({}, SMOKE)]
    assert len(names) == len(set(names))
    assert all(
        name.startswith(item.name) for item in items().values() for name in [e.name for e in item.show({}, SMOKE)]
    )


def test_without_results_every_cell_says_why() -> None:
    for name, item in items().items():
        for entry in item.show({}, SMOKE):
            assert entry.notes
            if isinstance(entry, Table):
                assert all(drawn.value is None and drawn.note for row in entry.rows for drawn in row.cells), name


def test_a_part_of_the_results_says_how_much_is_there() -> None:
    runs = [run for run in get("pairs").plan(TWO_SEEDS) if run.data == "embedded"]
    unchanged = [run for run in runs if not run.options]
    first = [run for run in unchanged if run.seed == 0]
    drawn = table("pairs", get("pairs").show(results(first), TWO_SEEDS))
    assert cell(drawn, "CreTTA w/o CP", "Acc", "CIFAR10-C, severity 5") == Cell(50.0, None, 88.30, "1 of 2 seeds")
    drawn = table("pairs", get("pairs").show(results(first[:1]), TWO_SEEDS))
    assert cell(drawn, "CreTTA w/o CP", "Acc", "CIFAR10-C, severity 5").note == "1 of 4 runs"


def test_what_is_missing_is_noted_once() -> None:
    runs = [run for run in get("pairs").plan(SMOKE) if run.data == "cifar100"]
    missing_runs = dict.fromkeys(runs, "cifar100 is missing: download it.")
    drawn = table("pairs", get("pairs").show({}, SMOKE, missing_runs))
    assert drawn.notes.count("cifar100 is missing: download it.") == 1
    assert cell(drawn, "CreTTA w/ CP", "Acc", "CIFAR100-C, severity 5").note == "not available, see notes"
    assert cell(drawn, "CreTTA w/ CP", "Acc", "CIFAR10-C, severity 5").note == "not run"


def test_notes_of_a_chart_are_about_its_own_runs() -> None:
    item = get("ece-severity")
    missing_runs = {run: f"{run.data} is missing" for run in item.plan(SMOKE) if run.data != "embedded"}
    notes = [chart.notes for chart in item.show({}, SMOKE, missing_runs)]
    for data, mentioned in (("cifar100", [False, True, False]), ("tiny-imagenet", [False, False, True])):
        assert [f"{data} is missing" in lines for lines in notes] == mentioned


def test_notes_say_what_differs_from_the_paper() -> None:
    text = " ".join(table("main", get("main").show(results(get("main").plan(SMOKE)), SMOKE)).notes)
    for entry in (
        "32 images of each domain",
        "batches of 16 (paper: 200)",
        "2 of 15 corruptions: gaussian_noise, fog",
    ):
        assert entry in text
    for entry in ("severities 1, 5", "corrupted here", "One seed; the paper has three", "RobustBench", "ResNet-8"):
        assert entry in text
    text = " ".join(table("main", get("main").show(results(get("main").plan(QUICK)), QUICK)).notes)
    assert "averages over severities 1, 3, 5 and gaussian_noise, fog, jpeg_compression" in text
    some = {run: result(run) for run in get("imagenet").plan(FULL)[:1]}
    text = " ".join(table("imagenet", get("imagenet").show(some, FULL)).notes)
    assert "seed" not in text
    assert "all images" in text


def test_no_note_says_which_images_or_severities_where_others_are_run() -> None:
    for scale in (SMOKE, QUICK):
        for name, item in items().items():
            for entry in item.show(results(item.plan(scale)[:1]), scale):
                assert "the first" not in " ".join(note for note in entry.notes if "images of each domain" in note), (
                    name
                )
                if isinstance(entry, Table):
                    assert not any("1–5" in column.group for column in entry.columns), name
    headings = {column.group for column in table("main", get("main").show({}, QUICK)).columns}
    assert "CIFAR10-C, severities 1, 3, 5" in headings
    headings = {column.group for column in table("contrastive", get("contrastive").show({}, FULL)).columns}
    assert "CIFAR10-C, severities 1–5" in headings


def test_notes_are_of_networks_that_ran() -> None:
    runs = [run for run in get("main").plan(SMOKE) if run.data == "embedded"]
    text = " ".join(table("main", get("main").show(results(runs), SMOKE)).notes)
    assert "CIFAR10-C: 32 images of each domain" in text
    for entry in ("CIFAR100-C", "TinyImageNet-C", "ResNet-8", "learning rates"):
        assert entry not in text


def test_images_of_a_method_that_did_not_run_are_not_mentioned() -> None:
    runs = [run for run in get("main").plan(QUICK) if run.data == "cifar10" and run.method in ("source", "tent")]
    assert {run.images for run in runs} == {400, 2000}
    (drawn,) = get("main").show(results(runs), QUICK)
    assert "CIFAR10-C: 2 000 images of each domain" in " ".join(drawn.notes)


def test_what_was_not_measured_is_omitted_and_named_once() -> None:
    runs = [run for run in get("main").plan(SMOKE) if run.data == "embedded" and run.method in ("source", "tent")]
    drawn = measured(table("main", get("main").show(results(runs), SMOKE)))
    assert isinstance(drawn, Table)
    assert [row.label for row in drawn.rows] == ["Source", "TENT"]
    assert {column.group for column in drawn.columns} == {"CIFAR10-C, severity 5", "CIFAR10-C, severities 1, 5"}
    assert [len(row.cells) for row in drawn.rows] == [len(drawn.columns)] * 2 == [4, 4]
    assert cell(drawn, "TENT", "ECE", "CIFAR10-C, severity 5").value == pytest.approx(25.0)
    assert "–" not in markdown(drawn)
    assert drawn.notes[-1] == (
        "Not measured yet: CIFAR100-C, severity 5; CIFAR100-C, severities 1, 5; TinyImageNet-C, "
        "severity 5; TinyImageNet-C, severities 1, 5; BN Adapt; PL; SHOT; ETA; EATA; SAR; AEA; TEA; CreTTA."
    )
    assert not any("Not measured" in note for note in drawn.notes[:-1])


def test_a_mean_is_shown_only_over_all_corruptions() -> None:
    item = get("main")
    runs = [run for run in item.plan(SMOKE) if run.data == "embedded" and run.domains[0].severity == 5]
    half = [run for run in runs if run.method != "tent" or run.domains[0].name == "fog"]
    (full,) = item.show(results(half), SMOKE)
    drawn = measured(full)
    assert isinstance(drawn, Table)
    assert "TENT" not in [row.label for row in drawn.rows]
    assert cell(drawn, "CreTTA", "ECE", "CIFAR10-C, severity 5").value == pytest.approx(25.0)
    (text,) = incomplete(full)
    beginning = (
        "Measured in part, and not shown before all runs are done: CIFAR10-C, severities 1, 5: Source 2 of 4 runs, "
    )
    assert text.startswith(beginning)
    # mCE needs the two runs of the source model as well.
    assert text.endswith("CreTTA 4 of 8 runs; CIFAR10-C, severity 5: TENT 3 of 4 runs.")
    assert text in drawn.notes
    assert "CIFAR10-C: 21 of 44 runs are done." in drawn.notes


def test_of_tables_and_charts_without_results_nothing_is_shown() -> None:
    for name, item in items().items():
        assert [measured(entry) for entry in item.show({}, SMOKE)] == [None] * len(item.show({}, SMOKE)), name


@SCALES
def test_with_all_results_nothing_is_omitted(scale: Scale) -> None:
    for name in ("imagenet", "imagenet-batches", "pairs", "energy"):
        shown = get(name).show(results(get(name).plan(scale)), scale)
        assert tuple(measured(entry) for entry in shown) == shown, name


def test_a_line_is_drawn_when_all_of_its_points_are_measured() -> None:
    item = get("beta")
    runs = item.plan(SMOKE)
    absent = next(run for run in runs if run.data == "embedded" and dict(run.options).get("beta") == 2.0)
    for done, severities in ((set(runs), 2), (set(runs) - {absent}, 1)):
        shown = item.show(results(done), SMOKE)
        panels = [panel for entry in shown if isinstance(entry, Chart) for panel in entry.panels]
        assert {len(panel.series) for panel in panels if "CIFAR10-C" in panel.title} == {severities}
    # One β alone has no range.
    alone = item.show(results(run for run in runs if not run.options), SMOKE)
    assert {verdict(judge(claim, alone)) for claim in claims(item)} == {"not run yet"}


def test_a_method_at_one_severity_has_no_line_over_severities() -> None:
    item = get("ece-severity")
    drawn = chart(item.show(results(item.plan(DAY)), DAY))
    assert [line.label for line in drawn.panels[0].series] == ["Source", "BN Adapt", "TENT", "CreTTA"]
    worst = [run for run in item.plan(DAY) if run.domains[0].severity == 5]
    assert [measured(entry) for entry in item.show(results(worst), DAY)] == [None] * 3


def test_panels_without_a_curve_are_omitted() -> None:
    runs = [run for run in get("overconfidence").plan(SMOKE) if run.method == "tent" and run.data == "embedded"]
    shown = [measured(entry) for entry in get("overconfidence").show(results(runs), SMOKE)]
    (drawn,) = [entry for entry in shown if entry is not None]
    assert isinstance(drawn, Chart)
    assert [panel.title for panel in drawn.panels] == ["TENT: confidence", "TENT: ECE"]
    assert drawn.notes[-1] == "Not measured yet: CreTTA: confidence; CreTTA: ECE."


def test_differences_to_the_paper_are_shown_where_they_mean_something() -> None:
    for scale, compared in ((SMOKE, False), (QUICK, True)):
        drawn = table("imagenet", get("imagenet").show(results(get("imagenet").plan(scale)), scale))
        number = cell(drawn, "TEA", "Acc", "ImageNet-C, severity 5")
        assert number.value == pytest.approx(50.0)
        assert number.printed == 31.60
        assert (number.difference is not None) is compared
        assert ("+18.40" in markdown(drawn)) is compared
        assert ("(31.60, " in markdown(drawn), "(31.60)" in markdown(drawn)) == (compared, not compared)
        assert ("the measured one less it" in markdown(drawn)) is compared
        assert any("not comparable with the paper's" in note for note in drawn.notes) is not compared
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(terminal(drawn, 200))
        text = console.export_text()
        assert ("the measured one less it" in text, "+18.40" in text) == (compared, compared)
        assert "31.60" in text


def test_learning_rates_of_baselines_are_noted_where_baselines_are_shown() -> None:
    for name, baselines in (("main", True), ("gradual", True), ("pairs", False), ("target-as-source", False)):
        done = results(get(name).plan(SMOKE))
        notes = [note for entry in get(name).show(done, SMOKE) for note in entry.notes]
        assert any("no learning rates of the baselines" in note for note in notes) is baselines, name


def test_where_methods_are_columns_the_best_is_that_of_a_row() -> None:
    right = {"cretta": 0.7, "tea": 0.6, "tent": 0.5}
    done = results(get("gradual").plan(SMOKE), right=lambda run, domain, batch: right[run.method], batches=3)
    drawn = table("gradual", get("gradual").show(done, SMOKE))
    assert marks(drawn) == ((True, False, False) * 2,) * 7
    for name in ("contrastive-batches", "target-weight"):
        assert table(name, get(name).show({}, SMOKE)).best_of == "none"


def test_batches_of_gradual_shift_have_no_more_than_the_images_of_a_domain() -> None:
    text = " ".join(get("gradual").show(results(get("gradual").plan(SMOKE)), SMOKE)[0].notes)
    assert "10 images of each domain" in text
    assert "in batches of 10 (paper: 200)" in text
    assert "batches of 16" not in text


def test_notes_of_gradual_shift_mention_no_averages() -> None:
    text = " ".join(get("gradual").show(results(get("gradual").plan(QUICK)), QUICK)[0].notes)
    assert "1 of 15 corruptions: gaussian_noise" in text
    assert "averages" not in text


def test_an_unknown_item_names_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"unknown item of the paper 'buffersize'. Did you mean 'buffer-size'\?"):
        get("buffersize")


@pytest.mark.slow
def test_an_item_from_end_to_end(tmp_path: Path) -> None:
    family = dataclasses.replace(SMOKE.family("cifar10"), images=8, batch_size=4, ablations=("fog",))
    scale = dataclasses.replace(SMOKE, families={**SMOKE.families, "cifar10": family}).resolve(tmp_path)
    item, context = get("pairs"), RunContext(tmp_path)
    plan = item.plan(scale)
    missing_runs = missing(plan, scale, context)
    assert {run.data for run in missing_runs} == {"cifar100", "tiny-imagenet"}
    done = dict(run_all([run for run in plan if run not in missing_runs], Store(tmp_path / "store"), context))
    assert len(done) == 2
    drawn = table("pairs", item.show(done, scale, missing_runs))
    for row in drawn.rows:
        value = row.cells[0].value
        assert value is not None
        assert 0 <= value <= 100
        assert row.cells[1].note == "not available, see notes"
    assert any("cretta data get cifar100" in note for note in drawn.notes)
