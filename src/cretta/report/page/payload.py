"""What the page's scripts draw from, small enough for a thousand runs: columns, six digits, nothing said twice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from cretta.bench import BatchRow, Result
from cretta.metrics import Bins
from cretta.report.content import Cell, Column, Table
from cretta.report.groups import Group, Measure, by_setting
from cretta.report.ranking import heading, marks, notes, number, spread
from cretta.report.styles import Style
from cretta.report.summary import measures_of

POINTS = 1000
"""Of a curve; the batches of longer runs are taken several together."""
_MARKS = {"best": "b", "second": "s", "": "."}


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no end of it can be read in any text."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def short(value: float | None) -> float | int | None:
    """Six significant digits; None for what JSON has no number for."""
    if value is None or not math.isfinite(value):
        return None
    told = float(f"{value:.6g}")
    return int(told) if told.is_integer() and abs(told) < 1e15 else told


def table_payload(table: Table, *, folded: bool = False) -> dict[str, Any]:
    """A table of numbers; ``folded`` ones are built when they are opened."""
    rows = []
    for row, marked in zip(table.rows, marks(table), strict=True):
        cells = [_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
        rows.append([row.label, row.group, "".join(_MARKS[mark] for mark in marked), cells])
    columns = [{"title": heading(column), "group": column.group} for column in table.columns]
    told = {"name": table.name, "title": table.title, "first": table.first, "columns": columns, "rows": rows}
    return told | {"notes": notes(table), "folded": folded}


def runs_payload(groups: Sequence[Group]) -> dict[str, Any]:
    """The table of all runs: words first, then every measure."""
    several = len(by_setting(groups)) > 1
    measures = measures_of(groups)
    columns: list[dict[str, Any]] = [{"title": "shift", "text": True}, {"title": "seeds"}]
    columns += [{"title": heading(_column(measure))} for measure in measures]
    columns += [{"title": "data", "text": True}] if several else []
    rows = []
    for group in groups:
        told = [_cell(*each) for each in zip(group.cells(measures), map(_column, measures), strict=True)]
        data = [group.setting] if several else []
        rows.append([group.label, "", "", [group.shift, len(group.results), *told, *data]])
    return {
        "name": "runs",
        "title": "All runs, a row for those that differ in their seed only",
        "first": "method",
        "columns": columns,
        "rows": rows,
        "notes": ["Mean ± sample deviation over seeds."] if any(len(each.results) > 1 for each in groups) else [],
        "folded": False,
    }


def groups_payload(groups: Sequence[Group], looks: Mapping[str, Style]) -> dict[str, Any]:
    """Curves, bins and settings of every run."""
    names = _Names()
    base = groups[0].run if groups else {}
    provenances = _Names()

    def of_run(result: Result) -> dict[str, Any]:
        bins = Bins.sum(row.scores.bins for row in result.rows)
        return {
            "seed": result.run["seed"],
            "key": result.key,
            **_curves(result.rows, names),
            "bins": [bins.count, [short(value) for value in bins.confidence], bins.correct],
            "from": provenances.place(json.dumps(result.provenance, sort_keys=True)),
            "cost": {name: short(value) for name, value in result.cost.items()},
            "clean": short(result.clean_after),
        }

    told = [
        {
            "label": group.label,
            "method": group.method,
            "setting": names.place(group.setting),
            "shift": names.place(group.shift),
            "run": {name: value for name, value in group.run.items() if base.get(name) != value},
            "runs": [of_run(result) for result in group.results],
        }
        for group in groups
    ]
    return {
        "groups": told,
        "names": names.all,
        "base": base,
        "provenances": [json.loads(text) for text in provenances.all],
        "styles": {
            name: {"color": each.color, "dash": each.dash, "marker": each.marker, "hollow": each.hollow}
            for name, each in looks.items()
        },
    }


class _Names:
    """Texts that occur often, by their place in a list."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, name: str) -> int:
        return self._places.setdefault(name, len(self._places))

    @property
    def all(self) -> list[str]:
        return list(self._places)


def _column(measure: Measure) -> Column:
    return Column(measure.title, better=measure.better, digits=measure.digits)


def _cell(cell: Cell, column: Column) -> Any:
    """None, or the value to sort by and what to show: mean, deviation, the paper's number, the difference."""
    if cell.value is None and cell.printed is None:
        return None
    texts = [
        "" if cell.value is None else number(cell.value, column.digits),
        spread(cell, column),
        "" if cell.printed is None else number(cell.printed, column.digits),
        "" if cell.difference is None else number(cell.difference, column.digits, signed=True),
    ]
    while not texts[-1]:
        texts.pop()
    return [short(cell.value), *texts]


def _curves(rows: Sequence[BatchRow], names: _Names) -> dict[str, Any]:
    """Columns over batches, or blocks of them; those without any number are left out."""
    size = math.ceil(len(rows) / POINTS)
    blocks = [rows[start : start + size] for start in range(0, len(rows), size)]
    images = [sum(row.images for row in block) for block in blocks]
    per_block = [Bins.sum(row.scores.bins for row in block) for block in blocks]
    columns: dict[str, list[float | int | None]] = {
        "right": [sum(row.right for row in block) for block in blocks],
        "ece": [short(100 * bins.calibration_error) for bins in per_block],
        "running": [short(100 * bins.calibration_error) for bins in accumulate(per_block)],
        "energy": [short(_mean(block, "energy")) for block in blocks],
        "source": [short(_mean(block, "source_energy")) for block in blocks],
        "weight": [short(_mean(block, "weight")) for block in blocks],
        "loss": [short(_mean(block, "loss")) for block in blocks],
    }
    told: dict[str, Any] = {name: values for name, values in columns.items() if any(v is not None for v in values)}
    told["images"] = images[0] if len(set(images)) == 1 else images
    told["batches"] = len(rows)
    if size > 1:
        told["block"] = size
    told["domains"] = [
        [names.place(domain), len(list(part))] for domain, part in groupby(block[0].domain for block in blocks)
    ]
    skipped = [[place, row.reason] for place, block in enumerate(blocks) for row in block if row.skipped]
    return told | ({"skipped": skipped} if skipped else {})


def _mean(block: Sequence[BatchRow], name: str) -> float | None:
    """Over the images of batches that have it."""
    told = [(getattr(row, name), row.images) for row in block if getattr(row, name) is not None]
    return math.fsum(value * images for value, images in told) / sum(images for _, images in told) if told else None
