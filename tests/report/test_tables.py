from __future__ import annotations

import io

import torch
from rich.console import Console

from cretta.measure import Trace
from cretta.report.tables import comparison


def trace(right: int, confidence: float, seconds: float) -> Trace:
    """Ten two-class predictions of the given confidence, so many of them right."""
    logit = torch.logit(torch.tensor(confidence))
    logits = torch.stack([logit.expand(10), torch.zeros(10)], dim=1)
    labels = torch.tensor([0] * right + [1] * (10 - right))
    made = Trace()
    made.update(logits, labels, seconds)
    return made


def test_table_shows_the_measured_numbers_and_marks_the_best() -> None:
    # Confidence 0.8: seven right of ten is an ECE of 10 %, nine right also 10 %, eight right 0 %.
    table = comparison({"fog": {"one": trace(7, 0.8, 1.0), "two": trace(8, 0.8, 0.5)}}, "title")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    lines = console.export_text(styles=False).splitlines()
    one = next(line for line in lines if "one" in line)
    two = next(line for line in lines if "two" in line)
    # E = -log(0.8/0.2 + 1) = -log 5 = -1.609
    assert [cell.strip() for cell in one.strip("│").split("│")] == ["fog", "one", "70.0", "10.0", "-1.61", "10"]
    assert [cell.strip() for cell in two.strip("│").split("│")] == ["", "two", "80.0", "0.0", "-1.61", "20"]
    bold = [[str(cell.style) for cell in column.cells] for column in table.columns[2:4]]  # type: ignore[union-attr]
    assert bold == [["", "bold"], ["", "bold"]]
