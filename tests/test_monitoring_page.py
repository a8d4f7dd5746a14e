"""The tables of docs/monitoring.md are those of the results beside the benchmarks."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_monitoring.py"))


def test_the_tables_are_what_the_results_say() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert SCRIPT["written"](page) == page, "run scripts/write_monitoring.py"


def test_a_missing_part_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected the comment <!-- generated: harm -->"):
        SCRIPT["written"]("a page without tables")


def test_harm_and_forgetting_by_hand() -> None:
    row = {"source": 0.85, "adapted": 0.83, "clean before": 0.9, "clean after": 0.89}
    assert not SCRIPT["harmed"](row)
    assert not SCRIPT["forgets"](row)
    assert SCRIPT["harmed"]({**row, "adapted": 0.829})
    assert SCRIPT["forgets"]({**row, "clean after": 0.88})
