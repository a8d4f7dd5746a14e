"""Write the parts of the pages that follow from code and from measured results: python scripts/write_docs.py.

A part is between the lines ``<!-- generated: name -->`` and ``<!-- end -->``. With --demo, run the demo again where its
results are not those of the shipped weights, and draw its figure.
"""

from __future__ import annotations

import csv
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from typer.testing import CliRunner

import results_text as texts
from cretta import demo, models, paper
from cretta.cli import app
from cretta.data.registry import RELEASES
from cretta.models.weights import card
from results_text import CHOICE, PAGES, ROOT, table

DEMO = PAGES / "results" / "demo"
"""The store of the demo's results."""
SITUATIONS = ("shift after shift", "class after class", "single images", "no shift", "other buffers")


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


PARTS: dict[str, Callable[[], str]] = {
    "demo": demo_output,
    "items of the paper": items,
    "licenses": licenses,
    "model cards": model_cards,
    "verdict": texts.verdict,
    "when not to use CreTTA": texts.not_to_use,
    "main results": texts.main_results,
    "methods on the same images": texts.same_images,
    "longer streams": texts.longer_streams,
    "settings that were tried": texts.tried,
    "the chosen setting": texts.chosen,
    "streams without a reset": texts.without_reset,
    "results in short": texts.in_short,
    **{f"choice: {situation}": partial(choice, situation) for situation in SITUATIONS},
}


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
