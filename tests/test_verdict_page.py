"""The page of verdicts and the table of README.md, written from invented results."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from cretta.bench import Run
from cretta.paper import DAY, get, items, write_summary
from cretta.paper.verdict import Claim, claims, judge
from cretta.report.content import Cell, Column, Row, Table

sys.path.insert(0, str(Path(__file__).parent / "paper"))
from fake_results import results

from scripts_as_modules import load_script

RIGHT = {"cretta": 0.6, "tent": 0.7, "bn_adapt": 0.65}


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a summary of results in which CreTTA is worse than TENT and BN Adapt."""
    module = load_script("results_text")

    def share(run: Run, domain: str, batch: int) -> float:
        return RIGHT.get(run.method, 0.5) + 0.01 * (run.seed - 1)

    runs = [run for run in get("accuracy").plan(DAY) if run.data == "cifar10"]
    write_summary(results(runs, right=share, batches=4), dict.fromkeys(runs, "cretta reproduce"), tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def test_what_was_run_has_its_numbers_and_the_rest_says_that_it_was_not(writer: ModuleType) -> None:
    page = writer.verdict()
    counts = Counter(re.findall(r"^\| `.*\| (yes|no|partly|undecided|not run yet) \|", page, re.MULTILINE))
    assert sum(counts.values()) == sum(len(claims(item)) for item in items().values())
    listed = ", ".join(f"{counts[answer]} {answer}" for answer in ("undecided", "no", "not run yet"))
    assert page.startswith(f"{counts.total()} claims: {listed}.\n")
    assert "| `accuracy` | Table 9 | CreTTA is the most accurate under corruption. | no | 2 of 6 |" in page
    assert "| `pacs` | Table 2 | CreTTA has the best average accuracy and ECE. | not run yet | – |" in page
    assert (
        "| 88.30 against 88.27 (AEA) | 60.00 ± 1.00 against 70.00 ± 1.00 (TENT; not complete on the same images: PL, "
        in page
    )
    assert "| -10.00 ± 0.00 | no, the opposite |" in page
    assert page.count("- Scale `day`: The main tables on CIFAR") == 1
    assert "**CreTTA is the most accurate under corruption.** No:" in page
    assert "`cretta reproduce accuracy --scale day`." in page
    assert "Likely reason" not in page


def test_a_factor_that_is_missed_is_not_the_opposite(writer: ModuleType) -> None:
    rows = (Row("CreTTA", (Cell(10.0),)), Row("TEA", (Cell(50.0),)))
    costs = Table("costs", "Costs", "Method", (Column("GFLOPs", better="lower"),), rows)
    for row, factor, difference, answer in (
        ("CreTTA", 4.0, "5.0 times; claimed: 4", "yes"),
        ("CreTTA", 8.0, "5.0 times; claimed: 8", "no"),
        ("TEA", 1.0, "+40.00", "no, the opposite"),
    ):
        claim = Claim(text="", row=row, factor=factor)
        (finding,) = judge(claim, [costs])
        assert writer.finding_row(claim, finding)[-2:] == (difference, answer)


def test_a_difference_within_the_points_claimed_has_its_margin_and_a_change_no_rival(writer: ModuleType) -> None:
    rows = tuple(
        Row(label, (Cell(sum(blocks) / 3, blocks=blocks),))
        for label, blocks in (("CreTTA", (80.0, 81.0, 82.0)), ("10%", (80.5, 81.1, 82.6)))
    )
    table = Table("made", "Made", "Method", (Column("Acc", better="higher"),), rows)
    # Differences -0.5, -0.1 and -0.6: mean -0.4, deviation 0.2646; t of 2 degrees of freedom at 5 %: 4.303.
    for within, answer in ((1.1, "yes"), (1.0, "not significantly")):
        claim = Claim(text="", row="CreTTA", within=within)
        (finding,) = judge(claim, [table])
        assert writer.finding_row(claim, finding)[-2:] == ("-0.40 ± 0.66", answer)
    claim = Claim(text="", row="CreTTA", than=("0",), better="higher")
    (finding,) = judge(claim, [table])
    assert writer.finding_row(claim, finding)[-3:] == ("+81.00", "+81.00 ± 2.48", "yes")


def test_reasons_are_shown_only_of_what_was_run(writer: ModuleType) -> None:
    (writer.RESULTS / "reasons.toml").write_text('accuracy = "The network is another one."')
    assert "Likely reason: The network is another one." in writer.verdict()
    assert len(writer.shown("main")) == 1
    (writer.RESULTS / "reasons.toml").write_text('accuracy = "The network is another one."\nmain = "accuracy"')
    assert writer.reasons()["main"] == "The network is another one."
    (writer.RESULTS / "reasons.toml").write_text('pacs = "Invented."')
    with pytest.raises(ValueError, match="reasons of items without results: pacs"):
        writer.verdict()


def test_when_not_to_use_it_is_what_was_measured(writer: ModuleType) -> None:
    lines = writer.worse_than_simple()
    assert "- CIFAR10-C, severity 5, Acc: CreTTA 60.00 ± 1.00, BN Adapt 65.00 ± 1.00 (`accuracy`)." in lines
    assert "Source" not in lines
    assert "CIFAR100" not in lines
    assert "not significantly worse" not in lines
    # Of seed 0, in one batch of 1 000 images: 64 % against 59 %, at a confidence of 75 %.
    methods = "64.00 / 11.00 | 69.00 / 6.00 | 49.00 / 26.00 | 59.00 / 16.00"
    assert f"| 1000 | {methods} | -5.00 ± 0.00 | +5.00 ± 0.00 |" in writer.by_length()
    assert (
        "over 4 000 images of a corruption, mean of 15, first seed, CreTTA has -5.00 ± 0.00 points of accuracy and "
        in (longer := writer.longer_streams())
    )
    assert "points of accuracy and +5.00 ± 0.00 points of ECE against BN Adapt" in longer
    assert "and -10.00 ± 0.00 points of accuracy and +10.00 ± 0.00 points of ECE against TENT" in longer
    assert "no shift" in writer.situations()
    ((*_, source, simple, cretta, _, file),) = writer.no_shift()
    assert (source, simple, cretta, file) == ("49.0 / 26.0", "64.0 / 11.0", "59.0 / 16.0", "`paper/runs.csv`")
    assert lines in writer.not_to_use()


def test_situations_have_the_numbers_of_their_files(
    writer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BENCHMARKS", tmp_path)
    assert "json" not in writer.situations()
    streams = [
        {"collapse": False, "dataset": "cifar10", "method": method, "accuracy": accuracy}
        for method, accuracies in {"source": (0.5, 0.6), "bn_adapt": (0.7, 0.7), "cretta": (0.7, 0.6)}.items()
        for accuracy in accuracies
    ]
    (tmp_path / "estimates.json").write_text(json.dumps(streams))
    networks = [
        {"network": "n", "variant": variant, "images": 9, "accuracy": 0.5, "ECE": 0.1, "confidence": confidence}
        for variant, confidence in {
            "source": 0.4,
            "bn_adapt": 0.4,
            "cretta": 0.3,
            "cretta, calibrate=auto": 0.5,
        }.items()
    ]
    confident = [{**row, "network": "m", "confidence": 0.9} for row in networks]
    (tmp_path / "calibrate.json").write_text(json.dumps(networks + confident))
    text = writer.situations()
    assert "| 150 each | 55.0 / – | 70.0 / – | 65.0 / – |  | `estimates.json` |" in text
    assert "mean confidence 40.0, with CreTTA 30.0 | `n` | 9 | 50.0 / 10.0 |" in text
    assert "`m`" not in text


def test_sizes_of_batches(writer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BENCHMARKS", tmp_path)
    assert "not measured yet (`python benchmarks/batch_sizes.py`)" in writer.by_batch_size()

    def row(part: str, size: int, method: str, *blocks: float) -> dict[str, object]:
        return {
            "network": "n",
            "part": part,
            "domains": ["clean"] if part == "clean" else ["fog/5", "snow/5"],
            "method": method,
            "batch": size,
            "images": 60,
            "accuracy": sum(blocks) / len(blocks),
            "ECE": 5.0,
            "accuracy of blocks": blocks if len(blocks) > 2 else (),
        }

    auto, moving = (f'cretta, statistics="{statistics}"' for statistics in ("auto", "moving"))
    same = (50.0, 60.0, 70.0)
    measured = [row("shifted", size, "source", *same) for size in (8, 4, 2)]
    measured += [row("shifted", size, "bn_adapt", *(x + size - 3 for x in same)) for size in (8, 4, 2)]
    measured += [row("shifted", size, "tent", *(x - 1 for x in same)) for size in (8, 4, 2)]
    measured += [row("shifted", size, "cretta", *(x + size - 3 for x in same)) for size in (8, 4)]
    # Differences of 1, 2 and 3 points: mean 2, deviation 1; t of 2 degrees of freedom at 5 %: 4.303, over sqrt(3).
    measured += [row("shifted", 2, "cretta", 51.0, 62.0, 73.0)]
    measured += [row("shifted", size, auto, *(x + (size == 4) for x in same)) for size in (8, 4, 2)]
    measured += [row("shifted", size, moving, *(x + 1 for x in same)) for size in (8, 4, 2)]
    path = tmp_path / "batch_sizes.json"
    path.write_text(json.dumps({str(index): own for index, own in enumerate(measured)}))
    text = writer.by_batch_size()
    assert "mean of `fog/5`, `snow/5`, each with a reset" in text
    assert "`n`, the same 30 images" in text
    assert (
        "| 2 | 60.0 / 5.0 | 59.0 / 5.0 | 59.0 / 5.0 | 62.0 / 5.0 | 60.0 / 5.0 | 61.0 / 5.0 | +2.00 ± 2.48 |\n"
        "| 4 | 60.0 / 5.0 | 61.0 / 5.0 | 59.0 / 5.0 | 61.0 / 5.0 | 61.0 / 5.0 | 61.0 / 5.0 | +1.00 ± 0.00 |\n"
    ) in text
    assert text.endswith(
        "BN Adapt, CreTTA: from 4 images per batch on; TENT: with no number; "
        'CreTTA, `statistics="auto"`: with 4; CreTTA, `statistics="moving"`: from 2 images per batch on.'
    )
    # A size that not all methods have is left out, and a margin that too few blocks cannot give.
    measured = [row("shifted", 4, "source", 60.0), row("shifted", 4, "cretta", 70.0), row("shifted", 2, "source", 60.0)]
    measured += [row("clean", 4, "source", 90.0), row("clean", 4, "bn_adapt", 80.0)]
    path.write_text(json.dumps({str(index): own for index, own in enumerate(measured)}))
    text = writer.by_batch_size()
    assert "| 4 | 60.0 / 5.0 | 70.0 / 5.0 | +10.00 |\n\n" in text
    assert "| 2 |" not in text
    assert "CreTTA: with no number.\n\nOn the clean images:" in text
    assert text.endswith("| 4 | 90.0 / 5.0 | 80.0 / 5.0 |")


def test_the_table_of_the_readme(writer: ModuleType) -> None:
    table = writer.main_results()
    assert "**CIFAR10-C, severity 5, mean over 15 corruptions**" in table
    # Errors of 31, 30 and 29 % by seed, at a confidence of 75 %; the source model's is 51 %.
    assert "| TENT | **70.00 ± 1.00** | **5.00 ± 1.00** | **58.82 ± 1.96** | 4 |" in table
    assert "CIFAR100" not in table


def test_a_readme_with_incomplete_results(writer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run for run in get("accuracy").plan(DAY) if run.data == "cifar10" and not run.seed and not run.images]
    main = [run for run in runs if run.method in ("source", "bn_adapt", "tent", "cretta")]
    absent = next(run for run in main if run.method == "cretta" and run.domains[0].severity == 5)
    for folder, done, methods in (
        (tmp_path / "few", main[:5], []),
        (tmp_path / "most", [run for run in main if run != absent], ["Source", "BN Adapt", "TENT"]),
        (tmp_path / "all", main, ["Source", "BN Adapt", "TENT", "CreTTA"]),
    ):
        write_summary(results(done, batches=4), dict.fromkeys(done, "cretta reproduce"), folder)
        monkeypatch.setattr(writer, "RESULTS", folder)
        for cached in (writer.results, writer.scale_of, writer.shown):
            cached.cache_clear()
        text = writer.main_results()
        assert re.findall(r"^\| ([A-Z][A-Za-z ]+?) \| [*\d]", text, re.MULTILINE) == methods
        assert ("No complete results" in text) is (not methods)
        assert ("Acc: CreTTA 14 of 45 runs" in text) is (folder.name == "most")
        for text in (writer.by_length(), writer.longer_streams()):
            assert ("not measured yet" in text) is (folder.name != "all")
    assert (
        "| `main` | Table 1 | CreTTA has a lower mCE than all other methods. | undecided | 1 of 6 |" in writer.verdict()
    )


def test_settings_that_were_tried(writer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BENCHMARKS", tmp_path)
    assert writer.tried() == "Not measured yet: `python benchmarks/settings.py`."

    def row(setting: str, accuracy: float, error: float) -> dict[str, object]:
        return {
            "network": "n",
            "part": "drift",
            "setting": setting,
            "images": 1200,
            "batch": 50,
            "accuracy": accuracy,
            "ECE": error,
            "accuracy of blocks": [accuracy - 1, accuracy, accuracy + 1],
            "ECE of blocks": [error - 1, error, error + 1],
            "GFLOPs per batch": 10.0,
        }

    measured = [
        row("tent", 80, 5),
        row("cretta: paper", 81, 4),
        row("cretta: lr 3e-3", 82, 3),
        row("cretta: lr 1e-2", 82, 4),
    ]
    (tmp_path / "settings.json").write_text(json.dumps({str(index): own for index, own in enumerate(measured)}))
    text = writer.tried()
    assert "**n, four corruptions in a row without a reset: 1200 images in batches of 50**" in text
    assert "| cretta: lr 3e-3 | **82.00** | **3.00** | 40 |" in text
    others = "source; bn\\_adapt; shot; tent: lr 3e-3; shot: lr 3e-3"
    assert f"Not measured yet: {others}; cretta: lr 3e-3, β 0.1, reference batch;" in text
    assert "Ahead of tent, cretta: paper in both accuracy and ECE: cretta: lr 3e-3 (significantly)." in text


def test_streams_without_a_reset_are_shown_together_and_without_the_guard(writer: ModuleType) -> None:
    def part(data: str, guarded: float) -> Table:
        columns = tuple(Column("Acc", group, "higher") for group in ("guard off", "guard on"))
        rows = tuple(
            Row(label, (Cell(own), Cell(other))) for label, own, other in (("PL", 50.0, guarded), ("TENT", 70.0, 70.0))
        )
        return Table("made", f"In a row, {data}", "Method", columns, rows, (f"{data}: invented.", "`guard` is on."))

    parts = [part("CIFAR10-C", 60.0), part("CIFAR100-C", 50.0)]
    whole = writer.together("In a row", parts)
    assert [column.group for column in whole.columns] == ["CIFAR10-C", "CIFAR100-C"]
    assert [[cell.value for cell in row.cells] for row in whole.rows] == [[50.0, 50.0], [70.0, 70.0]]
    assert whole.notes == ("CIFAR10-C: invented.", "CIFAR100-C: invented.")
    assert [sentence for part in parts for sentence in writer.with_guard(part)] == [
        'In a row, CIFAR10-C, with `guard="rollback"`, accuracy / ECE: PL 60.00 in place of 50.00; '
        "all others as without it.",
        'In a row, CIFAR100-C, with `guard="rollback"`: all methods as without it.',
    ]
