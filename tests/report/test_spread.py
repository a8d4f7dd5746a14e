"""Which numbers are marked as best: those that the spread over batches and seeds supports."""

from __future__ import annotations

import dataclasses
import io
import math
import statistics
from collections.abc import Sequence
from csv import DictReader

import pytest
from rich.console import Console

from cretta.bench import BatchRow, Result
from cretta.report.content import Cell, Column, Row, Table, cell
from cretta.report.groups import CALIBRATION, METRICS, Group, grouped
from cretta.report.page.payload import table_payload
from cretta.report.ranking import MEANING, MEANING_OF_STAR, NO_BEST, marks, notes
from cretta.report.spread import blocks_of, margin
from cretta.report.summary import summary_tables
from cretta.report.tables import csv, markdown
from cretta.report.terminal import terminal
from made_results import made_result, scores_of


def with_right(method: str, right: Sequence[int], seed: int = 0, images: int = 100, sure: float = 0.85) -> Result:
    """A run whose batches have so many right of ``images``, all of one confidence."""
    base = made_result(method, seed=seed, batches=len(right), images=images)
    rows = tuple(
        dataclasses.replace(
            row,
            right=count,
            confidence=sure * images,
            bin_images=(0,) * 8 + (images, 0),
            bin_confidence=(0.0,) * 8 + (sure * images, 0.0),
            bin_right=(0,) * 8 + (count, 0),
            negative_log_likelihood=1.0 * images,
            brier=0.5 * images,
            energy=-5.0,
        )
        for row, count in zip(base.rows, right, strict=True)
    )
    return dataclasses.replace(base, rows=rows)


def column(results: Sequence[Result], title: str) -> dict[str, bool]:
    """The marks of the first table's column, by method."""
    table = summary_tables(grouped(results))[0]
    index = [item.title for item in table.columns].index(title)
    return {row.label: marked[index] for row, marked in zip(table.rows, marks(table), strict=True)}


def test_one_image_of_400_does_not_make_a_best() -> None:
    results = [
        with_right("source", (50, 52, 47, 51)),
        with_right("tent", (77, 76, 78, 77)),  # 77.00 %
        with_right("cretta", (77, 77, 78, 77)),  # 77.25 %
    ]
    assert column(results, "accuracy %") == {"source": False, "tent": True, "cretta": True}


def test_a_difference_in_every_batch_makes_one() -> None:
    results = [
        with_right("source", (50, 52, 47, 51)),
        with_right("tent", (71, 70, 72, 70)),
        with_right("cretta", (77, 77, 78, 77)),
    ]
    assert column(results, "accuracy %") == {"source": False, "tent": False, "cretta": True}


def test_a_hundredth_of_a_point_within_the_deviation_over_seeds_does_not_make_a_best() -> None:
    blocks = tuple(7.4 + 0.1 * index for index in range(10))
    values = {"tent": (7.40, 7.44, 7.48), "cretta": (7.45, 7.39, 7.45), "source": (15.0, 15.02, 14.98)}
    cells = [cell(dict(enumerate(item)), blocks=blocks) for item in values.values()]
    assert [f"{item.value:.2f} ± {item.deviation:.2f}" for item in cells[:2]] == ["7.44 ± 0.04", "7.43 ± 0.03"]
    table = Table("t", "T", "m", (Column("ECE", better="lower"),), tuple(Row("r", (item,)) for item in cells))
    assert [mark for (mark,) in marks(table)] == [True, True, False]


def test_where_all_tie_nothing_is_marked_and_the_note_says_so() -> None:
    table = summary_tables(grouped([with_right("tent", (77, 76, 78)), with_right("cretta", (77, 77, 78))]))[0]
    assert {mark for row in marks(table) for mark in row} == {False}
    assert notes(table)[0] == NO_BEST


def test_numbers_that_read_alike_have_the_same_mark() -> None:
    # Against 70.00 the first 69.00 is as good, for its blocks vary, and the second is not.
    blocks = ((70.0,) * 4, (67.0, 71.0, 67.0, 71.0), (69.0, 69.01, 68.99, 69.0))
    cells = [cell({0: value}, blocks=item) for value, item in zip((70.0, 69.0, 69.0), blocks, strict=True)]
    rows = tuple(Row(str(index), (item,)) for index, item in enumerate((*cells, Cell(10.0))))
    table = Table("t", "T", "m", (Column("Acc", better="higher"),), rows)
    assert margin(cells[0], cells[1]) > 1 > margin(cells[0], cells[2])
    assert [mark for (mark,) in marks(table)] == [True, True, True, False]


# The margin


def test_the_margin_is_that_of_a_paired_t_test_over_batches() -> None:
    first, other = (80, 70, 75, 90, 60), (78, 71, 70, 85, 59)
    a, b = (Group((with_right("tent", right),), "", "", "").cells(METRICS)[0] for right in (first, other))
    assert a.blocks == pytest.approx(first)
    differences = [x - y for x, y in zip(first, other, strict=True)]
    # Student's t for four degrees of freedom is 2.776.
    assert margin(a, b) == pytest.approx(2.776 * statistics.stdev(differences) / math.sqrt(5), rel=2e-3)


def test_the_larger_margin_counts_of_that_over_batches_and_that_over_seeds() -> None:
    batches, seeds = (3.0, 5.0, 4.0, 6.0, 2.0, 4.5, 3.5, 5.5, 2.5, 4.0), (4.2, 3.9, 4.1)
    # Student's t is 2.262 for nine degrees of freedom, 4.303 for two, 12.706 for one.
    over_batches = 2.262 * statistics.stdev(batches) / math.sqrt(10)
    b = cell({0: 70.0, 1: 70.0, 2: 70.0, 3: 99.0}, blocks=(70.0,) * 10)  # the fourth seed has no partner
    for values, t in ((seeds, 4.303), ((4.0, 6.0), 12.706), ((4.0, 8.0, 2.0), 4.303)):
        over_seeds = t * statistics.stdev(values) / math.sqrt(len(values))
        a = cell({seed: 70 + item for seed, item in enumerate(values)}, blocks=tuple(70 + item for item in batches))
        assert margin(a, b) == pytest.approx(max(over_batches, over_seeds), rel=2e-3)
    assert over_batches > 4.303 * statistics.stdev(seeds) / math.sqrt(3)


def test_exact_numbers_have_no_margin_and_a_single_batch_has_an_infinite_one() -> None:
    one, two = (Group((with_right("tent", (right,)),), "", "", "").cells(METRICS)[0] for right in (80, 20))
    assert one.blocks == ()
    assert margin(one, two) == math.inf
    assert margin(Cell(1.0), Cell(2.0)) == 0.0
    counted = [cell({0: value}, blocks=(value,) * 4) for value in (65.5, 131.0)]  # GFLOPs, whatever the batch
    assert margin(*counted) == 0.0
    # One more correct in each of two batches says nothing: that happens by chance.
    assert margin(cell({0: 81.0}, blocks=(80.0, 82.0)), cell({0: 80.0}, blocks=(79.0, 81.0))) == math.inf
    # Nor do seeds that all see the same single batch, in another order.
    repeated = [cell({0: value, 1: value + 1e-8}, blocks=()) for value in (0.417, 0.705)]
    assert margin(*repeated) == math.inf


def test_blocks_of_other_lengths_are_not_paired() -> None:
    a, b = (1.0, 2.0, 1.5), (9.0, 8.0, 9.5, 8.5)
    spread = 4.303 * math.sqrt(statistics.variance(a) / 3 + statistics.variance(b) / 4)
    assert margin(cell({0: 1.5}, blocks=a), cell({0: 8.75}, blocks=b)) == pytest.approx(spread, rel=2e-3)
    assert margin(cell({0: 1.5}, blocks=a[:2]), cell({0: 8.75}, blocks=b)) == math.inf


def test_blocks_have_the_calibration_error_of_their_batches() -> None:
    result = made_result(batches=7)
    blocks = Group((result,), "", "", "").cells([CALIBRATION])[0].blocks
    assert blocks == pytest.approx([100 * scores_of([row]).calibration_error for row in result.rows])


def test_long_streams_are_cut_into_ten_blocks_of_each_domain() -> None:
    result = made_result("tent", ("fog/1", "fog/5"), batches=25)
    blocks = blocks_of([result])
    assert len(blocks) == 10
    assert sorted(row.batch for (block,) in blocks for row in block.rows) == list(range(50))  # each batch once
    for (block,) in blocks:
        for domain in ("fog/1", "fog/5"):
            assert sum(row.domain == domain for row in block.rows) in (2, 3)


def test_batches_of_a_mixed_stream_are_of_one_domain() -> None:
    result = made_result("tent", ("fog/1", "fog/5"), batches=3, stream="mixed")
    assert len(blocks_of([result])) == 6
    rows: list[BatchRow] = [dataclasses.replace(row, domain=f"only {row.batch}") for row in result.rows]
    assert len(blocks_of([dataclasses.replace(result, rows=tuple(rows))])) == 6
    assert blocks_of([made_result("tent", ("fog/1", "fog/5"), batches=2)]) == []


# Everywhere the same


def compared() -> Table:
    results = [
        with_right("source", (50, 52, 47, 51)),
        with_right("tent", (77, 76, 78, 77)),
        with_right("cretta", (77, 77, 78, 77)),
    ]
    return dataclasses.replace(summary_tables(grouped(results))[0], notes=())


def test_every_renderer_has_the_same_marks_and_says_what_they_mean() -> None:
    table = compared()
    assert "| source | 50.00 |" in markdown(table)
    assert "| tent | **77.00** |" in markdown(table)
    assert "| cretta | **77.25** |" in markdown(table)
    lines = [item for item in DictReader(io.StringIO(csv(table))) if item["column"] == "accuracy %"]
    assert [item["mark"] for item in lines] == ["", "best", "best"]
    payload = table_payload(table)
    assert [item[2][0] for item in payload["rows"]] == [".", "b", "b"]
    console = Console(width=200, record=True, file=io.StringIO(), force_terminal=True)
    console.print(terminal(table, 200))
    text = console.export_text(styles=True)
    assert "\x1b[1m77.00\x1b[0m" in text
    assert "\x1b[1m77.25\x1b[0m" in text
    file = io.StringIO()
    Console(width=200, file=file).print(terminal(table, 200, bold=False))
    printed = [line.split() for line in file.getvalue().splitlines()]
    assert [line[1] for line in printed if line and line[0] in ("source", "tent", "cretta")] == [
        "50.00",
        "77.00*",
        "77.25*",
    ]
    assert MEANING_OF_STAR in file.getvalue()
    assert "Bold" not in file.getvalue()
    assert "paired t-test over batches, and seeds if several, 5 %" in MEANING
    assert payload["notes"] == [MEANING]
    assert MEANING in text
    assert MEANING in markdown(table)


def test_seeds_that_give_the_same_number_have_no_deviation() -> None:
    results = [with_right(method, (80,), seed) for method in ("source", "tent") for seed in (0, 1)]
    table = summary_tables(grouped(results))[0]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal(dataclasses.replace(table, notes=()), 200))
    for text in (markdown(dataclasses.replace(table, notes=())), console.export_text()):
        assert "80.00" in text
        assert "±" not in text
    cells = [item for row in table_payload(table)["rows"] for item in row[3] if item is not None]
    assert all(len(item) == 2 for item in cells)  # the value, and how it reads


def test_numbers_of_different_seeds_are_compared_over_those_that_both_have() -> None:
    """Over three seeds A is at 81; with the only seed of B it is at 80, below B, and both are above C."""
    blocks = (79.0, 80.0, 81.0)

    def row(label: str, seeds: dict[int, float], shift: float) -> Row:
        return Row(label, (cell(seeds, blocks=tuple(block + shift for block in blocks)),))

    rows = (row("A", {0: 80.0, 1: 81.5, 2: 81.5}, 0.0), row("B", {0: 80.5}, 0.5), row("C", {0: 79.0}, -1.0))
    table = Table("t", "T", "method", (Column("Acc", better="higher"),), rows)
    assert [mark for (mark,) in marks(table)] == [True, True, False]
