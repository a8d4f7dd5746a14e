from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cretta.bench import Domain, Run, RunContext, Store, run_all
from cretta.cli import app
from made_results import comparison


def filled(folder: Path) -> Path:
    store = Store(folder)
    for result in comparison():
        store.put(result)
    return folder


def report(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *arguments])
    assert "Traceback" not in result.output + result.stderr
    return result.exit_code, " ".join((result.output + result.stderr).split())


def test_a_page_of_a_real_run_and_of_what_else_the_store_has(tmp_path: Path) -> None:
    folder = filled(tmp_path / "results")
    run = Run(
        data="embedded",
        domains=Domain.parse_all("fog/3"),
        model="wrn-40-2-cifar10",
        method="source",
        images=8,
        batch_size=4,
    )
    list(run_all([run], Store(folder), RunContext()))
    output = tmp_path / "page.html"
    code, said = report("--store", str(folder), "--output", str(output), "--title", "Mine")
    assert code == 0, said
    size = output.stat().st_size
    assert f"Page of 13 runs, {size / 1e3:.0f} kB:" in said
    page = output.read_text(encoding="utf-8")
    assert "<title>Mine</title>" in page
    assert '"shift":' in page
    assert "fog/3" in page


def test_tables_and_figures_as_files(tmp_path: Path) -> None:
    folder, files = filled(tmp_path / "results"), tmp_path / "some" / "files"
    code, said = report("--store", str(folder), "--output", str(tmp_path / "page.html"), "--files", str(files))
    assert code == 0, said
    tables = {f"{name}{suffix}" for name in ("summary", "shifts") for suffix in (".md", ".csv")}
    assert {path.name for path in files.iterdir()} == tables | {f"accuracy-ece.{end}" for end in ("pdf", "png", "svg")}
    assert "**" in (files / "summary.md").read_text(encoding="utf-8")
    assert "7 files in" in said


def test_the_store_is_named_results_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filled(Path("results"))
    code, said = report()
    assert code == 0, said
    assert Path("cretta-report.html").is_file()


def test_an_empty_store_tells_what_to_run(tmp_path: Path) -> None:
    for folder in (tmp_path / "absent", tmp_path):
        code, said = report("--store", str(folder), "--output", str(tmp_path / "page.html"))
        assert code == 2
        assert "no results in" in said
        assert "cretta run" in said
    assert not list(tmp_path.iterdir())


def test_a_damaged_result_is_told_and_left_out(tmp_path: Path) -> None:
    folder = filled(tmp_path / "results")
    (folder / f"{'0' * 24}.parquet").write_bytes(b"nothing of the kind")
    code, said = report("--store", str(folder), "--output", str(tmp_path / "page.html"))
    assert code == 0, said
    assert "A damaged result is left out" in said
    assert "Page of 12 runs" in said
    only = tmp_path / "only"
    only.mkdir()
    (only / f"{'0' * 24}.parquet").write_bytes(b"nothing of the kind")
    code, said = report("--store", str(only), "--output", str(tmp_path / "page.html"))
    assert code == 2
    assert "are damaged" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--output", "page.pdf"], ".html"),
        (["--output", "nowhere/page.html"], "nowhere"),
    ],
)
def test_bad_requests_get_a_message_before_any_work(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = report(*arguments)
    assert code == 2
    assert told in said
    assert not list(tmp_path.iterdir())
