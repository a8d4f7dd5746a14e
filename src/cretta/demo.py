"""The demo: a shipped model on a stream of shifts, with and without adaptation. Needs no network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from cretta.bench import Benchmark, Buffer, Result, Run, RunContext
from cretta.data import CORRUPTIONS, ArrayDataset, CorruptedDataset, ImageDataset, embedded
from cretta.data.domains import Domain, domain_name
from cretta.errors import OptionError
from cretta.report.content import Chart, Panel, Row, Series, Table
from cretta.report.groups import ACCURACY, CALIBRATION, SPEED, Group, Metric, by
from cretta.report.ranking import marks

NAME = "demo"
METHODS = ("source", "bn_adapt", "tent", "cretta")
SHIFTS = (
    "gaussian_noise",
    "glass_blur",
    "fog",
    "jpeg_compression",
    "contrast",
    "shot_noise",
    "brightness",
    "pixelate",
)
BUFFER = 1000
GAP = Metric(
    "confidence − accuracy %",
    "neither",
    1,
    lambda result: 100 * (result.scores.bins.mean_confidence - result.scores.accuracy),
)
CURVES = (dataclasses.replace(ACCURACY, digits=1), dataclasses.replace(CALIBRATION, digits=1), GAP)
"""The metrics of the figure; the table has the speed too."""


def plan(
    shifts: Sequence[str] = (),
    *,
    methods: Sequence[str] = METHODS,
    severity: int = 5,
    images: int = 400,
    batch_size: int | None = None,
    seed: int = 0,
) -> tuple[list[Run], RunContext]:
    """Return the runs of the demo, and a context that has their images.

    By default the stream passes through all of ``SHIFTS`` without a reset. Each shift takes the next ``images`` of the
    2000 embedded test images, which start again after the last one: with 400 per shift 1200 of them come twice, under
    shifts that are five apart. If ``shifts`` are given, each is a stream of its own, of the first images. Batches have
    50 images by default, or all of a shift if these are fewer.
    """
    test = embedded("test")
    domains = [Domain.parse(domain_name(shift, severity)) for shift in dict.fromkeys(shifts or SHIFTS)]
    if not 2 <= images <= len(test):
        raise OptionError(f"images={images}: expected 2 to {len(test)}, the number of embedded test images.")
    batch_size = min(50, images) if batch_size is None else batch_size
    if not 2 <= batch_size <= images:
        raise OptionError(f"batch_size={batch_size}: expected 2 to {images}, the number of images per shift.")
    streams = [(domain,) for domain in domains] if shifts else [tuple(domains)]
    starts = {domain: number * images for stream in streams for number, domain in enumerate(stream)}

    def shifted(domain: Domain) -> ImageDataset:
        indices = np.arange(starts[domain], starts[domain] + images) % len(test)
        part = ArrayDataset(test.name, test.images[indices], test.labels[indices], test.classes)
        return CorruptedDataset(part, *domain.corruption)

    benchmark = Benchmark(NAME, lambda: test, lambda: embedded("train"), shifted, CORRUPTIONS)
    base = Run(
        data=NAME,
        domains=streams[0],
        model="wrn-40-2-cifar10",
        stream="continual",
        batch_size=batch_size,
        buffer=Buffer(size=BUFFER),
        seed=seed,
    )
    runs = [dataclasses.replace(base, domains=stream, method=name) for stream in streams for name in methods]
    return runs, RunContext(benchmarks=[benchmark])


def groups_of(results: Mapping[Run, Result]) -> list[Group]:
    """Return each result with the name of its stream: a shift on its own, or the stream of all shifts."""
    return [
        Group((result,), run.method, NAME, "whole stream" if len(run.domains) > 1 else _name(str(run.domains[0])))
        for run, result in results.items()
    ]


def table(groups: Sequence[Group], title: str) -> Table:
    """Return the metrics on each shift, or on the stream of all shifts and on its second half."""
    metrics = (*CURVES, SPEED)
    rows = [Row(group.label, group.cells(metrics), group.shift) for group in (*groups, *_second_half(groups))]
    return Table(NAME, title, "method", tuple(m.column for m in metrics), tuple(rows), best_of="group")


def chart(groups: Sequence[Group], title: str) -> Chart:
    """Return curves over the stream, a point per shift; over single shifts a point per batch, of all images so far."""
    panels = []
    parts: tuple[tuple[float, float, str], ...] = ()
    for name, members in by("shift", groups).items():
        rows, domains = members[0].results[0].rows, members[0].parts
        if domains:
            counts = [sum(row.images for row in rows if row.domain == domain) for domain in domains]
            edges = pairwise((0.0, *accumulate(map(float, counts))))
            parts = tuple((*edge, _name(domain)) for edge, domain in zip(edges, domains, strict=True))
            x = tuple((start + end) / 2 for start, end, _ in parts)
            points = [[group.only([domain]) for domain in domains] for group in members]
        else:
            x = tuple(accumulate(float(row.images) for row in rows))
            points = [[_first(group, number) for number in range(1, len(rows) + 1)] for group in members]
        for metric in CURVES:
            series = tuple(
                Series(group.label, x, tuple(value for point in curve for value in point.values(metric).values()))
                for group, curve in zip(members, points, strict=True)
            )
            panels.append(Panel("" if parts else name, "images seen", metric.title, "line", series))
    measured = "the images of one shift" if parts else "all images so far"
    return Chart(NAME, title, tuple(panels), (f"Each point is measured on {measured}.",), parts)


def findings(groups: Sequence[Group]) -> tuple[str, str]:
    """Return what the stream shows: which methods are most accurate, and which are best calibrated later on."""
    late = _second_half(groups)
    gaps = [f"{value:+.1f} for {group.label}" for group in late for value in group.values(GAP).values()]
    return (
        f"Over the whole stream {_best(groups, CURVES[0], 'most accurate')}.",
        f"In its second half {_best(late, CURVES[1], 'best calibrated')}; the mean confidence, an estimate of accuracy "
        f"without labels, is off by {_listed(gaps)} (points).",
    )


def _best(groups: Sequence[Group], metric: Metric, words: str) -> str:
    """Name the methods that a table marks as best, with what they are best at."""
    rows = tuple(Row(group.label, group.cells([metric])) for group in groups)
    marked = zip(rows, marks(Table(NAME, "", "", (metric.column,), rows)), strict=True)
    names = [
        f"{row.label} ({metric.title.replace(' %', '')} {row.cells[0].value:.1f} %)" for row, (best,) in marked if best
    ]
    if len(names) > 1:
        return f"{_listed(names)} are the {words}, without a significant difference"
    return f"{names[0]} is the {words}" if names else f"no method is clearly the {words}"


def _second_half(groups: Sequence[Group]) -> list[Group]:
    halves = [group.only(group.parts[len(group.parts) // 2 :]) for group in groups if group.parts]
    return [dataclasses.replace(half, shift="second half") for half in halves]


def _first(group: Group, count: int) -> Group:
    """Return the same runs with only the first ``count`` batches."""
    results = tuple(dataclasses.replace(result, rows=result.rows[:count]) for result in group.results)
    return dataclasses.replace(group, results=results)


def _name(domain: str) -> str:
    return domain.partition("/")[0].replace("_", " ")


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
