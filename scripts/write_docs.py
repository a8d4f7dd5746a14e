"""Write the parts of the pages that follow from code and from measured results: python scripts/write_docs.py.

A part is between the lines ``<!-- generated: name -->`` and ``<!-- end -->``. With --demo, run the demo again where its
results are not those of the shipped weights, and draw its figure.
"""

from __future__ import annotations

import csv
import math
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from typer.testing import CliRunner

from cretta import demo, models, paper
from cretta.bench import Result, Run
from cretta.cli import app
from cretta.cli.reproduce import COMMITTED
from cretta.data.registry import RELEASES
from cretta.models.weights import card
from cretta.paper.family import WORST
from cretta.paper.verdict import RULE, Claim, Finding, claims, judge
from cretta.paper.verdict import verdict as judged
from cretta.report.content import Cell, Chart, Table
from cretta.report.ranking import number
from cretta.report.tables import markdown

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs"
RESULTS = ROOT / COMMITTED
CHOICE = PAGES / "results" / "choice.csv"
DEMO = PAGES / "results" / "demo"
"""The store of the demo's results."""
SITUATIONS = ("shift after shift", "class after class", "single images", "no shift", "other buffers")


def table(rows: Sequence[Sequence[str]], right: int = 0) -> str:
    """Return rows, the first of which are headings, as a Markdown table whose last ``right`` columns are numbers."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    rules = ["---"] * (len(rows[0]) - right) + ["---:"] * right
    return "\n".join([lines[0], f"|{'|'.join(rules)}|", *lines[1:]])


def choice(situation: str) -> str:
    """Return what was measured in a situation, the most accurate first."""
    with CHOICE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["situation"] == situation]
    first = "source images" if situation == "other buffers" else "method"
    metrics = ("accuracy %", "ECE %", "confidence − accuracy %")
    cells: list[tuple[str, ...]] = [(first, *metrics)]
    for row in sorted(rows, key=lambda row: (-float(row[metrics[0]]), float(row[metrics[1]]))):
        method = [f"`{row['method']}`", *([f"`{row['setting']}`"] if row["setting"] else [])]
        name = ", ".join(method) if first == "method" else row["setting"]
        cells.append((name, *(row[metric].replace("-", "−") for metric in metrics)))
    return table(cells, right=3)


def run_demo(figure: Path) -> str:
    """Return what `cretta demo` prints about its results, which are computed if they are not in the store."""
    command = ["demo", "--store", str(DEMO), "--output", str(figure)]
    done = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(app, command, catch_exceptions=False)
    if done.exit_code:
        sys.exit(done.output)
    start = done.output.index("400 CIFAR-10 test images")
    return done.output[start : done.output.index("Figure:")].strip()


def demo_output() -> str:
    """Return the output of the demo from its stored results."""
    runs, context = demo.plan()
    if missing := [run.method for run in runs if not (DEMO / f"{context.key(run)}.parquet").is_file()]:
        return f"No results for these weights: {', '.join(missing)}. Run python scripts/write_docs.py --demo."
    with tempfile.TemporaryDirectory() as folder:
        lines = run_demo(Path(folder) / "figure.svg").splitlines()
    return "\n".join(["```", *(line.rstrip() for line in lines), "```"])


def model_cards() -> str:
    """Return what the package states of each shipped network."""
    parts = []
    for name in models.names():
        facts = card(name)
        scores = ", ".join(f"{key}: {value}" for key, value in facts["scores"].items())
        rows = [
            ("", f"`{name}`"),
            ("architecture", f"`{facts['architecture']}`"),
            ("input", facts["input"]),
            ("classes", ", ".join(facts["class_names"])),
            ("trained on", facts["trained_on"]),
            ("recipe", facts["recipe"]),
            ("command", f"`{facts['command']}`"),
            ("scores", scores),
            ("license of the weights", facts["license"]),
            ("license of the data", facts["data_license"]),
            ("sha256", f"`{facts['sha256'][:16]}…`"),
        ]
        curve = f"results/training-{name}"
        more = f"cretta train {name.rpartition('-')[2]} --init {name} --epochs 20 --output {name}.safetensors"
        parts.append(
            f"## `{name}`\n\n{table(rows)}\n\n![Training loss and accuracy on held-out images]({curve}.png)\n\n"
            f"The log is [here]({curve}.csv). To train it further: `{more}`"
        )
    return "\n\n".join(parts)


def licenses() -> str:
    """Return the terms of every dataset that `cretta data` knows."""
    rows = [("dataset", "license", "publisher's page")]
    rows += [(f"`{name}`", release.license, f"<{release.page}>") for name, release in RELEASES.items()]
    return table(rows)


def items() -> str:
    """Return the tables and figures of the paper, as `cretta reproduce --list` prints them."""
    rows = [("item", "in the paper", "what it shows")]
    rows += [(f"`{item.name}`", item.where, item.title) for item in paper.items().values()]
    return table(rows)


@cache
def results() -> dict[Run, Result]:
    """Return the results that are part of the source code, by run; none before there are some."""
    return paper.read_results(RESULTS) if RESULTS.is_dir() else {}


@cache
def shown(name: str) -> tuple[Table | Chart, ...]:
    """Return the tables and charts of an item from these results; none if it was not run at a scale that counts."""
    scale = paper.best_scale(paper.get(name), results())
    return paper.get(name).show(results(), scale) if scale and scale.comparable else ()


def reasons() -> dict[str, str]:
    """Return the likely reasons of differences to the paper, by item: written by hand, and only of what was run."""
    path = RESULTS / "reasons.toml"
    written = tomllib.loads(path.read_text()) if path.is_file() else {}
    if early := [name for name in written if not shown(name)]:
        raise ValueError(f"{path}: reasons of items without results: {', '.join(early)}")
    return written


def figure(cell: Cell) -> str:
    """Return a measured number with its deviation over seeds, if there are several."""
    deviation = f" ± {number(cell.deviation, 2)}" if cell.deviation else ""
    return "–" if cell.value is None else f"{number(cell.value, 2)}{deviation}"


def verdict() -> str:
    """Return item by item what the paper claims and what was measured."""
    overview, sections = [("item", "in the paper", "claim", "reproduced")], []
    for name, item in paper.items().items():
        rows = []
        for claim in claims(item):
            found = judge(claim, shown(name))
            overview.append((f"`{name}`", item.where, claim.text, judged(found)))
            rows += [finding_row(claim.text, finding) for finding in found]
        if rows:
            headings = ("claim", "where", "paper", "measured", "difference", "holds")
            reason = f"\n\nLikely reason: {reasons()[name]}" if name in reasons() else ""
            sections.append(f"### {item.title} ({item.where})\n\n{table([headings, *rows])}{reason}")
    return "\n\n".join([RULE, table(overview), *sections])


def finding_row(text: str, finding: Finding) -> tuple[str, ...]:
    """Return the numbers of a claim in one column: of its row, and of the strongest other row."""
    printed = "–"
    if finding.printed:
        own, other, name = finding.printed
        printed = f"{number(own, 2)} against {number(other, 2)} ({name})"
    not_run = f"; not run: {', '.join(finding.not_run)}" if finding.not_run else ""
    measured = f"{figure(finding.row)} against {figure(finding.rival)} ({finding.name}{not_run})"
    difference = number((finding.row.value or 0) - (finding.rival.value or 0), 2, signed=True)
    margin = "?" if math.isinf(finding.margin) else number(finding.margin, 2)
    answer = "yes" if finding.holds else "no, the opposite" if finding.reversed else "not significantly"
    return text, finding.where, printed, measured, f"{difference} ± {margin}", answer


def not_to_use() -> str:
    """Return where CreTTA was significantly worse than a model that does not learn, in accuracy or in ECE."""
    lines = []
    for name in ("accuracy", "imagenet", "non-iid", "continual", "recurring"):
        for simple in ("Source", "BN Adapt"):
            claim = Claim(text="", row=simple, than=("CreTTA",), at="Acc|ECE|δ|average")
            parts = [part for part in shown(name) if isinstance(part, Table)]
            lines += [
                f"- {finding.where}: CreTTA {figure(finding.rival)}, {simple} {figure(finding.row)} (`{name}`)."
                for finding in judge(claim, parts)
                if finding.holds
            ]
    if lines:
        return "\n".join(["CreTTA was significantly worse than a model that does not learn here:", "", *lines])
    return (
        "Not run yet." if not results() else "In no committed result was CreTTA significantly worse than such a model."
    )


def main_results() -> str:
    """Return accuracy and ECE under corruption on CIFAR10-C and CIFAR100-C, for README.md."""
    (full,) = (part for part in shown("accuracy") if isinstance(part, Table))
    kept = [index for index, column in enumerate(full.columns) if f"severity {WORST}" in column.group]
    columns = tuple(full.columns[index] for index in kept)
    rows = tuple(replace(row, cells=tuple(row.cells[index] for index in kept)) for row in full.rows)
    part = paper.measured(replace(full, columns=columns, rows=rows))
    assert isinstance(part, Table)
    return markdown(part).strip()


PARTS: dict[str, Callable[[], str]] = {
    "demo": demo_output,
    "items of the paper": items,
    "licenses": licenses,
    "model cards": model_cards,
    "verdict": verdict,
    "when not to use CreTTA": not_to_use,
    **{f"choice: {situation}": partial(choice, situation) for situation in SITUATIONS},
}


if RESULTS.is_dir():
    PARTS["main results"] = main_results  # in README.md


def pages() -> list[Path]:
    """Return every page that may have generated parts."""
    return [ROOT / "README.md", *sorted(PAGES.rglob("*.md"))]


def written(text: str) -> str:
    """Return a page with its generated parts written again."""

    def part(match: re.Match[str]) -> str:
        make = PARTS.get(match[2])
        return match[0] if make is None else f"{match[1]}\n{make()}\n\n{match[3]}"

    return re.sub(r"(<!-- generated: (.*?) -->\n).*?(<!-- end -->)", part, text, flags=re.DOTALL)


def main() -> None:
    if "--demo" in sys.argv[1:]:
        print(run_demo(PAGES / "demo.png"))
    for page in pages():
        text = page.read_text()
        if (new := written(text)) != text:
            page.write_text(new)
            print(f"written: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
