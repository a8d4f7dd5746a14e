"""Read the tables of the paper's LaTeX source: environments, labels, rows, cells, numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("tables.tex")

_FLOAT = re.compile(r"\\begin\{(table|figure)\*?\}(.*?)\\end\{\1\*?\}", re.DOTALL)
_RULES = re.compile(r"\\(toprule|midrule|bottomrule|cmidrule(\([^)]*\))?\{[^}]*\}|rowcolor(\[[^]]*\])?\{[^}]*\})")
_WRAPPED = re.compile(r"\\(?:textbf|textsc|underline|emph|textit|cellcolor\{white\})\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Float:
    """A table or figure."""

    kind: str
    labels: tuple[str, ...]
    body: str


def floats() -> list[Float]:
    """Return all of them in order."""
    return [
        Float(match[1], tuple(re.findall(r"\\label\{([^}]*)\}", match[2])), match[2])
        for match in _FLOAT.finditer(SOURCE.read_text("utf-8"))
    ]


def by_label() -> dict[str, Float]:
    return {label: table for table in floats() for label in table.labels}


def rows(body: str) -> dict[str, tuple[float, ...]]:
    """Return the numbers of each row by its label; a label that occurs a second time is "… again".

    Headings, which hold no number after their first cell, are left out. A first cell that spans rows counts for all.
    """
    tabular = re.search(r"\\midrule\s*\\midrule(.*?)\\bottomrule", body, re.DOTALL)
    assert tabular, "no table"
    numbers_of: dict[str, tuple[float, ...]] = {}
    spanning = ""
    for line in re.split(r"\\\\", tabular[1]):
        cells = [_plain(cell) for cell in _RULES.sub("", line).split("&")]
        if len(cells) == 1 or "\\multicolumn" in cells[0]:
            continue
        if spans := re.match(r"\\multirow\{\d+\}\{\*\}\{(\w+)\}", cells[0]):
            spanning = spans[1]
            cells[0] = spanning
        elif spanning and cells[0] == "":
            cells[0] = spanning
        if spanning:
            cells = [f"{cells[0]} {cells[1]}", *cells[2:]]
        elif cells[0] == "":
            cells = cells[1:]
        numbers = tuple(float(number) for cell in cells[1:] for number in _NUMBER.findall(cell))
        if numbers:
            label = cells[0] if cells[0] not in numbers_of else f"{cells[0]} again"
            assert label not in numbers_of
            numbers_of[label] = numbers
    return numbers_of


def _plain(cell: str) -> str:
    cell = cell.replace("\\cellcolor{white}", "").replace("\\%", "%").replace("$", "").replace("\\Delta", "Δ")
    while (changed := _WRAPPED.sub(r"\1", cell)) != cell:
        cell = changed
    return " ".join(cell.replace("--", "–").split())
