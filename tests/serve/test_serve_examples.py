"""The examples of deployment fit the service."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cretta.cli import app as cli

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "serve"
SERVE: Any = get_command(cli).commands["serve"]  # type: ignore[attr-defined]  # a group
OPTIONS = {name for parameter in SERVE.params for name in parameter.opts}


def used_options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    from cretta.serve.metrics import Metrics

    names = {sample.name for family in Metrics(lambda: 0.0).registry.collect() for sample in family.samples} | {
        f"{family.name}_total" for family in Metrics(lambda: 0.0).registry.collect() if family.type == "counter"
    }
    gauges = {family.name for family in Metrics(lambda: 0.0).registry.collect() if family.type == "gauge"}
    dashboard = json.loads((EXAMPLES / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for expression in expressions for name in re.findall(r"cretta_\w+", expression)}
    assert asked <= names | gauges
    for name in (
        *("requests_total", "images_total", "batches_total", "steps_total", "guard_events_total", "energy"),
        *("queue_seconds_bucket", "predict_seconds_bucket", "adapt_seconds_bucket", "confidence_ratio"),
        *("estimated_accuracy_ratio", "drift_score"),
    ):
        assert f"cretta_{name}" in asked


def test_kubernetes_probes_are_routes_and_options_exist() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    documents = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Service", "StatefulSet"]
    spec = documents[1]["spec"]
    assert spec["replicas"] == 1
    (container,) = spec["template"]["spec"]["containers"]
    probes = {container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {"/v2/health/ready", "/v2/health/live"}
    assert used_options(" ".join(container["args"])) <= OPTIONS
    yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())


def test_dockerfile_and_unit_use_options_that_exist() -> None:
    entry = re.search(r"^ENTRYPOINT (.*)$", (EXAMPLES / "Dockerfile").read_text(), re.MULTILINE)
    assert entry
    assert used_options(" ".join(json.loads(entry[1]))) <= OPTIONS
    start = re.search(r"^ExecStart=(.*)$", (EXAMPLES / "cretta.service").read_text(), re.MULTILINE)
    assert start
    assert used_options(start[1]) <= OPTIONS


@pytest.mark.process
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there: the unit is not verified")
    unit = tmp_path / "cretta.service"
    text = (EXAMPLES / "cretta.service").read_text().replace("/opt/cretta/bin/cretta", "/bin/true")
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "cretta.service" in line] == []


def test_the_ray_example_calls_what_exists() -> None:
    import inspect

    from cretta.serve import Settings, app

    tree = ast.parse((EXAMPLES / "ray_serve.py").read_text())
    (call,) = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "app"]
    known = {*inspect.signature(app).parameters, *Settings.names()}
    assert {keyword.arg for keyword in call.keywords} <= known


def test_the_tables_of_the_benchmark_are_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "serve.py"))
    written, survived = benchmark["written"], benchmark["survived"]
    page = (ROOT / "docs" / "serving.md").read_text()
    assert written(page) == page
    machine = {"threads": 2, "torch": "2", "kernels": "avx2", "date": "2026-01-01", "processor": "X", "cores": 2}
    row = {"statistics": "auto", "images": "noise", "before": 90.0, "after": 89.0, "adapted": 1}
    row["guard"] = {"rollback": 2}
    load = {"machine": machine, "images": 5000, "service / library": 0.91234}
    poison = {"batches": 50, "batch size": 64, "clean images": 500, "rows": [row]}
    (tmp_path / "x").mkdir()
    for name, content in (("serve.json", load), ("serve-poison.json", poison)):
        (tmp_path / "x" / name).write_text(json.dumps(content))
    text = written(page, tmp_path)
    assert "**X, 2 cores**" in text
    assert "| images | 5000 |\n| service / library | 0.912 |\n\n<!-- end -->" in text
    assert "| `auto` | noise | 90.0 | 89.0 | 1 | rollback 2 × |\n\n<!-- end -->" in text
    assert written(text, tmp_path / "none").count("Not measured yet") == 2
    assert survived(row)
    assert not survived({**row, "after": 88.9})
    assert not survived({**row, "guard": {}})
    with pytest.raises(ValueError, match="expected the comment <!-- generated: load --> once, got it 0 times"):
        written("a page without tables")


def test_the_page_documents_every_setting_and_metric() -> None:
    from cretta.serve.metrics import Metrics

    page = (ROOT / "docs" / "serving.md").read_text()
    settings_table = runpy.run_path(str(ROOT / "scripts" / "write_settings_table.py"))["settings_table"]
    assert f"-->\n\n{settings_table()}\n\n<!-- end -->" in page
    families = list(Metrics(lambda: 0.0).registry.collect())
    names = [f"{family.name}_total" if family.type == "counter" else family.name for family in families]
    assert [name for name in names if f"`{name}" not in page] == []
