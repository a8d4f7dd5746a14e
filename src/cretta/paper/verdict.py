"""Whether what the paper claims of an item holds in results measured here, by a rule and not by eye."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from cretta.paper.family import FEWER
from cretta.paper.item import Item
from cretta.paper.printed import paper_data
from cretta.report.content import Better, Cell, Chart, Table
from cretta.report.spread import margin, on_same_seeds
from cretta.report.styles import PRINTED

RULE = """\
A claim is that one row is better than others, or as good as them within a number of points. It holds in a column if the
measured difference to every other row has the claimed sign and is larger than its margin, or if difference and margin
together are within the points claimed. The difference is that of the claim's row less its strongest rival, over the
seeds that both have, the margin that of a t-test at 5 %: of tables over batches and seeds, of lines over their points,
of single batches over corruptions. Where there are too few of them the margin is unknown, and nothing is decided.
*Yes*: it holds in all measured columns, and all the other rows are complete on the same images; *no*: it holds in none,
and in some the opposite is significant; *undecided*: no difference is significant; *partly*: all else."""
ZERO = "0"
"""In place of another row: the number is compared with zero."""


def _change(line: Sequence[float]) -> Cell:
    half = len(line) // 2
    changes = tuple(after - before for before, after in zip(line[:half], line[len(line) - half :], strict=True))
    return Cell(fmean(changes) if half else math.nan, blocks=changes)


CURVES: dict[str, Callable[[Sequence[float]], Cell]] = {
    "mean": lambda line: Cell(fmean(line), blocks=tuple(line)),
    "last": lambda line: Cell(line[-1], blocks=(line[-1],)),  # one value has no spread
    "change": _change,
    "range": lambda line: Cell(max(line) - min(line)),
}
"""One number of a line in a chart; the change is that from the first half to the second."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says of an item: the row ``row`` is better than others."""

    text: str
    row: str
    than: tuple[str, ...] = ()
    """All others by default, but not those on fewer images; rows that are named here are compared anyway."""
    excluding: tuple[str, ...] = ()
    """Of all others, those that the claim is not about."""
    at: str = ""
    """A pattern of the columns it is about."""
    within: float | None = None
    """It is as good as the others, up to so many points, rather than better."""
    factor: float = 1.0
    """It is better even when multiplied by this."""
    better: Better = "neither"
    """Where the column does not say it, or the claim is the opposite."""
    curve: Literal["mean", "last", "change", "range"] = "mean"
    """What of a line in a chart is compared."""
    down: bool = False
    """Compare rows of a column although methods are columns."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A claim in one column: the row's cell and that of its strongest rival, in the paper and as measured."""

    where: str
    printed: tuple[float, float, str] | None
    """The row's number, the rival's, and the rival."""
    row: Cell
    rival: Cell
    name: str
    values: tuple[float, float]
    """The measured numbers of both over the seeds that both have: what is compared."""
    margin: float
    holds: bool
    reversed: bool
    """Whether the opposite is significant."""
    printed_holds: bool
    """Whether the paper's own numbers show it; true where it prints none."""
    not_run: tuple[str, ...]
    """Other rows that the claim is about, which are not complete on the same images."""


def claims(item: Item) -> list[Claim]:
    """Return what the paper claims of an item, as paper.toml has it."""
    records: list[dict[str, Any]] = paper_data()["items"][item.name].get("claims", [])
    return [
        Claim(**{**record, "than": tuple(record.get("than", ())), "excluding": tuple(record.get("excluding", ()))})
        for record in records
    ]


def verdict(findings: Sequence[Finding]) -> str:
    """Return yes, partly, no or undecided, or that nothing was measured."""
    if not findings:
        return "not run yet"
    holding = sum(finding.holds for finding in findings)
    complete = holding == len(findings) and not any(finding.not_run for finding in findings)
    if holding:
        return "yes" if complete else "partly"
    return "no" if any(finding.reversed for finding in findings) else "undecided"


def judge(claim: Claim, shown: Sequence[Table | Chart]) -> list[Finding]:
    """Return what was measured of a claim, column by column."""
    findings = []
    for where, better, cells in _columns(claim, shown):
        row = cells[claim.row]
        names = claim.than or tuple(name for name in cells if name not in (claim.row, *claim.excluding))
        rivals = {name: _zero(row) if name == ZERO else cells.get(name, Cell()) for name in names}
        finding = _compare(claim, where, better if claim.better == "neither" else claim.better, row, rivals)
        if finding is not None:
            findings.append(finding)
    return findings


def column_count(claim: Claim, shown: Sequence[Table | Chart]) -> int:
    """Return in how many columns a claim can be judged once all is measured."""
    # Lines of a chart that were not measured are not in it.
    every = _all_columns(claim, shown)
    return sum(
        bool(re.search(claim.at, where)) and (isinstance(part, Chart) or claim.row in cells)
        for part, where, _, cells in every
    )


def _zero(row: Cell) -> Cell:
    """Return an exact zero to compare a number with."""
    return Cell(0.0, printed=0.0, blocks=None if row.blocks is None else (0.0,) * len(row.blocks))


def _compare(claim: Claim, where: str, better: Better, row: Cell, rivals: Mapping[str, Cell]) -> Finding | None:
    measured = {name: cell for name, cell in rivals.items() if cell.value is not None}
    if row.value is None or not measured:
        return None

    def lead(a: float, b: float) -> float:
        """Return by how much the row is better, or, the more negative the worse, how far from the rival."""
        if claim.within is not None:
            return claim.within - abs(a - b)
        return (b - a * claim.factor) * (1 if better == "lower" else -1)

    pairs = {name: on_same_seeds(row, cell) for name, cell in measured.items()}
    leads = {name: lead(*values) for name, values in pairs.items()}
    margins = {name: margin(row, cell) for name, cell in measured.items()}
    # Of claims within points, the rival that decides is the one with the least left of them beside its margin.
    name = min(leads, key=lambda other: leads[other] - (margins[other] if claim.within is not None else 0.0))
    printed = {other: cell.printed for other, cell in rivals.items() if cell.printed is not None}
    before, printed_holds = None, True
    if row.printed is not None and printed:
        rival = min(printed, key=lambda other: lead(row.printed or 0.0, printed[other]))
        before = (row.printed, printed[rival], rival)
        shown = lead(*before[:2])
        printed_holds = shown >= 0 if claim.within is not None else shown > 0
    return Finding(
        where=where,
        printed=before,
        row=row,
        rival=measured[name],
        name=name,
        values=pairs[name],
        margin=margins[name],
        holds=all(leads[other] >= margins[other] and (claim.within is not None or leads[other] > 0) for other in leads),
        reversed=any(-leads[other] > margins[other] for other in leads),
        printed_holds=printed_holds,
        not_run=tuple(other for other in rivals if other not in measured),
    )


def _columns(claim: Claim, shown: Sequence[Table | Chart]) -> Iterator[tuple[str, Better, dict[str, Cell]]]:
    """Yield the cells that a claim compares by label, with where they are and what is better."""
    for _, where, better, cells in _all_columns(claim, shown):
        if re.search(claim.at, where) and claim.row in cells:
            yield where, better, cells


def _of_same_images(label: str, cell: Cell, claim: Claim, *, compared: bool) -> Cell:
    """Return a cell; without its number if that is of fewer images, unless the claim names the row or line."""
    named = label.removesuffix(FEWER) in (claim.row, *claim.than)
    return cell if compared or named else dataclasses.replace(cell, value=None)


def _all_columns(
    claim: Claim, shown: Sequence[Table | Chart]
) -> Iterator[tuple[Table | Chart, str, Better, dict[str, Cell]]]:
    """Yield the cells that can be compared with each other by label, with where they are and what is better."""
    for part in shown:
        title = f"{part.title}: " if len(shown) > 1 else ""
        if isinstance(part, Chart):
            for panel in part.panels:
                lines = {line.label: CURVES[claim.curve](line.y) for line in panel.series}
                arrow: Better = "higher" if "↑" in panel.y else "lower" if "↓" in panel.y else "neither"
                printed = {
                    label.removesuffix(PRINTED): line.value for label, line in lines.items() if label.endswith(PRINTED)
                }
                cells = {}
                for label, line in lines.items():
                    if not label.endswith(PRINTED):
                        name = label.removesuffix(FEWER)
                        cell = _of_same_images(label, line, claim, compared=name == label)
                        cells[name] = dataclasses.replace(cell, printed=printed.get(name))
                yield part, f"{title}{panel.title}, {panel.y}", arrow, cells
        elif part.best_of in ("row", "none") and not claim.down:
            for row in part.rows:
                groups: dict[tuple[str, Better], dict[str, Cell]] = {}
                for column, cell in zip(part.columns, row.cells, strict=True):
                    groups.setdefault((column.group, column.better), {})[column.title] = cell
                for (group, better), cells in groups.items():
                    yield part, f"{title}{group}, {row.label}", better, cells
        else:
            for index, column in enumerate(part.columns):
                cells = {
                    row.label.removesuffix(FEWER): _of_same_images(
                        row.label, row.cells[index], claim, compared=row.compared
                    )
                    for row in part.rows
                }
                yield part, title + ", ".join(filter(None, (column.group, column.title))), column.better, cells
