from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import cretta
from cretta import demo
from cretta.bench import BatchRow, Domain, Store, run_all
from cretta.report.groups import Group
from made_results import made_result, made_row, scores_of

DOMAINS = tuple(f"{shift}/5" for shift in demo.SHIFTS)


def group(
    method: str, rows: Sequence[BatchRow], domains: tuple[str, ...] = DOMAINS, name: str = "whole stream"
) -> Group:
    """A run with these batches, as many per domain."""
    size = len(rows) // len(domains)
    rows = [dataclasses.replace(row, domain=domains[index // size]) for index, row in enumerate(rows)]
    return Group((dataclasses.replace(made_result(method, domains), rows=tuple(rows)),), method, "", name)


def batch(right: int, confidence: float, *, images: int = 10, domain: str = "fog/5") -> BatchRow:
    """Predictions of one confidence, so many of them right."""
    index = int(10 * confidence)
    made = made_row(0, domain, images, 0.5, random.Random(0), learns=False)
    return dataclasses.replace(
        made,
        right=right,
        confidence=images * confidence,
        bin_images=tuple(images * (bin == index) for bin in range(10)),
        bin_confidence=tuple(images * confidence * (bin == index) for bin in range(10)),
        bin_right=tuple(right * (bin == index) for bin in range(10)),
    )


def test_the_default_stream_passes_through_eight_shifts_with_different_images() -> None:
    runs, context = demo.plan()
    assert [run.method for run in runs] == ["source", "bn_adapt", "tent", "cretta"]
    assert {(run.domains, run.stream, run.batch_size, run.buffer.size) for run in runs} == {
        (
            Domain.parse_all(
                "gaussian_noise/5", "glass_blur/5", "fog/5", "jpeg_compression/5",
                "contrast/5", "shot_noise/5", "brightness/5", "pixelate/5",
            ),
            "continual",
            50,
            1000,
        )
    }  # fmt: skip
    assert context.images(runs[0]) == 3200
    labels = cretta.data.embedded("test").labels
    for index, domain in enumerate(runs[0].domains):
        start = 400 * (index % 5)
        assert np.array_equal(context.domain(runs[0], domain).labels, labels[start : start + 400])
    buffer = context.buffer(runs[3])
    assert buffer is not None
    assert len(buffer) == 1000


def test_images_start_again_after_the_last_one() -> None:
    runs, context = demo.plan(images=1500)
    labels = cretta.data.embedded("test").labels
    assert np.array_equal(context.domain(runs[0], runs[0].domains[1]).labels, [*labels[1500:], *labels[:1000]])
    assert [demo.plan(images=images)[0][0].batch_size for images in (1500, 20)] == [50, 20]


@pytest.mark.slow
def test_the_stream_measures_what_a_plain_loop_without_reset_scores_of(tmp_path: Path) -> None:
    runs, context = demo.plan(methods=("tent",), images=8, batch_size=4, seed=3)
    ((run, result),) = run_all(runs, Store(tmp_path), context)
    test, model = cretta.data.embedded("test"), cretta.adapt(cretta.models.load("wrn-40-2-cifar10"), "tent", seed=3)
    rows = iter(result.rows)
    for index, shift in enumerate(demo.SHIFTS):
        images = cretta.data.corrupt(test.images[8 * index : 8 * index + 8], shift, severity=5, seed=0)
        labels = torch.from_numpy(test.labels[8 * index : 8 * index + 8])
        for chosen in torch.from_numpy(np.random.default_rng(3 + index).permutation(8)).split(4):
            logits = model(torch.from_numpy(images)[chosen].permute(0, 3, 1, 2).float() / 255)
            row = next(rows)
            assert row.domain == f"{shift}/5"
            assert row.right == int((logits.argmax(1) == labels[chosen]).sum())
            assert row.confidence == pytest.approx(float(logits.softmax(1).max(1).values.sum()), abs=1e-4)
    assert run.method == "tent"
    assert next(rows, None) is None


@pytest.mark.slow
def test_given_shifts_are_streams_of_their_own(tmp_path: Path) -> None:
    def energies(shifts: tuple[str, ...]) -> list[float]:
        runs, context = demo.plan(shifts, methods=("tent",), images=8, batch_size=4)
        results = dict(run_all(runs, Store(tmp_path), context))
        assert [run.domains for run in runs] == [(Domain(shift, 5),) for shift in shifts]
        return [row.energy for row in results[runs[-1]].rows]

    assert energies(("contrast", "fog")) == energies(("fog",))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"images": 3000}, "images=3000: expected 2 to 2000"),
        ({"batch_size": 1}, "batch_size=1: expected 2 to 10"),
        ({"severity": 6}, "6"),
        ({"shifts": ("fogg",), "batch_size": 50}, "unknown corruption 'fogg'"),
    ],
)
def test_wrong_requests_are_refused_with_what_is_allowed(wrong: dict[str, object], said: str, tmp_path: Path) -> None:
    def start() -> None:
        runs, context = demo.plan(**{"images": 10, "batch_size": 5, **wrong})  # type: ignore[arg-type]
        next(run_all(runs, Store(tmp_path), context))

    with pytest.raises(cretta.CrettaError, match=said):
        start()


def test_the_table_has_the_stream_and_its_second_half() -> None:
    stream = group("tent", [batch(5, 0.75)] * 24 + [batch(9, 0.85)] * 24)
    rows = demo.table([stream], "title").rows
    assert [(row.group, row.label) for row in rows] == [("whole stream", "tent"), ("second half", "tent")]
    # Accuracy, ECE, confidence minus accuracy, images per second (10 in a quarter of a second).
    assert [cell.value for cell in rows[0].cells] == pytest.approx([70, 15, 10, 40])
    assert [cell.value for cell in rows[1].cells] == pytest.approx([90, 5, -5, 40])


def test_the_table_of_single_shifts_has_a_group_for_each() -> None:
    runs, _ = demo.plan(("glass_blur", "fog"), methods=("tent",), images=10, batch_size=5)
    rows = {run: [batch(8, 0.85)] if Domain("fog", 5) in run.domains else [batch(6, 0.85)] for run in runs}
    results = {run: group("tent", rows[run], tuple(map(str, run.domains))).results[0] for run in runs}
    table = demo.table(demo.groups_of(results), "title")
    assert [(row.group, row.label, row.cells[0].value) for row in table.rows] == [
        ("glass blur", "tent", 60),
        ("fog", "tent", 80),
    ]


def test_curves_have_a_point_per_shift_and_the_shifts_are_named() -> None:
    results = {method: made_result(method, DOMAINS, batches=3) for method in demo.METHODS}
    groups = [Group((result,), method, "", "") for method, result in results.items()]
    chart = demo.chart(groups, "title")
    assert [(start, end) for start, end, _ in chart.parts] == [(60 * index, 60 * index + 60) for index in range(8)]
    assert [name for _, _, name in chart.parts][:3] == ["gaussian noise", "glass blur", "fog"]
    assert [panel.y for panel in chart.panels] == ["accuracy %", "ECE %", "confidence − accuracy %"]
    for panel in chart.panels:
        assert [series.label for series in panel.series] == list(demo.METHODS)
        assert all(series.x == tuple(range(30, 480, 60)) for series in panel.series)
    fog = scores_of(results["tent"].rows[6:9])
    tent = [panel.series[2].y[2] for panel in chart.panels]
    assert tent == pytest.approx(
        [100 * fog.accuracy, 100 * fog.calibration_error, 100 * (fog.bins.mean_confidence - fog.accuracy)]
    )


def test_curves_over_a_single_shift_are_of_all_images_so_far() -> None:
    rows = made_result("tent", ("fog/5",), batches=3).rows
    groups = [group("tent", rows, ("fog/5",), name) for name in ("fog", "snow")]
    chart = demo.chart(groups, "title")
    assert not chart.parts
    assert [panel.title for panel in chart.panels] == ["fog"] * 3 + ["snow"] * 3
    (series,) = chart.panels[0].series
    assert list(series.x) == [20, 40, 60]
    assert series.y == pytest.approx([100 * scores_of(rows[:end]).accuracy for end in (1, 2, 3)])


def test_the_sentences_follow_the_numbers() -> None:
    """Confidence is 85 % throughout: 8 of 10 correct are 5 % below it, 7 are 15 %, 6 are 25 %."""

    def sentences(source: int, tent: int, cretta: int) -> tuple[str, str]:
        correct = {"source": source, "tent": tent, "cretta": cretta}
        return demo.findings([group(method, [batch(number, 0.85)] * 32) for method, number in correct.items()])

    gaps = (
        "the mean confidence, an estimate of accuracy without labels, is off by {} for source, {} for tent and {} for "
        "cretta (points)."
    )
    assert sentences(6, 7, 8) == (
        "Over the whole stream cretta (accuracy 80.0 %) is the most accurate.",
        "In its second half cretta (ECE 5.0 %) is the best calibrated; " + gaps.format("+25.0", "+15.0", "+5.0"),
    )
    assert sentences(6, 8, 7)[0] == "Over the whole stream tent (accuracy 80.0 %) is the most accurate."
    assert sentences(6, 8, 8) == (
        "Over the whole stream tent (accuracy 80.0 %) and cretta (accuracy 80.0 %) are the most accurate, "
        "without a significant difference.",
        "In its second half tent (ECE 5.0 %) and cretta (ECE 5.0 %) are the best calibrated, "
        "without a significant difference; " + gaps.format("+25.0", "+5.0", "+5.0"),
    )
    assert sentences(7, 7, 7)[0] == "Over the whole stream no method is clearly the most accurate."


def test_a_difference_that_could_be_chance_is_not_called_one() -> None:
    tent, cretta = [batch(7, 0.85)] * 64, [batch(correct, 0.85) for correct in (8, 6, 8, 6, 8, 6, 8, 7)] * 8
    accuracy, calibration = demo.findings([group("tent", tent), group("cretta", cretta)])
    assert accuracy == "Over the whole stream no method is clearly the most accurate."
    assert "In its second half no method is clearly the best calibrated; " in calibration


@pytest.mark.slow
def test_cretta_is_better_than_source_on_the_stream(tmp_path: Path) -> None:
    runs, context = demo.plan(methods=("source", "cretta"), images=20, batch_size=20)
    source, adapted = (result.scores for _, result in run_all(runs, Store(tmp_path), context))
    assert adapted.accuracy > source.accuracy
    assert adapted.calibration_error < source.calibration_error
