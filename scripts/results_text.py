"""What the pages say of measured results: verdicts, tables and sentences, written from files of results.

scripts/write_docs.py puts them into the pages.
"""

from __future__ import annotations

import csv
import json
import math
import runpy
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from cretta import paper
from cretta.bench import Result, Run
from cretta.cli.reproduce import COMMITTED
from cretta.data import CORRUPTIONS
from cretta.data.domains import Domain
from cretta.paper import values
from cretta.paper.beyond import GUARD, UNGUARDED
from cretta.paper.cost import BATCH, gflops
from cretta.paper.family import WORST, Family
from cretta.paper.notes import notes
from cretta.paper.printed import paper_data
from cretta.paper.readings import Readings
from cretta.paper.results import portable_scale
from cretta.paper.shapes import ACCURACY, CALIBRATION_ERROR, CORRUPTION_ERROR, METHODS, domains, method_row, variants
from cretta.paper.verdict import RULE, ZERO, Claim, Finding, claims, column_count, judge
from cretta.paper.verdict import verdict as judged
from cretta.report.content import Cell, Chart, Column, Row, Table
from cretta.report.ranking import number
from cretta.report.spread import margin
from cretta.report.tables import markdown

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs"
RESULTS = ROOT / COMMITTED
BENCHMARKS = ROOT / "benchmarks" / "results"
CHOICE = PAGES / "results" / "choice.csv"
ANSWERS = ("yes", "partly", "undecided", "no", "not run yet")
"""To the question whether a claim was reproduced."""
SIMPLE = ("source", "bn_adapt", "cretta")
PAPER = "cretta: paper"
CHOSEN = "chosen-setting"
COST = f"GFLOPs per {BATCH} images, forward and backward"
NO_RESULTS = """\
No complete results on all fifteen corruptions are committed yet;
`cretta reproduce main accuracy --scale day --export benchmarks/results/paper` computes them."""
BATCH_SIZES = {
    "source": "Source",
    "bn_adapt": "BN Adapt",
    "tent": "TENT",
    "cretta": "CreTTA",
    'cretta, statistics="auto"': 'CreTTA, `statistics="auto"`',
    'cretta, statistics="moving"': 'CreTTA, `statistics="moving"`',
}
"""The columns of the tables of batch sizes, by the methods of benchmarks/batch_sizes.py."""


def table(rows: Sequence[Sequence[str]], right: int = 0) -> str:
    """Return rows, the first of which are headings, as a Markdown table whose last ``right`` columns are numbers."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    rules = ["---"] * (len(rows[0]) - right) + ["---:"] * right
    return "\n".join([lines[0], f"|{'|'.join(rules)}|", *lines[1:]])


@cache
def results() -> dict[Run, Result]:
    """Return the results that are part of the source code, by run; none before there are some."""
    return paper.read_results(RESULTS) if RESULTS.is_dir() else {}


@cache
def scale_of(name: str) -> paper.Scale | None:
    """Return the scale of which these results have most for an item; none if its numbers mean nothing."""
    scale = paper.best_scale(paper.get(name), results())
    return scale if scale and scale.comparable else None


@cache
def shown(name: str) -> tuple[Table | Chart, ...]:
    """Return the tables and charts of an item from these results; none if it was not run at a scale that counts."""
    scale = scale_of(name)
    return paper.get(name).show(results(), scale) if scale else ()


def reasons() -> dict[str, str]:
    """Return the likely reasons of differences to the paper, by item: written by hand, and only of what was run.

    An item whose reason is the name of another has that one's.
    """
    path = RESULTS / "reasons.toml"
    written = tomllib.loads(path.read_text()) if path.is_file() else {}
    if early := [name for name in written if not shown(name)]:
        raise ValueError(f"{path}: reasons of items without results: {', '.join(early)}")
    return {name: written.get(text, text) for name, text in written.items()}


def figure(cell: Cell) -> str:
    """Return a measured number with its deviation over seeds, if there are several."""
    deviation = f" ± {number(cell.deviation, 2)}" if cell.deviation else ""
    return "–" if cell.value is None else f"{number(cell.value, 2)}{deviation}"


def verdict() -> str:
    """Return item by item what the paper claims and what was measured."""
    overview, sections = [("item", "in the paper", "claim", "reproduced", "measured columns")], []
    scales: dict[str, str] = {}
    answers: Counter[str] = Counter()
    for name, item in paper.items().items():
        parts = []
        for claim in claims(item):
            found = judge(claim, shown(name))
            measured = f"{len(found)} of {column_count(claim, shown(name))}" if found else "–"
            answers[judged(found)] += 1
            overview.append((f"`{name}`", item.where, claim.text, judged(found), measured))
            if found:
                rows = [finding_row(claim, finding) for finding in found]
                headings = ("where", "paper", "measured", "difference", "holds")
                parts.append(f"**{claim.text}** {judged(found).capitalize()}:\n\n{table([headings, *rows])}")
        scale = scale_of(name)
        if parts and scale:
            scales[scale.name] = " ".join(scale.about.split())
            reason = f" Likely reason: {reasons()[name]}" if name in reasons() else ""
            parts.append(f"`cretta reproduce {name} --scale {scale.name}`.{reason}")
            sections.append("\n\n".join([f"### {item.title} ({item.where})", *parts]))
    sizes = "\n".join(f"- Scale `{name}`: {about}" for name, about in scales.items())
    counts = ", ".join(f"{answers[answer]} {answer}" for answer in ANSWERS if answers[answer])
    return "\n\n".join([f"{answers.total()} claims: {counts}.", RULE, table(overview), sizes, *sections])


def finding_row(claim: Claim, finding: Finding) -> tuple[str, ...]:
    """Return the numbers of a claim in one column: of its row, and of the strongest other row."""
    printed = "–"
    if finding.printed:
        own, other, name = finding.printed
        printed = (
            f"{number(own, 2)} against {number(other, 2)} ({name})" if name != ZERO else number(own, 2, signed=True)
        )
    not_run = f"; not complete on the same images: {', '.join(finding.not_run)}" if finding.not_run else ""
    own, other = finding.values
    measured = f"{figure(finding.row)} against {figure(finding.rival)} ({finding.name}{not_run})"
    difference = number(own - other, 2, signed=True)
    if finding.name == ZERO:
        measured = number(own, 2, signed=True)
    if finding.margin == math.inf:
        difference += " ± unknown"
    elif finding.margin:
        difference += f" ± {number(finding.margin, 2)}"
    if claim.factor != 1:
        difference = f"{number(other / own, 1)} times; claimed: {number(claim.factor, 0)}"
    opposite = "no, the opposite" if claim.factor == 1 else "no"
    answer = "yes" if finding.holds else opposite if finding.reversed else "not significantly"
    if not finding.printed_holds:
        answer += " (nor by the paper's numbers)" if not finding.holds else " (not by the paper's numbers)"
    return finding.where, printed, measured, difference, answer


def not_to_use() -> str:
    """Return situations in which CreTTA does not help, from files of benchmarks and from the committed results."""
    return "\n\n".join((situations(), by_batch_size(), by_length(), worse_than_simple()))


def worse_than_simple() -> str:
    """Return where CreTTA was significantly worse than a model that does not learn, in accuracy or in ECE."""
    lines, compared = [], []
    for name in ("accuracy", "imagenet", "pacs", "non-iid", "continual", "recurring"):
        columns: dict[str, None] = {}
        for simple in ("Source", "BN Adapt"):
            claim = Claim(text="", row=simple, than=("CreTTA",), at="Acc|ECE|δ|average")
            findings = judge(claim, [part for part in shown(name) if isinstance(part, Table)])
            columns |= dict.fromkeys(finding.where for finding in findings)
            lines += [
                f"- {finding.where}: CreTTA {figure(finding.rival)}, {simple} {figure(finding.row)} (`{name}`)."
                for finding in findings
                if finding.holds
            ]
        compared += [f"`{name}` ({len(columns)})"] if columns else []
    if lines:
        return "\n".join(["CreTTA was significantly worse than a model that does not learn here:", "", *lines])
    if not compared:
        return "Where CreTTA is significantly worse than a model that does not learn at full size: not measured yet."
    return (
        "In no column of the tables of these items was CreTTA significantly worse than Source or BN Adapt (columns "
        f"compared): {', '.join(compared)}."
    )


def situations() -> str:
    """Return accuracy and ECE in situations that do not suit CreTTA, each with the file that has the numbers."""
    head = ("situation", "network", "images", "Source", "BN Adapt", "CreTTA", "CreTTA, changed", "file")
    rows = [*short_streams(), *underconfident(), *small_batches(), *no_shift()]
    explained = (
        "Accuracy / ECE in %; – where the file does not have it. *Changed*: with the setting named. Files without a "
        "folder are in `benchmarks/results/`."
    )
    return f"{table([head, *rows])}\n\n{explained}" if rows else "Small benchmarks: not measured yet."


def pair(accuracy: float | str, error: float | str | None = None) -> str:
    """Return "accuracy / ECE" in percent from shares, or from numbers as a CSV file has them."""
    numbers = [f"{100 * x:.1f}" if isinstance(x, float) else x or "–" for x in (accuracy, error)]
    return " / ".join(numbers)


def saved(name: str) -> list[dict[str, Any]]:
    """Return the rows of a benchmark; none if it was not run."""
    path = BENCHMARKS / f"{name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.is_file() else []
    return rows


def short_streams() -> list[tuple[str, ...]]:
    """Return the mean over the streams of the benchmark of estimates, by dataset."""
    rows = [row for row in saved("estimates") if not row["collapse"]]
    lines = []
    for data, network in (("cifar10", "resnet-20-cifar10"), ("cifar100", "resnet-20-cifar100-smoothed")):
        own = {
            method: [row["accuracy"] for row in rows if (row["dataset"], row["method"]) == (data, method)]
            for method in SIMPLE
        }
        if all(own.values()):
            text = f"short streams: mean of {len(own['cretta'])}, batches of 50"
            means = [pair(fmean(values)) for values in own.values()]
            lines.append((text, f"`{network}`", "150 each", *means, "", "`estimates.json`"))
    return lines


def underconfident() -> list[tuple[str, ...]]:
    """Return networks whose confidence is below their accuracy, with and without recalibration."""
    networks: dict[str, dict[str, dict[str, Any]]] = {}
    for row in saved("calibrate"):
        networks.setdefault(row["network"], {})[row["variant"]] = row
    lines = []
    for name, measured in networks.items():
        source, changed = measured["source"], measured.get("cretta, calibrate=auto")
        if source["confidence"] < source["accuracy"]:
            text = (
                f"an underconfident network: mean confidence {100 * source['confidence']:.1f}, "
                f"with CreTTA {100 * measured['cretta']['confidence']:.1f}"
            )
            cells = [pair(measured[method]["accuracy"], measured[method]["ECE"]) for method in SIMPLE]
            other = f'`calibrate="auto"`: {pair(changed["accuracy"], changed["ECE"])}' if changed else ""
            lines.append((text, f"`{name}`", str(source["images"]), *cells, other, "`calibrate.json`"))
    return lines


def small_batches() -> list[tuple[str, ...]]:
    """Return batches of one image or of few classes: as they come, and with other statistics."""
    with CHOICE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = []
    cases = (
        ("single images", "batches of one image", "moving"),
        ("class after class", "batches of few classes", "mixture"),
    )
    for situation, text, statistics in cases:
        own = {(row["method"], row["setting"]): row for row in rows if row["situation"] == situation}
        texts = {key: pair(row["accuracy %"], row["ECE %"]) for key, row in own.items()}
        setting = f'statistics="{statistics}"'
        changed = f"`{setting}`: {texts['cretta', setting]}"
        cells = [texts[method, ""] for method in SIMPLE]
        images = own["cretta", ""]["images"]
        lines.append((text, "first shipped WRN-40-2", images, *cells, changed, "`docs/results/choice.csv`"))
    return lines


def seed_0(labels: Sequence[str], streams: Callable[[Family], list[Domain]]) -> dict[str, list[Result]]:
    """Return the results of methods on CIFAR-10 with the first seed, by label, of those that are complete."""
    scale = scale_of("accuracy")
    if scale is None:
        return {}
    readings, family = Readings(scale, results()), scale.family("cifar10")
    runs = {label: readings.groups(family, METHODS[label], streams(family))[0] for label in labels}
    return {
        label: [results()[run] for run in group]
        for label, group in runs.items()
        if all(run in results() and run.images == family.images for run in group)
    }


def no_shift() -> list[tuple[str, ...]]:
    """Return the clean images of CIFAR-10."""
    labels = ("Source", "BN Adapt", "CreTTA")
    own = seed_0(labels, lambda family: domains(family, "clean"))
    if len(own) < len(labels):
        return []
    cells = [pair(own[label][0].scores.accuracy, own[label][0].scores.calibration_error) for label in labels]
    images = str(own["CreTTA"][0].scores.images)
    return [("no shift, the statistics of batches", "`wrn-40-2-cifar10`", images, *cells, "", "`paper/runs.csv`")]


def streams_of_cifar10() -> dict[str, list[Result]]:
    """Return methods that learn, and BN Adapt, on the streams of CIFAR10-C at severity 5; none if one is missing."""
    own = seed_0(("BN Adapt", "TENT", "SHOT", "CreTTA"), lambda family: domains(family, "worst", ablation=False))
    return own if {"BN Adapt", "CreTTA"} <= own.keys() else {}


def begun(own: dict[str, list[Result]], count: int) -> tuple[dict[str, Cell], dict[str, Cell]]:
    """Return accuracy and ECE of the first batches of each stream, by method.

    Each corruption is a block: all methods had the same images of it.
    """
    parts = {label: [replace(result, rows=result.rows[:count]) for result in group] for label, group in own.items()}
    accuracy, error = (
        {label: Cell(value(group), blocks=tuple(value([result]) for result in group)) for label, group in parts.items()}
        for value in (values.accuracy, values.calibration_error)
    )
    return accuracy, error


def difference(cells: dict[str, Cell], rival: str) -> str:
    """Return the difference of CreTTA to another method, and its margin if the spread is known."""
    own, other = cells["CreTTA"], cells[rival]
    limit = margin(other, own)
    text = number((own.value or 0) - (other.value or 0), 2, signed=True)
    return f"{text} ± {number(limit, 2)}" if math.isfinite(limit) else text


def by_batch_size() -> str:
    """Return methods by the number of images per batch, under corruption and on clean images."""
    shifted, clean = batch_sizes("shifted"), batch_sizes("clean")
    if not shifted:
        return "Methods by the number of images per batch: not measured yet (`python benchmarks/batch_sizes.py`)."
    row = next(iter(shifted.values()))["Source"]
    domains = ", ".join(f"`{domain}`" for domain in row["domains"])
    text = (
        f"By the number of images per batch: accuracy / ECE in %, mean of {domains}, each with a reset; the last "
        "column is the difference in accuracy (± margin: paired t-test over blocks of batches, 5 %). "
        f"`{row['network']}`, the same {row['images'] // len(row['domains'])} images in the same order for all sizes, "
        "learning rates of the preset `cifar10` (`batch_sizes.json`)."
    )
    parts = [text, table_of_sizes(shifted), enough_images(shifted)]
    return "\n\n".join([*parts, "On the clean images:", table_of_sizes(clean)] if clean else parts)


def batch_sizes(part: str) -> dict[int, dict[str, dict[str, Any]]]:
    """Return the rows of a part of the benchmark of batch sizes, by number of images and label, where all are there."""
    path = BENCHMARKS / "batch_sizes.json"
    rows = json.loads(path.read_text("utf-8")).values() if path.is_file() else []
    own = [row for row in rows if row["part"] == part]
    methods = [method for method in BATCH_SIZES if method in {row["method"] for row in own}]
    sizes = {
        size: {row["method"]: row for row in own if row["batch"] == size}
        for size in sorted({row["batch"] for row in own})
    }
    return {
        size: {BATCH_SIZES[method]: measured[method] for method in methods}
        for size, measured in sizes.items()
        if len(measured) == len(methods)
    }


def table_of_sizes(sizes: dict[int, dict[str, dict[str, Any]]]) -> str:
    """Return a row for each number of images per batch, with the difference of CreTTA to Source if it was run."""
    labels = list(next(iter(sizes.values())))
    against = ["CreTTA against Source"] if "CreTTA" in labels else []
    rows = [("images per batch", *labels, *against)]
    for size, own in sizes.items():
        pairs = [f"{row['accuracy']:.1f} / {row['ECE']:.1f}" for row in own.values()]
        rows.append((str(size), *pairs, *([difference(accuracies(own), "Source")] if against else [])))
    return table(rows, right=len(rows[0]))


def accuracies(rows: dict[str, dict[str, Any]]) -> dict[str, Cell]:
    """Return the accuracies of a benchmark with those of its blocks."""
    return {label: Cell(row["accuracy"], blocks=tuple(row["accuracy of blocks"])) for label, row in rows.items()}


def enough_images(sizes: dict[int, dict[str, dict[str, Any]]]) -> str:
    """Return with how many images per batch methods are significantly more accurate than Source."""
    cells = {size: accuracies(rows) for size, rows in sizes.items()}
    sure = {
        label: [
            size
            for size, own in cells.items()
            if (own[label].value or 0) - (own["Source"].value or 0) > margin(own[label], own["Source"])
        ]
        for label in next(iter(cells.values()))
        if label != "Source"
    }
    texts: dict[str, list[str]] = {}
    for label, chosen in sure.items():
        on = chosen and chosen == [size for size in cells if size >= chosen[0]]
        text = f"from {chosen[0]} images per batch on" if on else f"with {', '.join(map(str, chosen)) or 'no number'}"
        texts.setdefault(text, []).append(label)
    parts = "; ".join(f"{', '.join(labels)}: {text}" for text, labels in texts.items())
    return f"Significantly more accurate than Source here: {parts}."


def longer_streams() -> str:
    """Return by how much CreTTA differs from BN Adapt and TENT in the longest streams, for README.md."""
    own = streams_of_cifar10()
    if not own:
        return "In longer streams: not measured yet."
    rows = own["CreTTA"][0].rows
    accuracy, error = begun(own, len(rows))
    against = [
        f"{difference(accuracy, rival)} points of accuracy and {difference(error, rival)} points of ECE against {rival}"
        for rival in ("BN Adapt", "TENT")
        if rival in own
    ]
    images = f"{sum(row.images for row in rows):,}".replace(",", " ")
    return (
        f"In longer streams the methods differ: over {images} images of a corruption, mean of {len(own['CreTTA'])}, "
        f"first seed, CreTTA has {', and '.join(against)} (± margin: paired t-test over corruptions, 5 %)."
    )


def by_length() -> str:
    """Return methods that learn beside BN Adapt on the first batches of the streams of CIFAR10-C at severity 5."""
    own = streams_of_cifar10()
    if not own:
        return "What CreTTA gains over BN Adapt by the length of a stream, over all corruptions: not measured yet."
    first, rows = own["CreTTA"][0].rows, []
    for count in (count for count in (1, 5, 10, 25, 50) if count <= len(first)):
        scores = begun(own, count)
        shares = [" / ".join(figure(cells[label]) for cells in scores) for label in own]
        differences = [difference(cells, "BN Adapt") for cells in scores]
        rows.append((str(sum(row.images for row in first[:count])), *shares, *differences))
    head = ("first images of each stream", *own, "accuracy", "ECE")
    text = (
        f"CIFAR10-C, severity {WORST}, first seed, mean over {len(own['CreTTA'])} corruptions, each with a reset: "
        "accuracy / ECE in % of the stream up to there, and the difference of CreTTA to BN Adapt (± margin: paired "
        "t-test over corruptions, 5 %). The streams are shuffled, and fewer images have a higher ECE: compare within a "
        "row."
    )
    return f"{text}\n\n{table([head, *rows], right=len(own) + 2)}"


def main_results() -> str:
    """Return what was measured under corruption on CIFAR10-C and CIFAR100-C, method by method, for docs/index.md."""
    scale = scale_of("accuracy")
    if scale is None:
        return NO_RESULTS
    names = [name for name in ("cifar10", "cifar100") if scale.family(name).corruptions == CORRUPTIONS]
    parts = [main_table(Readings(scale, results()), name) for name in names]
    complete = [paper.measured(part) for part in parts]
    if not any(complete):
        return NO_RESULTS
    return "\n\n".join(markdown(part).strip() for part in complete if isinstance(part, Table))


def main_table(readings: Readings, name: str) -> Table:
    """Return accuracy, ECE and mCE at severity 5, each the mean over all corruptions, and the cost of a step."""
    family = readings.scale.family(name)
    streams = domains(family, "worst", ablation=False)
    quantities = (ACCURACY, CALIBRATION_ERROR, CORRUPTION_ERROR)
    columns = [Column(quantity.title, better=quantity.better) for quantity in quantities]
    columns.append(Column(COST, digits=0))
    rows = []
    for variant in METHODS.values():
        cells = [quantity.cell(readings, variant, family, streams) for quantity in quantities]
        cost = readings.cell(readings.groups(family, variant, streams), gflops("gflops"))
        # What is missing is named once per method.
        cells = [cells[0], *(replace(cell, note="") if cell.value is None else cell for cell in (*cells[1:], cost))]
        rows.append(replace(method_row(variant, cells, [family]), group=""))
    title = f"{family.title}, severity {WORST}, mean over {len(streams)} corruptions"
    return Table("results", title, "Method", tuple(columns), tuple(rows), notes(readings))


def same_images() -> str:
    """Return accuracy and ECE on CIFAR10-C of all methods that were run on the same few images, for docs/index.md."""
    scale = portable_scale(paper.scale("quick"), results())
    table = paper.measured(main_table(Readings(scale, results()), "cifar10"))
    if not isinstance(table, Table):
        return NO_RESULTS
    rows = [row for row in table.rows if row.cells[0].value is not None and not row.label.endswith("†")]
    pairs = ", ".join(f"{row.label} {figure(row.cells[0])} / {figure(row.cells[1])}" for row in rows)
    images = f"{scale.family('cifar10').images:,}".replace(",", " ")
    return f"On the first {images} test images under each corruption, the same for all, accuracy / ECE: {pairs}."


def tried() -> str:
    """Return the settings of CreTTA that benchmarks/settings.py compared, for docs/choosing.md."""
    path = BENCHMARKS / "settings.json"
    if not path.is_file():
        return "Not measured yet: `python benchmarks/settings.py`."
    measured: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
    names = [name for name, *_ in runpy.run_path(str(ROOT / "benchmarks" / "settings.py"))["cases"]()]
    groups = dict.fromkeys((row["network"], row["part"]) for row in measured.values())
    return "\n\n".join(tried_in(*group, names, measured) for group in groups)


def tried_in(network: str, part: str, names: Sequence[str], measured: dict[str, dict[str, Any]]) -> str:
    """Return the table of one network and stream, and which settings are ahead of the paper's and of other methods."""
    own = {row["setting"]: row for row in measured.values() if (row["network"], row["part"]) == (network, part)}
    done = [name for name in names if name in own]
    first = own[done[0]]
    columns = (
        Column("accuracy %", better="higher"),
        Column("ECE %", better="lower"),
        Column(COST, digits=0),
    )
    cells = {
        name: (
            Cell(row["accuracy"], blocks=tuple(row["accuracy of blocks"])),
            Cell(row["ECE"], blocks=tuple(row["ECE of blocks"])),
            Cell(row["GFLOPs per batch"] * BATCH / row["batch"]),
        )
        for name, row in own.items()
    }
    stream = {"drift": "four corruptions in a row without a reset", "alone": "mean over four corruptions"}[part]
    title = f"{network}, {stream}: {first['images']} images in batches of {first['batch']}"
    below = (
        [f"Not measured yet: {'; '.join(name for name in names if name not in own)}."] if len(done) < len(names) else []
    )
    rows = tuple(Row(name, cells[name]) for name in done)
    text = markdown(Table("settings", title, "setting", columns, rows, tuple(below))).strip()
    rivals = [name for name in done if not name.startswith("cretta") or name == PAPER]
    ahead = {
        name: all(leads(cells[name], cells[rival]) for rival in rivals)
        for name in done
        if name not in rivals and all(leads(cells[name], cells[rival], chance=True) for rival in rivals)
    }
    if PAPER not in own or not ahead:
        return f"{text}\n\nNo setting is ahead of {', '.join(rivals)} in both accuracy and ECE."
    winners = "; ".join(f"{name} ({'significantly' if sure else 'not significantly'})" for name, sure in ahead.items())
    return f"{text}\n\nAhead of {', '.join(rivals)} in both accuracy and ECE: {winners}."


def chosen_parts() -> list[Table]:
    """Return the tables of the chosen setting beside the paper's and other methods."""
    return [part for part in map(paper.measured, shown(CHOSEN)) if isinstance(part, Table)]


def without_reset() -> str:
    """Return the tables of streams without a reset: corruptions in a row, and those that recur."""
    parts = {name: [part for part in shown(name) if isinstance(part, Table)] for name in ("continual", "recurring")}
    tables = [markdown(together(paper.get(name).title, own)).strip() for name, own in parts.items() if own]
    guarded = [sentence for own in parts.values() for part in own for sentence in with_guard(part)]
    return "\n\n".join([*tables, *guarded]) or (
        "Not measured yet: `cretta reproduce continual recurring --scale quick`."
    )


def together(title: str, parts: Sequence[Table]) -> Table:
    """Return the columns without a guard of tables with the same rows, as one table."""
    columns = [
        replace(column, group=part.title.removeprefix(f"{title}, "))
        for part in parts
        for column in part.columns
        if column.group == UNGUARDED
    ]
    rows = [
        replace(
            same[0],
            cells=tuple(
                cell
                for part, row in zip(parts, same, strict=True)
                for cell, column in zip(row.cells, part.columns, strict=True)
                if column.group == UNGUARDED
            ),
        )
        for same in zip(*(part.rows for part in parts), strict=True)
    ]
    lines = tuple(dict.fromkeys(note for part in parts for note in part.notes if "guard" not in note))
    measured = paper.measured(replace(parts[0], title=title, columns=tuple(columns), rows=tuple(rows), notes=lines))
    return measured if isinstance(measured, Table) else parts[0]


def with_guard(part: Table) -> list[str]:
    """Return which methods have other numbers with the guard, which is off in the tables."""
    changed = []
    for row in part.rows:
        off, on = (
            [
                figure(cell)
                for cell, column in zip(row.cells, part.columns, strict=True)
                if (column.group == UNGUARDED) is own
            ]
            for own in (True, False)
        )
        if off != on:
            changed.append(f"{row.label} {' / '.join(on)} in place of {' / '.join(off)}")
    guard = f'{part.title}, with `guard="{GUARD}"`'
    if not changed:
        return [f"{guard}: all methods as without it."]
    return [f"{guard}, accuracy / ECE: {'; '.join(changed)}; all others as without it."]


def in_short() -> str:
    """Return accuracy and ECE of methods and of both settings of CreTTA, and the cost of a step, for README.md."""
    scale, parts = scale_of(CHOSEN), chosen_parts()
    if scale is None or not parts:
        return NO_RESULTS
    readings, family = Readings(scale, results()), scale.family("cifar10")
    rows, streams = variants(paper_data()["items"][CHOSEN]["rows"]), domains(family, "worst", ablation=False)
    costs = {
        label: readings.cell(readings.groups(family, variant, streams), gflops("gflops"))
        for label, variant in rows.items()
    }
    severity = f", severity {WORST}"
    groups = {f"{scale.family(name).title}{severity}" for name in ("cifar10", "cifar100")}  # with all corruptions
    kept = [index for index, column in enumerate(parts[0].columns) if column.group in groups]
    columns = [
        replace(parts[0].columns[index], group=parts[0].columns[index].group.removesuffix(severity)) for index in kept
    ]
    short = replace(
        parts[0],
        title=f"Mean over {len(CORRUPTIONS)} corruptions at severity {WORST}",
        columns=(*columns, Column(f"GFLOPs per {BATCH} images", digits=0)),
        rows=tuple(
            replace(
                row, cells=tuple(replace(cell, note="") for cell in (*(row.cells[i] for i in kept), costs[row.label]))
            )
            for row in parts[0].rows
        ),
        notes=(),
    )
    return markdown(short).strip()


def chosen_findings() -> str:
    """Return whether the chosen setting leads, column by column."""
    words = {(True, False): "significantly ahead", (False, True): "significantly behind"}
    lines = [
        f"- {finding.where}: {figure(finding.row)}, against {figure(finding.rival)} of {finding.name}: "
        + words.get((finding.holds, finding.reversed), "not significantly ahead")
        for finding in judge(Claim(text="", row="CreTTA, chosen"), chosen_parts())
    ]
    return "\n".join(lines) or f"Not measured yet: `cretta reproduce {CHOSEN} --scale day`."


def chosen() -> str:
    """Return the chosen setting on the fifteen corruptions, and whether it leads."""
    tables = "\n\n".join(markdown(part).strip() for part in chosen_parts())
    return f"{tables}\n\nCreTTA, chosen:\n\n{chosen_findings()}" if tables else chosen_findings()


def leads(own: Sequence[Cell], other: Sequence[Cell], *, chance: bool = False) -> bool:
    """Return whether a setting has a higher accuracy and a lower ECE, beyond their margins unless ``chance``."""
    gains = ((own[0].value or 0) - (other[0].value or 0), (other[1].value or 0) - (own[1].value or 0))
    least = (0.0 if chance else margin(a, b) for a, b in zip(own[:2], other[:2], strict=True))
    return all(gain > limit for gain, limit in zip(gains, least, strict=True))
