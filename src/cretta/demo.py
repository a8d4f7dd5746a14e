"""The demo: a shipped model on a stream of shifts, with and without adaptation. Needs no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from cretta.bench import BatchRow, Benchmark, Buffer, Measures, Result, Run, Workshop, product
from cretta.bench.result import measures
from cretta.data import CORRUPTIONS, ArrayDataset, ImageDataset, corrupted, embedded
from cretta.data.domains import parse_domain
from cretta.errors import OptionError
from cretta.report.content import Better, Cell, Chart, Column, Panel, Row, Series, Table

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
CLEAR = 2.0
"""Standard errors beyond which a difference counts as one."""

Rows = Sequence[BatchRow]
Streams = Mapping[tuple[str, ...], Mapping[str, Rows]]
"""Batches by the domains of their stream, then by method."""
Value = Callable[[Measures], float]


def _accuracy(measured: Measures) -> float:
    return 100 * measured.accuracy


def _calibration_error(measured: Measures) -> float:
    return 100 * measured.calibration_error


def _gap(measured: Measures) -> float:
    return 100 * (measured.confidence - measured.accuracy)


SHOWN: tuple[tuple[str, Better, Value], ...] = (
    ("accuracy %", "higher", _accuracy),
    ("ECE %", "lower", _calibration_error),
    ("confidence − accuracy %", "neither", _gap),
)
"""What table and curves show: title, which values are better, and value."""


def plan(
    shifts: Sequence[str] = (),
    *,
    methods: Sequence[str] = METHODS,
    severity: int = 5,
    images: int = 400,
    batch_size: int = 50,
    seed: int = 0,
) -> tuple[list[Run], Workshop]:
    """Return the runs of the demo, and a workshop that has their images.

    By default the stream passes through all of ``SHIFTS`` without a reset. Each shift takes the next ``images`` of the
    2000 embedded test images, which start again after the last one: with 400 per shift 1200 of them come twice, under
    shifts that are five apart. If ``shifts`` are given, each is a stream of its own, of the first images.
    """
    test = embedded("test")
    if not 2 <= images <= len(test):
        raise OptionError(f"images={images}: expected 2 to {len(test)}, the number of embedded test images.")
    if not 2 <= batch_size <= images:
        raise OptionError(f"batch_size={batch_size}: expected 2 to {images}, the number of images per shift.")
    domains = [f"{shift}/{severity}" for shift in dict.fromkeys(shifts or SHIFTS)]
    streams = [(domain,) for domain in domains] if shifts else [tuple(domains)]
    starts = {domain: number * images for stream in streams for number, domain in enumerate(stream)}

    def shifted(domain: str) -> ImageDataset:
        indices = np.arange(starts[domain], starts[domain] + images) % len(test)
        part = ArrayDataset(test.name, test.images[indices], test.labels[indices], test.classes)
        return corrupted(part, *parse_domain(domain))

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
    return product(base, domains=streams, method=methods), Workshop(benchmarks=[benchmark])


def by_stream(results: Mapping[Run, Result]) -> Streams:
    """Return the batches of each stream and method."""
    streams: dict[tuple[str, ...], dict[str, Rows]] = {}
    for run, result in results.items():
        streams.setdefault(run.domains, {})[run.method] = result.rows
    return streams


def table(streams: Streams, title: str) -> Table:
    """Return what was measured on each shift, or on the stream of all shifts and on its second half."""
    parts: dict[str, Mapping[str, Rows]] = {}
    for domains, methods in streams.items():
        if len(domains) == 1:
            parts[_name(domains[0])] = methods
        else:
            parts |= {"whole stream": methods, "second half": _second_half(methods)}
    columns = (*(Column(name, better=better, digits=1) for name, better, _ in SHOWN), Column("images/s", digits=0))
    rows = []
    for part, methods in parts.items():
        for method, batches in methods.items():
            measured = measures(batches)
            values = (*(value(measured) for *_, value in SHOWN), measured.images_per_second)
            rows.append(Row(method, tuple(map(Cell, values)), part))
    # A single seed has no spread that would support a best value.
    return Table(NAME, title, "method", columns, tuple(rows), best_of="none")


def chart(streams: Streams, title: str) -> Chart:
    """Return curves over the stream, a point per shift; over single shifts a point per batch, of all images so far."""
    panels = []
    parts: tuple[tuple[float, float, str], ...] = ()
    for domains, methods in streams.items():
        first = next(iter(methods.values()))
        seen = (0.0, *accumulate(float(row.images) for row in first))
        if len(domains) == 1:
            x, pieces = seen[1:], [slice(end) for end in range(1, len(seen))]
        else:
            pieces = [slice(*edges) for edges in pairwise(range(0, len(seen), len(first) // len(domains)))]
            parts = tuple((seen[piece.start], seen[piece.stop], _name(first[piece.start].domain)) for piece in pieces)
            x = tuple((start + end) / 2 for start, end, _ in parts)
        for name, _, value in SHOWN:
            series = tuple(
                Series(method, x, tuple(value(measures(rows[piece])) for piece in pieces))
                for method, rows in methods.items()
            )
            panels.append(Panel("" if parts else _name(domains[0]), "images seen", name, "line", series))
    measured = "the images of one shift" if parts else "all images so far"
    return Chart(NAME, title, tuple(panels), (f"Each point is measured on {measured}.",), parts)


def findings(methods: Mapping[str, Rows], chosen: str = "cretta") -> tuple[str, str]:
    """Return what the stream shows of one method against the others: its accuracy, and its calibration later on."""
    late = _second_half(methods)
    accuracy = _compared(methods, chosen, _accuracy, ("more accurate than", "less accurate than"))
    calibration = _compared(
        late, chosen, _calibration_error, ("worse calibrated than", "better calibrated than"), "ECE "
    )
    gaps = [f"{_gap(measures(rows)):+.1f} for {method}" for method, rows in late.items()]
    return (
        f"Over the whole stream {accuracy}.",
        f"In its second half {calibration}; confidence minus accuracy is {_listed(gaps)} (points).",
    )


def _compared(methods: Mapping[str, Rows], chosen: str, value: Value, words: tuple[str, str], what: str = "") -> str:
    """Say which methods the chosen one is clearly above and below, in ``words`` for above and for below."""
    shown = {method: f"{method} ({what}{value(measures(rows)):.1f} %)" for method, rows in methods.items()}
    verdicts: dict[str, list[str]] = {}
    for method, rows in methods.items():
        if method != chosen:
            difference, error = paired(methods[chosen], rows, value)
            clear = abs(difference) > CLEAR * error
            verdict = words[difference < 0] if clear else "not clearly different from"
            verdicts.setdefault(verdict, []).append(shown[method])
    return f"{shown[chosen]} is " + _listed([f"{verdict} {_listed(names)}" for verdict, names in verdicts.items()])


def paired(a: Rows, b: Rows, value: Value) -> tuple[float, float]:
    """Return the difference of a value on the same batches, and its standard error (jackknife over batches)."""
    less_one = [
        value(measures([*a[:batch], *a[batch + 1 :]])) - value(measures([*b[:batch], *b[batch + 1 :]]))
        for batch in range(len(a))
    ]
    mean = math.fsum(less_one) / len(a)
    error = math.sqrt((len(a) - 1) / len(a) * math.fsum((difference - mean) ** 2 for difference in less_one))
    return value(measures(a)) - value(measures(b)), error


def _second_half(methods: Mapping[str, Rows]) -> dict[str, Rows]:
    return {method: rows[len(rows) // 2 :] for method, rows in methods.items()}


def _name(domain: str) -> str:
    return domain.partition("/")[0].replace("_", " ")


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
