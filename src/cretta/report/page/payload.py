"""The data that the page's scripts draw, small enough for a thousand runs: columns, six digits, nothing twice."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from cretta.bench import BatchRow, Result
from cretta.metrics import Bins
from cretta.report.content import Cell, Column, Table
from cretta.report.groups import Group, by
from cretta.report.ranking import cell_text, heading, marks, notes
from cretta.report.styles import Style
from cretta.report.summary import metrics_of

POINTS = 1000
"""Points of a curve at most; several batches of a longer run make one point."""


def script_json(value: Any) -> str:
    """Return JSON that cannot end the script element it stands in, whatever its texts are."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def short(value: float | None) -> float | int | None:
    """Return six significant digits; None for values that JSON cannot represent."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def table_payload(table: Table, *, folded: bool = False) -> dict[str, Any]:
    """Return a table of numbers; a ``folded`` one is built when it is opened."""
    rows = []
    for row, row_marks in zip(table.rows, marks(table), strict=True):
        cells = [_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
        rows.append([row.label, row.group, "".join("b" if best else "." for best in row_marks), cells])
    return {
        "name": table.name,
        "title": table.title,
        "first": table.first,
        "columns": [{"title": heading(column), "group": column.group} for column in table.columns],
        "rows": rows,
        "notes": notes(table),
        "folded": folded,
    }


def runs_payload(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the table of all runs: words first, then every metric."""
    several = len(by("setting", groups)) > 1
    metrics = metrics_of(groups)
    columns: list[dict[str, Any]] = [{"title": "shift", "text": True}, {"title": "seeds"}]
    columns += [{"title": heading(metric.column)} for metric in metrics]
    columns += [{"title": "data", "text": True}] if several else []
    rows = []
    for group in groups:
        pairs = zip(group.cells(metrics), metrics, strict=True)
        numbers = [_cell(cell, metric.column) for cell, metric in pairs]
        data = [group.setting] if several else []
        rows.append([group.label, "", "", [group.shift, len(group.results), *numbers, *data]])
    seeds = any(len(group.results) > 1 for group in groups)
    return {
        "name": "runs",
        "title": "All runs, a row for those that differ in their seed only",
        "first": "method",
        "columns": columns,
        "rows": rows,
        "notes": ["Mean ± sample deviation over seeds."] if seeds else [],
        "folded": False,
    }


def _described(group: Group) -> dict[str, Any]:
    """Return what the runs of a group have in common."""
    return {name: value for name, value in group.run.describe().items() if name != "seed"}


def groups_payload(groups: Sequence[Group], method_styles: Mapping[str, Style]) -> dict[str, Any]:
    """Return curves, bins and settings of every run."""
    names: dict[str, int] = {}
    provenances: dict[str, int] = {}
    base = _described(groups[0]) if groups else {}

    def run_payload(result: Result) -> dict[str, Any]:
        bins = Bins.sum(row.scores.bins for row in result.rows)
        return {
            "seed": result.run.seed,
            "key": result.key,
            **_curves(result.rows, names),
            "bins": [bins.count, [short(value) for value in bins.confidence], bins.correct],
            "from": _index(provenances, json.dumps(result.provenance, sort_keys=True)),
            "cost": {name: short(value) for name, value in result.cost.items()},
        }

    return {
        "groups": [
            {
                "label": group.label,
                "method": group.method,
                "setting": _index(names, group.setting),
                "shift": _index(names, group.shift),
                "run": {name: value for name, value in _described(group).items() if base.get(name) != value},
                "runs": [run_payload(result) for result in group.results],
            }
            for group in groups
        ],
        "names": list(names),
        "base": base,
        "provenances": [json.loads(text) for text in provenances],
        "styles": {name: dataclasses.asdict(style) for name, style in method_styles.items()},
    }


def _index(texts: dict[str, int], text: str) -> int:
    """Return the index of a text that occurs often in a list of such texts."""
    return texts.setdefault(text, len(texts))


def _cell(cell: Cell, column: Column) -> Any:
    """Return None, or the value to sort by and the texts to show: mean, deviation, the paper's number, difference."""
    texts = list(cell_text(cell, column))
    while texts and not texts[-1]:
        texts.pop()
    return [short(cell.value), *texts] if texts else None


def _curves(rows: Sequence[BatchRow], names: dict[str, int]) -> dict[str, Any]:
    """Return columns over batches, or blocks of them; those without any number are left out."""
    size = math.ceil(len(rows) / POINTS)
    blocks = [rows[start : start + size] for start in range(0, len(rows), size)]
    images = [sum(row.images for row in block) for block in blocks]
    bins = [Bins.sum(row.scores.bins for row in block) for block in blocks]
    columns: dict[str, list[float | int | None]] = {
        "right": [sum(part.correct) for part in bins],
        "ece": [short(100 * part.calibration_error) for part in bins],
        "running": [short(100 * total.calibration_error) for total in accumulate(bins)],
        "energy": [short(_mean(block, "energy")) for block in blocks],
        "source": [short(_mean(block, "source_energy")) for block in blocks],
        "weight": [short(_mean(block, "weight")) for block in blocks],
        "loss": [short(_mean(block, "loss")) for block in blocks],
    }
    curves: dict[str, Any] = {name: column for name, column in columns.items() if any(v is not None for v in column)}
    curves["images"] = images[0] if len(set(images)) == 1 else images
    curves["batches"] = len(rows)
    if size > 1:
        curves["block"] = size
    by_domain = groupby(block[0].domain for block in blocks)
    curves["domains"] = [[_index(names, domain), len(list(part))] for domain, part in by_domain]
    skipped = [[index, row.reason] for index, block in enumerate(blocks) for row in block if row.skipped]
    return curves | ({"skipped": skipped} if skipped else {})


def _mean(block: Sequence[BatchRow], name: str) -> float | None:
    """Return the mean over the images of batches that have it."""
    known = [(getattr(row, name), row.images) for row in block if getattr(row, name) is not None]
    return math.fsum(value * images for value, images in known) / sum(images for _, images in known) if known else None
