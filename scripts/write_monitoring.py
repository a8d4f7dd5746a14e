"""Write the tables of docs/monitoring.md and its scatter plot from benchmarks/results.

Run it after a benchmark: `.venv/bin/python scripts/write_monitoring.py`. A test compares the page with the results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "monitoring.md"
PLOT = ROOT / "docs" / "estimates.png"
RESULTS = ROOT / "benchmarks" / "results"
ESTIMATES = ("confidence", "doc", "atc", "atc_entropy", "cot")
Row = dict[str, Any]


def read(name: str) -> list[Row]:
    """Return the rows of a benchmark; none if it was not run."""
    path = RESULTS / f"{name}.json"
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    return rows


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def points(share: float) -> str:
    return f"{100 * share:.1f}"


def harmed(row: Row) -> bool:
    """Return whether more than 2 points are lost against the source model; half an image is allowed for rounding."""
    return bool(row["source"] - row["adapted"] > 0.02 + 1e-9)


def forgets(row: Row) -> bool:
    return bool(row["clean before"] - row["clean after"] > 0.01 + 1e-9)


def harm_table() -> str:
    """Return accuracy beside that of the source model, per stream and network."""
    rows = read("harm")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["network"], row["stream"]), {})[row["method"]] = row

    def cell(row: Row) -> str:
        adapted, after = points(row["adapted"]), points(row["clean after"])
        return f"{f'**{adapted}**' if harmed(row) else adapted} · {f'**{after}**' if forgets(row) else after}"

    table = markdown(
        ("network", "stream", "images", "Source", "clean before", *methods),
        (
            (
                network,
                stream,
                str(first["images"]),
                points(first["source"]),
                " / ".join(dict.fromkeys(points(r["clean before"]) for r in by_method.values())),
                *(cell(by_method[method]) if method in by_method else "not run" for method in methods),
            )
            for (network, stream), by_method in groups.items()
            for first in [next(iter(by_method.values()))]
        ),
    )
    harmful, forgetful = sum(map(harmed, rows)), sum(map(forgets, rows))
    return (
        f"{table}\n\nAccuracy, %, on the usable images of the stream · on clean images afterwards. Of {len(rows)} "
        f"runs, {harmful} lose more than 2 points against Source and {forgetful} more than 1 on clean ones (bold)."
    )


def guard_table() -> str:
    """Return how many runs of each kind the guard notices."""
    rows, body = read("guard"), []
    for group, text in (("tuning", "four validation corruptions"), ("test", "not tuned on")):
        for kind in ("healthy", "failing"):
            # Runs from before the limits were set have signals only.
            chosen = [r for r in rows if r["key"].startswith(group) and r["kind"] == kind and "first alarm" in r]
            if not chosen:
                continue
            first = [r["first alarm"] for r in chosen if r["first alarm"] and r["first alarm"] <= 10]
            mean = f"{sum(first) / len(first):.1f}" if first else "none"
            body.append((f"{group} ({text})", kind, str(len(chosen)), str(len(first)), mean))
    between = sum(r["kind"] == "between" for r in rows if "first alarm" in r)
    table = markdown(
        ("runs", "kind", "count", "with an alarm within 10 batches", "mean batch of the first alarm"), body
    )
    return f"{table}\n\n{between} further runs lose between 3 and 10 points; they count as neither."


def signals_table() -> str:
    """Return the extremes of the guard's four numbers in the tuning runs, over the window, after the first batch."""
    from cretta import Guard

    body = []
    limits = Guard()
    for index, name in enumerate(("margin", "flips", "classes", "drift")):
        cells = [name, f"{getattr(limits, name):g}"]
        for kind in ("healthy", "failing"):
            runs = [r["signals"][1:] for r in read("guard") if r["key"].startswith("tuning") and r["kind"] == kind]
            sign = -1 if name == "classes" else 1  # few classes are bad, else large numbers
            worst = sorted(sign * max(sign * batch[index] for batch in run) for run in runs)
            cells.append(f"{worst[0]:.2f} to {worst[-1]:.2f}" if worst else "not run")
        body.append(cells)
    return markdown(("number", "limit", "worst value of healthy runs", "worst value of failing runs"), body)


def estimates_table() -> str:
    """Return the mean absolute error of each estimate, in points."""
    rows, body = read("estimates"), []
    selections = [(f"{data}, all methods", [r for r in rows if r["dataset"] == data and not r["collapse"]])
                  for data in ("cifar10", "cifar100")]  # fmt: skip
    selections.append(("induced collapse", [r for r in rows if r["collapse"]]))
    for reference, suffix in (("source model's", ""), ("adapted model's", " θ")):
        for text, chosen in selections:
            if not chosen:
                continue
            errors = [sum(abs(r[f"{n}{suffix}"] - r["accuracy"]) for r in chosen) / len(chosen) for n in ESTIMATES]
            best = min(errors)
            cells = [f"**{points(e)}**" if e == best else points(e) for e in errors]
            body.append((text, reference, str(len(chosen)), *cells))
    return markdown(("runs", "reference", "count", *ESTIMATES), body)


def collapse_table() -> str:
    """Return truth and estimates of the runs that were made to collapse: the mean over shifts."""
    body = []
    rows = [r for r in read("estimates") if r["collapse"]]
    for key in dict.fromkeys((r["dataset"], r["method"]) for r in rows):
        chosen = [r for r in rows if (r["dataset"], r["method"]) == key]
        names = ("accuracy", "atc", "cot", "atc θ", "cot θ", "buffer accuracy", "buffer accuracy θ")
        body.append((*key, *(points(sum(r[n] for r in chosen) / len(chosen)) for n in names)))
    head = ("dataset", "method", "true accuracy", "ATC", "COT", "ATC, θ", "COT, θ", "buffer, φ", "buffer, θ")
    return markdown(head, body)


def calibrate_table() -> str:
    return markdown(
        ("network", "method", "images", "accuracy, %", "ECE, %", "mean confidence, %"),
        (
            (r["network"], r["variant"], str(r["images"]), points(r["accuracy"]), points(r["ECE"]),
             points(r["confidence"]))
            for r in read("calibrate")
        ),
    )  # fmt: skip


def cost_table() -> str:
    return markdown(
        ("network", "method", "batch", "check of", "more processor time per step, %"),
        ((r["network"], r["method"], str(r["batch"]), r["guard"], points(r["more"])) for r in read("cost")),
    )


def plot() -> None:
    """Write the scatter plot of estimates beside the truth."""
    from cretta.report.charts import write_chart
    from cretta.report.content import Chart, Panel, Series

    rows = read("estimates")
    panels = []
    for name in ("doc", "atc", "cot"):
        series = []
        for label, chosen in (
            ("CIFAR-10", [r for r in rows if r["dataset"] == "cifar10" and not r["collapse"]]),
            ("CIFAR-100", [r for r in rows if r["dataset"] == "cifar100" and not r["collapse"]]),
            ("collapse", [r for r in rows if r["collapse"]]),
        ):
            if chosen:
                x, y = (tuple(100 * r[key] for r in chosen) for key in ("accuracy", name))
                series.append(Series(label, x, y))
        panels.append(Panel(name.upper(), "true accuracy, %", "estimate, %", "scatter", tuple(series)))
    if rows:
        write_chart(Chart("estimates", "Estimated accuracy beside the truth", tuple(panels)), PLOT)


TABLES = {
    "harm": harm_table,
    "guard": guard_table,
    "signals": signals_table,
    "estimates": estimates_table,
    "collapse": collapse_table,
    "calibrate": calibrate_table,
    "cost": cost_table,
}


SOURCES = {"signals": "guard", "collapse": "estimates"}
"""The results of tables that are not named like them."""


def written(page: str) -> str:
    """Return the page with its tables made again."""
    for name, table in TABLES.items():
        pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        match = pattern.search(page)
        if match is None:
            raise ValueError(f"expected the comment <!-- generated: {name} --> in {PAGE}, got none")
        text = table() if read(SOURCES.get(name, name)) else "Not measured yet: run the command."
        page = f"{page[: match.end(1)]}\n{text}\n\n{page[match.start(2) :]}"
    return page


def main() -> int:
    PAGE.write_text(written(PAGE.read_text()))
    plot()
    return 0


if __name__ == "__main__":
    sys.exit(main())
