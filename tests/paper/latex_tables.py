"""Reads the tables of the paper's source: environments, labels, rows, cells, numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2].parent / "shared" / "paper.tex"

needs_paper = pytest.mark.skipif(not SOURCE.is_file(), reason=f"the paper's source is not at {SOURCE}")

_FLOAT = re.compile(r"\\begin\{(table|figure)\*?\}(.*?)\\end\{\1\*?\}", re.DOTALL)
_RULES = re.compile(r"\\(toprule|midrule|bottomrule|cmidrule(\([^)]*\))?\{[^}]*\}|rowcolor(\[[^]]*\])?\{[^}]*\})")
_WRAPPED = re.compile(r"\\(?:textbf|textsc|underline|emph|textit|cellcolor\{white\})\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Float:
    """A table or figure."""

    kind: str
    number: int
    labels: tuple[str, ...]
    body: str

    @property
    def where(self) -> str:
        return f"{self.kind.capitalize()} {self.number}"


def floats() -> list[Float]:
    """All of them in order, without what is commented out."""
    text = "\n".join(line for line in SOURCE.read_text("utf-8").splitlines() if not line.lstrip().startswith("%"))
    counts = {"table": 0, "figure": 0}
    found = []
    for match in _FLOAT.finditer(text):
        kind, body = match[1], match[2]
        counts[kind] += 1
        found.append(Float(kind, counts[kind], tuple(re.findall(r"\\label\{([^}]*)\}", body)), body))
    return found


def by_label() -> dict[str, Float]:
    return {label: each for each in floats() for label in each.labels}


def rows(body: str) -> dict[str, tuple[float, ...]]:
    """The numbers of each row under its label, as they stand; a label met again is "… again".

    Headings, which hold no number after their first cell, are left out. A first cell that spans rows counts for all.
    """
    tabular = re.search(r"\\midrule\s*\\midrule(.*?)\\bottomrule", body, re.DOTALL)
    assert tabular, "no table"
    found: dict[str, tuple[float, ...]] = {}
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
            label = cells[0] if cells[0] not in found else f"{cells[0]} again"
            assert label not in found
            found[label] = numbers
    return found


def _plain(cell: str) -> str:
    cell = cell.replace("\\cellcolor{white}", "").replace("\\%", "%").replace("$", "").replace("\\Delta", "Δ")
    while (changed := _WRAPPED.sub(r"\1", cell)) != cell:
        cell = changed
    return " ".join(cell.split())
