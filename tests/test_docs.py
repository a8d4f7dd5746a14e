"""What the documents show must run, and what they list must be what the code says."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import cretta
from processes import LONG

ROOT = Path(__file__).parent.parent
WRITER = runpy.run_path(str(ROOT / "scripts" / "write_docs.py"))
ARCHITECTURE = runpy.run_path(str(ROOT / "scripts" / "write_architecture.py"))


def test_the_page_of_models_names_every_kind() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    kinds = ("shipped", "checkpoint", "pretrained", "python")
    assert [kind for kind in kinds if f"| `{kind}` |" not in page] == []


def test_generated_parts_are_what_code_and_results_say() -> None:
    written, names = WRITER["written"], WRITER["PARTS"]
    text = "".join(page.read_text() for page in WRITER["pages"]())
    assert [name for name in names if f"<!-- generated: {name} -->" not in text] == []
    for page in WRITER["pages"]():
        assert written(page.read_text()) == page.read_text(), f"{page.name}: run python scripts/write_docs.py"
    assert (
        written("<!-- generated: licenses -->\nold\n<!-- end -->") != "<!-- generated: licenses -->\nold\n<!-- end -->"
    )


def test_there_is_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/cretta/__init__.py"
    assert f"\nversion: {cretta.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_addresses_agree() -> None:
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    assert f"repository-code: {source}\n" in (ROOT / "CITATION.cff").read_text()


def test_doctests_and_roles_become_markdown() -> None:
    docstring = "See :func:`energy`.\n\n>>> 1 + 1\n2\n\nMore."
    markdown = runpy.run_path(str(ROOT / "scripts" / "docstrings.py"))["markdown"]
    assert markdown(docstring) == "See `energy`.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."


def test_equations_become_mathml() -> None:
    fence = runpy.run_path(str(ROOT / "scripts" / "mathml.py"))["fence"]
    text = fence("E = -T\n\n\\frac{a}{b}\n", "math", "math", {}, None)
    assert text.count("<math ") == 2
    assert "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi></mrow></mfrac>" in text


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("builder", ["mkdocs", "zensical"])
def test_the_site_is_built_without_a_warning(builder: str) -> None:
    program = Path(sys.executable).parent / builder
    if not program.is_file():
        pytest.skip(f"{builder} is not installed: pip install 'cretta[docs]'")
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:  # Zensical writes below the project only
        site = Path(folder) / "site"
        environment = {**os.environ, "SITE": str(site), "PYTHONPATH": "scripts:src", "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(
            [program, "build", "--strict"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        start, theory = (site / "index.html").read_text(), (site / "theory" / "index.html").read_text()
        assert "Keep an image classifier accurate" in start
        assert "<math " in theory
        assert "contrastive_loss" in (site / "api" / "functional" / "index.html").read_text()
        # What a page loads when it is opened; links are only followed by readers.
        loaded = re.findall(r"<(?:script|img|link rel=\"?stylesheet)[^>]*(?:src|href)=\"?(https?://[^\" >]+)", start)
        assert loaded == []


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ["workflows/ci.yml", "workflows/release.yml"]),
        ("dependabot", ["dependabot.yml"]),
        ("github-issue-forms", ["ISSUE_TEMPLATE/bug.yml", "ISSUE_TEMPLATE/idea.yml"]),
        ("github-issue-config", ["ISSUE_TEMPLATE/config.yml"]),
        ("citation-file-format", ["../CITATION.cff"]),
    ],
)
def test_files_for_other_services_fit_their_schema(schema: str, files: list[str]) -> None:
    program = pytest.importorskip("check_jsonschema", reason="pip install check-jsonschema").main
    paths = [str(ROOT / ".github" / file) for file in files]
    done = CliRunner().invoke(program, ["--builtin-schema", f"vendor.{schema}", *paths])
    assert done.exit_code == 0, done.output
    assert "ok -- validation done" in done.output


@pytest.mark.process
def test_workflows_have_no_known_weakness() -> None:
    program = Path(sys.executable).parent / "zizmor"
    if not program.is_file():
        pytest.skip("zizmor is not installed: pip install zizmor")
    command = [str(program), "--offline", "--quiet", str(ROOT / ".github")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_of_methods_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    method_table = runpy.run_path(str(ROOT / "scripts" / "write_method_table.py"))["method_table"]
    assert f"-->\n{method_table()}\n<!-- end of table -->" in page


def test_the_page_of_speed_is_what_the_benchmarks_measured() -> None:
    page = (ROOT / "docs" / "speed.md").read_text()
    speed = runpy.run_path(str(ROOT / "scripts" / "write_speed.py"))
    assert speed["render"](page) == page
    saved = [json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("*/*.json")]
    assert any("wrn limits" in content for content in saved)


def test_a_part_of_the_page_of_speed_that_is_missing_is_an_error() -> None:
    speed = runpy.run_path(str(ROOT / "scripts" / "write_speed.py"))
    with pytest.raises(ValueError, match=r"expected the parts .* got \['steps'\]"):
        speed["render"]("<!-- generated: steps -->\n<!-- end -->")


def test_the_generated_parts_of_the_architecture_are_what_the_code_says() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    edges = ARCHITECTURE["graph"]()
    assert ARCHITECTURE["module_table"]() in page
    assert ARCHITECTURE["drawing"](edges) in page
    assert ARCHITECTURE["import_table"](edges) in page


def test_an_import_cycle_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected no import cycle, got one among \\['a', 'b'\\]"):
        ARCHITECTURE["layers"]({"a": {"b"}, "b": {"a"}, "c": set()})


@pytest.mark.slow
def test_a_batch_passes_through_few_functions_and_the_page_lists_them() -> None:
    stacks = ARCHITECTURE["stacks"]()
    assert stacks in (ROOT / "docs" / "architecture.md").read_text()
    counts = [int(count) for count in re.findall(r"`: (\d+) functions", stacks)]
    assert len(counts) == 3
    assert max(counts) <= 12


def test_the_tables_of_scaling_are_those_of_its_results() -> None:
    scale = runpy.run_path(str(ROOT / "benchmarks" / "scale.py"))
    page = (ROOT / "docs" / "scaling.md").read_text()
    results = json.loads((ROOT / "benchmarks" / "results" / "scale.json").read_text())
    assert scale["page"](page, results) == page
    assert page.count("<!-- generated: ") == len(scale["tables"](results))
    assert results["lost"]["seconds"] < 30
