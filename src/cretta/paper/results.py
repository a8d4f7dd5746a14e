"""Finished runs as evidence: one small file of them, from which items are shown without computing anything.

A run is known by its description here, not by the fingerprints of data and weights, which need not be present.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cretta.bench import Result, Run, RunContext, Store
from cretta.bench.result import rows_of, table_of
from cretta.errors import StateError
from cretta.paper.family import is_mild
from cretta.paper.item import Item
from cretta.paper.measured import measured
from cretta.paper.scale import MAIN, SCALES, Scale
from cretta.report.content import Chart, Table
from cretta.report.groups import METRICS
from cretta.report.styles import PRINTED
from cretta.storage import atomic_write, require_lock
from cretta.storage.files import make_folder

SUMMARY = "runs.parquet"
"""A row for each run: key, description, cost and provenance as JSON, and the rows of its batches."""
READABLE = "runs.csv"
"""A line for each run: description, scores, cost, fingerprints, and the command that computes it."""


def portable(run: Run) -> Run:
    """Return the run as it is called on every machine: a network that is a file by its name, without the folder."""
    return dataclasses.replace(run, model=_file_name(run.model))


def portable_scale(scale: Scale, results: Mapping[Run, Result]) -> Scale:
    """Return the scale whose runs are portable; a family has its fallback where only that has results."""
    data = {run.data for run in results}
    families = {}
    for name, family in scale.families.items():
        other = family.fallback in data and family.data not in data
        chosen = family.fallback if other else family.data
        families[name] = dataclasses.replace(family, data=chosen, model=_file_name(family.model))
    return dataclasses.replace(scale, families=families)


def best_scale(
    item: Item, results: Mapping[Run, Result], scales: Iterable[Scale] = tuple(SCALES.values())
) -> Scale | None:
    """Return the portable scale whose results say most about an item; None without results.

    Something is compared at it, it runs the methods of which there are results, and it has the largest share of the
    runs that count most: the main methods and their variants at severity 5 of the first dataset. Where several have all
    of them, it is the one with results of most images, or with the larger share of its runs. Of scales that have the
    same runs it is the smallest.
    """
    ordered = [portable_scale(scale, results) for scale in scales]  # the largest first
    plans = {item.plan(chosen): chosen for chosen in ordered}
    methods = {run.method for plan in plans for run in plan if run in results}
    ranks: dict[tuple[bool, int, float, int, float], Scale] = {}
    for plan, chosen in plans.items():
        first = [run for run in plan if _counts_most(run) and run.data == plan[0].data] or plan
        share = sum(run in results for run in first) / len(first)
        done = [results[run] for run in plan if run in results]
        if done:
            images = sum(result.scores.images for result in done)
            visible = any(_compares(part) for part in map(measured, item.show(results, chosen)))
            covered = len(methods & {run.method for run in plan})
            ranks.setdefault((visible, covered, share, images, len(done) / len(plan)), chosen)
    return ranks[max(ranks)] if ranks else None


def _compares(part: Table | Chart | None) -> bool:
    """Return whether at least two rows, or two lines in all panels, were measured."""
    if isinstance(part, Chart):
        return sum(not line.label.endswith(PRINTED) for panel in part.panels for line in panel.series) > 1
    return part is not None and len(part.rows) > 1


def _counts_most(run: Run) -> bool:
    return run.method in MAIN and not run.seed and not is_mild(run.domains)


def read_results(folder: Path) -> dict[Run, Result]:
    """Return the results of a summary, or of a store, by their portable run."""
    summary = folder / SUMMARY
    stored = _read(summary) if summary.is_file() else list(Store(folder)) if folder.is_dir() else []
    if not stored:
        raise StateError(f"no results in {folder}: give a folder that `cretta reproduce` wrote, with --store.")
    results: dict[Run, Result] = {}
    for result in stored:
        run = portable(result.run)
        if run in results:
            raise StateError(
                f"{folder} has two results of the same run with other data or weights, {results[run].key} and "
                f"{result.key}: remove the outdated one."
            )
        results[run] = dataclasses.replace(result, run=run)
    return results


def copy_results(folder: Path, runs: Iterable[Run], store: Store, context: RunContext) -> tuple[int, int]:
    """Copy the results of runs from the summary of a folder into a store that lacks them, with their provenance.

    Return how many were copied, and how many have results of other data or weights, or of another version of runs:
    these are not used.
    """
    summary = read_results(folder) if (folder / SUMMARY).is_file() else {}
    copied = outdated = 0
    for run in runs:
        result = summary.get(portable(run))
        if result is None:
            continue
        if result.key != context.key(run):
            outdated += 1
        elif store.get(result.key) is None:
            store.put(dataclasses.replace(result, run=run))
            copied += 1
    return copied, outdated


def write_summary(results: Mapping[Run, Result], commands: Mapping[Run, str], folder: Path) -> int:
    """Write results into the summary of a folder, over those that it has; return the bytes of the Parquet file."""
    make_folder(folder)
    with require_lock(folder / "lock", wait=True):  # commands that export into the same folder take turns
        merged = read_results(folder) if (folder / SUMMARY).is_file() else {}
        for run, result in results.items():
            provenance = {"command": commands[run], **result.provenance}  # of a summary, the first command
            merged[portable(run)] = dataclasses.replace(result, run=portable(run), provenance=provenance)
        ordered = sorted(merged.values(), key=lambda result: _text(result.run.describe()))
        batches = [table_of(result.rows).to_struct_array() for result in ordered]
        columns: dict[str, Any] = {
            "key": [result.key for result in ordered],
            **{name: [_text(_fields(result)[name]) for result in ordered] for name in ("run", "cost", "provenance")},
            "rows": [batch.to_pylist() for batch in batches],
        }
        types = [*(pa.string() for _ in range(4)), pa.list_(batches[0].type)]
        with atomic_write(folder / SUMMARY) as temporary:
            table = pa.table(columns, pa.schema(list(zip(columns, types, strict=True))))
            pq.write_table(table, temporary, compression="zstd", use_dictionary=False, write_statistics=False)
        with atomic_write(folder / READABLE) as temporary, temporary.open("w", newline="") as file:
            lines = [_line(result) for result in ordered]
            writer = csv.DictWriter(file, lines[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
        return (folder / SUMMARY).stat().st_size


def _read(path: Path) -> list[Result]:
    results = []
    try:
        table = pq.read_table(path)
        for index in range(len(table)):
            key, run, cost, provenance = (table[name][index].as_py() for name in table.column_names[:4])
            rows = rows_of(pa.Table.from_struct_array(table["rows"][index].values))
            description = Run.from_description(json.loads(run))
            results.append(Result(key, description, rows, json.loads(cost), json.loads(provenance)))
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise StateError(
            f"{path} cannot be read ({reason}): it is damaged, or of another version of cretta. "
            "Get it again from version control, or choose another folder."
        ) from error
    return results


def _fields(result: Result) -> dict[str, Any]:
    return {"run": result.run.describe(), "cost": result.cost, "provenance": result.provenance}


def _line(result: Result) -> dict[str, object]:
    described = {k: _text(v) if isinstance(v, dict | list) else v for k, v in result.run.describe().items()}
    measured = {metric.title: metric.value(result) for metric in METRICS}
    origin = {name: _text(result.provenance.get(name)) for name in ("materials", "versions")}
    named = {name: result.provenance.get(name) for name in ("commit", "command")}
    return {**described, "images seen": result.scores.images, **measured, **origin, **named, "key": result.key}


def _file_name(model: str) -> str:
    return PurePath(model).name if model.endswith(".safetensors") else model


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
