from __future__ import annotations

import dataclasses
import io
import math
from csv import DictReader
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

from cretta.report.content import Cell, Column, Row, Table
from cretta.report.files import write_files
from cretta.report.page.payload import table_payload
from cretta.report.ranking import MEANING, marks, notes
from cretta.report.tables import csv, markdown
from cretta.report.terminal import terminal


def numbers(*values: float | None, better: str = "lower", digits: int = 2) -> Table:
    """One column."""
    rows = tuple(Row(f"row {index}", (Cell(value),)) for index, value in enumerate(values))
    return Table("t", "T", "method", (Column("ECE", better=better, digits=digits),), rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "better", "expected"),
    [
        ((3.0, 1.0, 2.0), "lower", (False, True, False)),
        ((3.0, 1.0, 2.0), "higher", (True, False, False)),
        ((3.0, 1.0, 2.0), "neither", (False, False, False)),
        ((1.001, 1.004, 2.0, 3.0), "lower", (True, True, False, False)),  # both show 1.00
        ((1.0, 2.0, 2.0), "lower", (True, False, False)),
        ((2.0, 2.0), "higher", (False, False)),  # all tie
        ((1.0, 1.0, 1.0, 2.0, 3.0), "lower", (True, True, True, False, False)),
        ((1.0, 1.0, 2.0, 3.0, None), "lower", (True, True, False, False, False)),
        ((None, 2.0, 1.0), "lower", (False, False, True)),
        ((math.nan, math.inf, 1.0, 2.0), "lower", (False, False, True, False)),
        ((None, 2.0), "lower", (False, False)),
        ((-0.001, 0.001, 5.0, 6.0), "lower", (True, True, False, False)),
    ],
)
def test_marks(values: tuple[float | None, ...], better: str, expected: tuple[bool, ...]) -> None:
    assert tuple(row[0] for row in marks(numbers(*values, better=better))) == expected


def test_marks_within_groups() -> None:
    rows = tuple(Row("m", (Cell(value),), group) for value, group in ((1.0, "a"), (2.0, "a"), (3.0, "b"), (4.0, "b")))
    table = Table("t", "T", "method", (Column("ECE", better="lower"),), rows, best_of="group")
    assert [row[0] for row in marks(table)] == [True, False, True, False]


def test_a_row_that_is_not_compared_is_never_the_best_and_the_note_says_so() -> None:
    rows = (Row("A", (Cell(3.0),)), Row("B", (Cell(2.0),)), Row("fewer images", (Cell(1.0),), compared=False))
    table = Table("t", "T", "method", (Column("ECE", better="lower"),), rows)
    assert [row[0] for row in marks(table)] == [False, True, False]
    assert notes(table)[0].endswith("Methods on fewer images are not ranked.")
    assert "fewer" not in notes(dataclasses.replace(table, rows=rows[:2]))[0]


def test_notes_name_a_row_once_if_all_of_it_has_the_note() -> None:
    one, full = "1 of 3 seeds", Cell(2.0)
    rows = (
        Row("A", (Cell(1.0, note=one), Cell(2.0, note=one), Cell(None))),
        Row("B", (Cell(1.0, note=one), full, full)),
        Row("C", (full, full, Cell(None, note="not run"))),
    )
    table = Table("t", "T", "method", tuple(map(Column, ("Acc", "ECE", "mCE"))), rows)
    assert notes(table)[-2:] == ["A; B, Acc: 1 of 3 seeds", "–: not run"]
    columns = (Column("Acc", "ten"), Column("ECE", "ten"), Column("Acc", "hundred"))
    row = Row("D", (Cell(1.0, note=one), Cell(1.0, note=one), full))
    assert notes(Table("t", "T", "method", columns, (rows[1], row)))[-1] == "B, ten, Acc; D, ten: 1 of 3 seeds"


def by_methods(best_of: Literal["row", "none"]) -> Table:
    """Methods in columns, of two benchmarks; the third column group has no best."""
    columns = (
        *(Column(name, group, "higher") for group in ("ten", "hundred") for name in ("A", "B", "C")),
        Column("energy"),
    )
    rows = (
        Row("1", tuple(map(Cell, (1.0, 3.0, 2.0, 90.0, 80.0, 70.0, 5.0)))),
        Row("2", tuple(map(Cell, (9.0, 8.0, None, 4.0, 4.0, 3.0, 6.0)))),
    )
    return Table("t", "T", "severity", columns, rows, best_of=best_of)


def test_marks_within_rows_and_column_groups() -> None:
    assert marks(by_methods("row")) == (
        (False, True, False, True, False, False, False),
        (True, False, False, True, True, False, False),  # two of three tie in the second group
    )
    assert {mark for row in marks(by_methods("none")) for mark in row} == {False}


def test_every_renderer_marks_within_rows_or_nowhere() -> None:
    row, none = by_methods("row"), by_methods("none")
    assert "| 1 | 1.00 | **3.00** | 2.00 | **90.00** | 80.00 | 70.00 | 5.00 |" in markdown(row)
    assert [item[2] for item in table_payload(row)["rows"]] == [".b.b...", "b..bb.."]
    assert "| **" not in markdown(none)
    assert [item[2] for item in table_payload(none)["rows"]] == ["......."] * 2
    styled = []
    for table in (row, none):
        console = Console(width=120, record=True, file=io.StringIO(), force_terminal=True)
        console.print(terminal(table, 120))
        text = console.export_text(styles=True)
        styled.append("\x1b[1m3.00" in text)
    assert styled == [True, False]


def paper_table() -> Table:
    columns = (
        Column("mCE %", "CIFAR-10-C", "lower"),
        Column("ECE %", "CIFAR-10-C", "lower"),
        Column("GFLOPs", digits=1),
    )
    rows = (
        Row("Source", (Cell(100.0, None, 100.0), Cell(10.0, 0.5, 10.18), Cell(131.5))),
        Row("BN & Adapt", (Cell(87.0, 0.25, 87.44), Cell(printed=4.85, note="not run: 100 % missing"), Cell()), "Norm"),
        Row("CreTTA", (Cell(71.0, 1.25, 71.25), Cell(4.0, 0.125, 4.15), Cell(527.4)), "Energy_based"),
    )
    return Table("main", "Errors & β", "method", columns, rows, ("Nine epochs only.",))


def test_markdown() -> None:
    expected = f"""\
**Errors \\& β**

| method | CIFAR-10-C · mCE % ↓ | CIFAR-10-C · ECE % ↓ | GFLOPs |
| --- | ---: | ---: | ---: |
| Source | 100.00 (100.00, +0.00) | 10.00 ± 0.50 (10.18, -0.18) | 131.5 |
| *Norm* |  |  |  |
| BN \\& Adapt | 87.00 ± 0.25 (87.44, -0.44) | – (4.85) | – |
| *Energy\\_based* |  |  |  |
| CreTTA | **71.00 ± 1.25** (71.25, -0.25) | **4.00 ± 0.12** (4.15, -0.15) | 527.4 |

In brackets: the paper's number, and the measured one less it.

{MEANING}

Nine epochs only.

–: not run: 100 % missing
"""
    assert markdown(paper_table()) == expected


def test_csv_is_tidy_and_keeps_all_digits() -> None:
    value = 0.1 + 0.2
    table = Table(
        "t",
        "T",
        "method",
        (Column("ECE, %", "group"), Column("x")),
        (Row('a "b"', (Cell(value, 0.25, 0.3), Cell(note="no\ndata")), "rows"),),
    )
    lines = list(DictReader(io.StringIO(csv(table), newline="")))
    assert lines == [
        {
            "row": 'a "b"',
            "group": "rows",
            "column_group": "group",
            "column": "ECE, %",
            "value": "0.30000000000000004",
            "deviation": "0.25",
            "printed": "0.3",
            "note": "",
            "mark": "",
        },
        {
            "row": 'a "b"',
            "group": "rows",
            "column_group": "",
            "column": "x",
            "value": "",
            "deviation": "",
            "printed": "",
            "note": "no\ndata",
            "mark": "",
        },
    ]


def shown(table: Table, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(terminal(table, width))
    return console.export_text(styles=False).splitlines()


def test_terminal_shows_the_paper_beside_the_measured() -> None:
    lines = [line.rstrip() for line in shown(paper_table())]
    assert lines[0] == "Errors & β"
    source = next(line for line in lines if "Source" in line)
    assert source.split() == ["Source", "100.00", "(100.00,", "+0.00)", "10.00", "±", "0.50", "(10.18,", "-0.18)"]
    missing = next(line for line in lines if "BN & Adapt" in line)
    assert missing.split()[-3:] == ["-0.44)", "–", "(4.85)"]
    assert "–: not run: 100 % missing" in lines
    assert "Nine epochs only." in lines
    # What does not fit comes below, with the labels again.
    assert sum("CreTTA" in line for line in lines) == 2
    assert lines.index("Norm") < next(index for index, line in enumerate(lines) if "BN & Adapt" in line)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_terminal_fits_however_wide_the_table(width: int) -> None:
    groups = ("CIFAR-10-C · severity 5", "CIFAR-10-C · average", "CIFAR-100-C · severity 5", "all")
    columns = tuple(Column(title, group, "lower") for group in groups for title in ("mCE %", "ECE %", "a longer one"))
    rows = tuple(
        Row(label, tuple(Cell(100.0 + index, 1.0, 99.0) for index in range(len(columns))))
        for label in ("source", "a method with a label longer than any terminal has room for, or nearly so")
    )
    table = Table("t", "T", "method", columns, rows, ("A note that is longer than a line of a terminal. " * 3,))
    lines = shown(table, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for index in range(len(columns)):
        assert f"{100 + index}.00" in text  # nothing is cut off
    for group in groups:
        assert group in text
    if width == 200:
        assert text.count("source") < shown(table, 60).__str__().count("source")


def test_terminal_marks_the_best_and_keeps_markup_as_text() -> None:
    table = Table(
        "t", "[bold]T", "m", (Column("x", better="higher"),), (Row("[red]a", (Cell(1.0),)), Row("b", (Cell(2.0),)))
    )
    console = Console(width=80, file=io.StringIO(), force_terminal=True, record=True, color_system="standard")
    console.print(terminal(table))
    text = console.export_text(styles=True)
    assert "\x1b[1m2.00\x1b[0m" in text
    assert "[red]a" in text
    assert "[bold]T" in text


def test_files(tmp_path: Path) -> None:
    paths = write_files([paper_table()], tmp_path)
    assert paths == [tmp_path / f"main{ending}" for ending in (".md", ".csv")]
    assert all("CreTTA" in path.read_text(encoding="utf-8") for path in paths)


def test_code_in_notes_of_markdown_is_not_escaped() -> None:
    table = dataclasses.replace(numbers(1.0), notes=("*not* `bn_adapt`, jpeg_compression; one ` alone",))
    assert r"\*not\* `bn_adapt`, jpeg\_compression; one \` alone" in markdown(table)
