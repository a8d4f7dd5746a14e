"""The tables and charts that follow from results, whatever was run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cretta.report.content import Cell, Chart, Panel, Row, Series, Table, cell
from cretta.report.groups import ACCURACY, CALIBRATION, METRICS, SKIPPED, Group, Metric, by


def summary_tables(groups: Sequence[Group]) -> list[Table]:
    """Return for each setting the methods by metrics, over all its shifts and, where there are several, by shift."""
    settings = by("setting", groups)
    tables = []
    for number, (setting, members) in enumerate(settings.items(), start=1):
        suffix = f"-{number}" if len(settings) > 1 else ""
        metrics, shifts = metrics_of(members), list(by("shift", members))
        columns, notes = tuple(metric.column for metric in metrics), (_seeds_note(members),)
        overall = tuple(
            Row(label, tuple(averaged(same_label, metric, shifts) for metric in metrics))
            for label, same_label in by("label", members).items()
        )
        title = f"{setting}: {over(members)}"
        tables.append(Table(f"summary{suffix}", title, "method", columns, overall, notes))
        if rows := _rows_by_shift(members, metrics):
            title = f"{setting}: by shift"
            tables.append(Table(f"shifts{suffix}", title, "method", columns, rows, notes, best_of="group"))
    return tables


def summary_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return for each setting with several methods the accuracy against the calibration error."""
    settings = by("setting", groups)
    charts = []
    for number, (setting, members) in enumerate(settings.items(), start=1):
        series, shifts = [], list(by("shift", members))
        for label, same_label in by("label", members).items():
            x, y = (averaged(same_label, metric, shifts) for metric in (ACCURACY, CALIBRATION))
            if x.value is not None and y.value is not None:
                series.append(Series(label, (x.value,), (y.value,)))
        if len(series) > 1:
            x_title, y_title = "accuracy (%), more is better", "ECE (%), less is better"
            panel = Panel(over(members), x_title, y_title, "scatter", tuple(series))
            charts.append(Chart(f"accuracy-ece{f'-{number}' if len(settings) > 1 else ''}", setting, (panel,)))
    return charts


def averaged(groups: Sequence[Group], metric: Metric, shifts: Sequence[str]) -> Cell:
    """Return the mean over all shifts for each seed, then mean and deviation of those; missing where a shift is."""
    by_shift = {group.shift: group.values(metric) for group in groups}
    present = [shift for shift in shifts if by_shift.get(shift)]
    if not present:
        return Cell()
    if len(present) < len(shifts):
        return Cell(note=f"run on {len(present)} of {len(shifts)} shifts")
    seeds = set.intersection(*(set(by_shift[shift]) for shift in shifts))
    if not seeds:
        return Cell(note="no seed was run on all shifts")
    values = {seed: math.fsum(by_shift[shift][seed] for shift in shifts) / len(shifts) for seed in sorted(seeds)}
    # Shorter streams of some shifts have fewer blocks: then the mean has none.
    blocks = [group.blocks(metric) for group in groups]
    same = blocks if len(set(map(len, blocks))) == 1 else [()]
    return cell(values, blocks=tuple(math.fsum(block) / len(block) for block in zip(*same, strict=True)))


def metrics_of(groups: Sequence[Group]) -> list[Metric]:
    """Return the metrics that any of the groups has; skipped batches only where there were some."""
    metrics = []
    for metric in METRICS:
        values = [value for group in groups for value in group.values(metric).values()]
        if any(values) or (values and metric is not SKIPPED):
            metrics.append(metric)
    return metrics


def _rows_by_shift(groups: Sequence[Group], metrics: Sequence[Metric]) -> tuple[Row, ...]:
    """Return a row for each method and shift, or part of a stream; none where there is only one."""
    rows = []
    by_shift = by("shift", groups)
    for shift, members in by_shift.items():
        parts = list(dict.fromkeys(part for group in members for part in group.parts))
        if not parts:
            rows += [Row(group.label, group.cells(metrics), shift) for group in members]
        for part in parts:
            heading = part if len(by_shift) == 1 else f"{shift}: {part}"
            present = [group for group in members if part in group.parts]
            rows += [Row(group.label, group.only([part]).cells(metrics), heading) for group in present]
    return tuple(rows) if len({row.group for row in rows}) > 1 else ()


def over(groups: Sequence[Group]) -> str:
    """Return in words what numbers are means of."""
    shifts = list(by("shift", groups))
    return f"mean of {len(shifts)} shifts" if len(shifts) > 1 else shifts[0]


def _seeds_note(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.results) for group in groups})
    if counts == [1]:
        return "One seed."
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Mean ± sample deviation over {seeds} seeds."
