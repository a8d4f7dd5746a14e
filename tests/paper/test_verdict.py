"""Claims of the paper, judged on its own numbers and on invented ones."""

from __future__ import annotations

import dataclasses

import pytest
from fake_results import results

from cretta.bench import Run
from cretta.paper import DAY, FULL, QUICK, SMOKE, get, items
from cretta.paper.verdict import Claim, claims, column_count, judge, verdict
from cretta.report.content import Cell, Chart, Column, Panel, Row, Series, Table, cell

CONTRADICTED = {
    "buffer-confidence": {"partly"},  # 1.38 points on CIFAR10-C
    "gradual": {"yes", "partly"},  # TENT at low severities
    "source-model": {"partly"},  # the ECE on CIFAR100-C
    "single-sample": {"partly"},  # the same accuracy on TinyImageNet-C
    "target-weight": {"yes", "not run yet"},  # 1 - w is not printed
    "uniform-weight": {"partly"},  # the ECE on CIFAR10-C
}
"""Items with claims that the paper's own numbers do not fully support, or do not show."""


def as_printed(part: Table | Chart) -> Table | Chart:
    """The table as if its printed numbers had been measured."""
    if isinstance(part, Chart):
        return part
    rows = [
        dataclasses.replace(row, cells=tuple(dataclasses.replace(c, value=c.printed) for c in row.cells))
        for row in part.rows
    ]
    return dataclasses.replace(part, rows=tuple(rows))


@pytest.mark.parametrize("name", [name for name, item in items().items() if item.where.startswith("Table")])
def test_the_papers_own_numbers_support_its_claims(name: str) -> None:
    shown = [as_printed(part) for part in get(name).show({}, FULL)]
    judged = {verdict(judge(claim, shown)) for claim in claims(get(name))}
    assert judged == CONTRADICTED.get(name, {"yes"})


def test_every_item_of_the_paper_has_claims_that_can_be_measured() -> None:
    for name, item in items().items():
        assert bool(claims(item)) is bool(item.labels), name
        shown = item.show(results(item.plan(SMOKE), batches=4), SMOKE)
        for claim in claims(item):
            assert judge(claim, shown), (name, claim.text)
            assert verdict(judge(claim, item.show({}, SMOKE))) == "not run yet"


def made(own: tuple[float, ...], other: tuple[float, ...]) -> Table:
    cells = [cell({0: sum(blocks) / len(blocks)}, blocks=blocks) for blocks in (own, other)]
    rows = tuple(Row(label, (numbers,)) for label, numbers in zip(("CreTTA", "TENT"), cells, strict=True))
    return Table("made", "made", "Method", (Column("Acc", better="higher"),), rows)


@pytest.mark.parametrize(
    ("own", "within", "answer", "opposite"),
    [
        ((81.0, 82.0, 83.0, 84.0), None, "yes", False),
        ((80.9, 80.0, 82.4, 82.9), None, "undecided", False),  # by chance
        ((70.0, 71.1, 72.0, 73.0), None, "no", True),
        ((79.5, 80.5, 81.5, 82.5), 1.0, "yes", False),
        ((79.4, 81.6, 81.5, 83.6), 1.0, "undecided", False),  # half a point by chance
        ((78.0, 79.0, 80.0, 81.0), 1.0, "no", True),
    ],
)
def test_a_difference_counts_only_beyond_chance(
    own: tuple[float, ...], within: float | None, answer: str, opposite: bool
) -> None:
    claim = Claim(text="", row="CreTTA", within=within)
    (finding,) = judge(claim, [made(own, (80.0, 81.0, 82.1, 83.0))])
    assert verdict([finding]) == answer
    assert finding.reversed is opposite


def drawn(*own: float) -> Chart:
    series = Series("CreTTA", tuple(map(float, range(len(own)))), own)
    return Chart("made", "made", (Panel("confidence", "batch", "confidence, %", "line", (series,)),))


@pytest.mark.parametrize(
    ("own", "answer"),
    [
        ((50.0, 51.0, 52.0, 60.0, 61.1, 62.0), "yes"),
        ((60.0, 61.0, 62.0, 50.0, 51.1, 52.0), "no"),
        ((50.0, 59.0, 52.0, 57.0, 51.0, 58.0), "undecided"),  # the images of single batches
        ((50.0, 51.0, 60.0, 61.0), "undecided"),  # two changes have no known spread
    ],
)
def test_a_line_that_changes_must_do_so_beyond_the_spread_of_its_points(own: tuple[float, ...], answer: str) -> None:
    claim = Claim(text="", row="CreTTA", than=("0",), better="higher", curve="change")
    assert verdict(judge(claim, [drawn(*own)])) == answer


@pytest.mark.parametrize("own", [(50.0, 51.0, 52.0), (70.0, 71.0, 72.0)])
def test_nothing_is_decided_by_the_last_value_of_a_line(own: tuple[float, ...]) -> None:
    lines = tuple(Series(label, (0.0, 1.0, 2.0), y) for label, y in (("CreTTA", own), ("TEA", (60.0, 61.0, 62.0))))
    chart = Chart("made", "made", (Panel("accuracy", "batch", "Acc, % ↑", "line", lines),))
    assert verdict(judge(Claim(text="", row="CreTTA", curve="last"), [chart])) == "undecided"


@pytest.mark.parametrize(("spread", "answer"), [(0.001, "yes"), (0.2, "undecided")])
def test_a_number_of_single_batches_has_the_spread_over_corruptions(spread: float, answer: str) -> None:
    item = get("contrastive-batches")
    claim = next(claim for claim in claims(item) if claim.text.startswith("With contrastive terms the ECE"))
    shifts = list(dict.fromkeys(run.domains for run in item.plan(QUICK)))

    def share(run: Run, domain: str, batch: int) -> float:
        # At a confidence of 75 %, more right answers are a lower ECE; by how much depends on the corruption.
        return 0.5 + (0.02 + spread * (shifts.index(run.domains) - 1)) * batch

    shown = item.show(results(item.plan(QUICK), right=share, batches=5), QUICK)
    assert verdict(judge(claim, shown)) == answer


def test_the_columns_of_a_claim_are_counted_whether_they_were_run_or_not() -> None:
    claim = claims(get("main"))[0]
    runs = [run for run in get("main").plan(QUICK) if run.data == "embedded" or run.data == "cifar10"]
    shown = get("main").show(results(runs, batches=4), QUICK)
    assert (len(judge(claim, shown)), column_count(claim, shown)) == (2, 6)
    claim = claims(get("overconfidence"))[0]
    runs = [run for run in get("overconfidence").plan(DAY) if run.data == "cifar10" and run.seed == 0]
    shown = get("overconfidence").show(results(runs, batches=6), DAY)
    assert (len(judge(claim, shown)), column_count(claim, shown)) == (1, 3)


def test_a_claim_about_rows_that_were_not_run_is_not_confirmed() -> None:
    claim = Claim(text="", row="CreTTA", than=("TENT", "TEA"))
    (finding,) = judge(claim, [made((91.0, 92.0, 93.0, 94.0), (80.0, 81.0, 82.1, 83.0))])
    assert (finding.holds, finding.not_run, verdict([finding])) == (True, ("TEA",), "partly")


def test_a_finding_says_whether_the_papers_own_numbers_show_it() -> None:
    table = made((81.0, 82.0, 83.0, 84.0), (80.0, 81.0, 82.1, 83.0))
    for own, other, within, holds in ((70.0, 69.9, None, True), (70.0, 70.1, None, False), (70.0, 71.4, 1.0, False)):
        rows = tuple(
            dataclasses.replace(row, cells=(dataclasses.replace(row.cells[0], printed=number),))
            for row, number in zip(table.rows, (own, other), strict=True)
        )
        (finding,) = judge(Claim(text="", row="CreTTA", within=within), [dataclasses.replace(table, rows=rows)])
        assert finding.printed_holds is holds
    (finding,) = judge(Claim(text="", row="CreTTA"), [table])
    assert finding.printed_holds, "it prints none"


def test_a_row_on_fewer_images_is_no_rival_unless_the_claim_names_it() -> None:
    table = made((81.0, 82.0, 83.0, 84.0), (80.0, 81.0, 82.1, 83.0))
    fewer = dataclasses.replace(table.rows[1], label="TEA †", cells=(Cell(90.0, printed=60.0),), compared=False)
    table = dataclasses.replace(table, rows=(*table.rows, fewer))
    (finding,) = judge(Claim(text="", row="CreTTA"), [table])
    assert (finding.name, finding.holds, finding.not_run) == ("TENT", True, ("TEA",))
    assert verdict([finding]) == "partly"
    (without,) = judge(Claim(text="", row="CreTTA", excluding=("TEA",)), [table])
    assert (without.name, without.holds, without.not_run) == ("TENT", True, ())
    assert verdict([without]) == "yes"
    (named,) = judge(Claim(text="", row="CreTTA", than=("TEA",)), [table])
    assert (named.name, named.holds, named.not_run) == ("TEA", False, ())


def test_a_line_on_fewer_images_is_no_rival_unless_the_claim_names_it() -> None:
    values = {"CreTTA": (50.0, 51.0, 52.0), "TENT": (40.0, 41.0, 42.0), "TEA †": (90.0, 91.0, 92.0)}
    lines = [Series(label, (1.0, 3.0, 5.0), y) for label, y in values.items()]
    lines += [Series("TEA (paper)", (1.0,), (60.0,)), Series("CreTTA (paper)", (1.0,), (70.0,))]
    chart = Chart("made", "made", (Panel("accuracy", "severity", "Acc, % ↑", "line", tuple(lines)),))
    (finding,) = judge(Claim(text="", row="CreTTA"), [chart])
    assert (finding.name, finding.holds, finding.not_run) == ("TENT", True, ("TEA",))
    assert verdict([finding]) == "partly"
    (named,) = judge(Claim(text="", row="CreTTA", than=("TEA",)), [chart])
    assert (named.name, named.holds, named.not_run) == ("TEA", False, ())
    assert named.printed == (70.0, 60.0, "TEA")


def test_the_claim_about_cost_and_gain_is_judged_where_tea_has_fewer_images() -> None:
    item = get("gain-cost")
    shown = item.show(results(item.plan(QUICK), batches=4), QUICK)
    (finding,) = judge(claims(item)[0], shown)
    assert (finding.name, finding.not_run) == ("TEA", ())
    assert finding.printed == (15.6, 11.89, "TEA")


def test_costs_are_exact_however_few_batches_were_run() -> None:
    item = get("cost")
    shown = item.show(results(item.plan(QUICK), batches=1), QUICK)
    findings = [finding for claim in claims(item) for finding in judge(claim, shown)]
    assert len(findings) == 4
    assert {finding.margin for finding in findings} == {0.0}


def test_the_strongest_rival_is_shown() -> None:
    right = {"cretta": 0.7, "tent": 0.6, "aea": 0.65}

    def share(run: Run, domain: str, batch: int) -> float:
        return right.get(run.method, 0.5)

    shown = get("accuracy").show(results(get("accuracy").plan(QUICK), right=share, batches=4), QUICK)
    findings = judge(claims(get("accuracy"))[0], shown)
    assert len(findings) == 6
    assert {(finding.name, finding.holds) for finding in findings} == {("AEA", True)}
    assert findings[0].printed == (88.30, 88.27, "AEA")
