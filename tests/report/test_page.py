from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cretta.bench import Domain
from cretta.errors import OptionError, StateError
from cretta.report.content import Cell, Chart, Column, Panel, Row, Series, Table
from cretta.report.groups import grouped
from cretta.report.page import payload, write_page
from cretta.report.styles import styles
from made_results import comparison, made_result, scores_of

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'"
EMPTY = ("area", "base", "br", "col", "hr", "img", "input", "link", "meta")


class Reader(HTMLParser):
    """Checks that elements are closed in order and that no id is given twice; keeps what a page holds."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    names = [attributes["id"] for _, attributes in reader.seen if "id" in attributes]
    assert len(names) == len(set(names))
    return reader


def data_of(path: Path) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert match
    data: dict[str, Any] = json.loads(match[1])
    return data


def everything(path: Path, name: str = "plain") -> int:
    table = Table(name, name, name, (Column(name, name),), (Row(name, (Cell(1.0),), name),), (name,))
    chart = Chart(name, name, (Panel(name, name, name, "line", (Series(name, (1, 2), (1.0, 2.0)),)),), (name,))
    results = [*comparison(), made_result(name, (name,), options={name: name}, data=name, preset=name)]
    return write_page(results, path, tables=[table], charts=[chart], notes=[name], title=name)


def test_a_page_is_whole_and_asks_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert everything(path) == path.stat().st_size
    page = path.read_text(encoding="utf-8")
    reader = read(path)
    assert page.startswith("<!doctype html>\n<html lang=")
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in reader.seen
    for tag, attributes in reader.seen:
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    # What looks like an address names a vocabulary of SVG, and is not one.
    outside = re.sub(r'xmlns(:\w+)?="[^"]*"|"http://www.w3.org/2000/svg"', "", page)
    assert "http:" not in outside
    assert "https:" not in outside
    assert "@import" not in page
    assert "{{" not in page
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


def test_only_the_script_of_the_page_may_run(tmp_path: Path) -> None:
    everything(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert f"script-src 'sha256-{digest}'" in html.unescape(policy[1])
    assert "default-src 'none'" in html.unescape(policy[1])


def test_hostile_names_are_text(tmp_path: Path) -> None:
    everything(tmp_path / "page.html", HOSTILE)
    reader = read(tmp_path / "page.html")
    assert [tag for tag, _ in reader.seen].count("script") == 2
    assert not any(name.startswith("on") for _, attributes in reader.seen for name in attributes)
    assert [attributes for tag, attributes in reader.seen if tag == "img" and attributes.get("src") == "x"] == []
    assert data_of(tmp_path / "page.html")["tables"][0]["title"] == HOSTILE


def test_the_same_page_every_time(tmp_path: Path) -> None:
    everything(tmp_path / "one.html")
    everything(tmp_path / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_the_overview_counts(tmp_path: Path) -> None:
    results = comparison(images=200)
    write_page(results, tmp_path / "page.html")
    text = read(tmp_path / "page.html").text
    assert "runs 12 methods 3 dataset 1 shifts 2 seeds 2 images predicted 14\u202f400".replace("\u202f", " ") in text


def test_sections_without_content_are_left_out(tmp_path: Path) -> None:
    table = Table("t", "T", "m", (Column("x"),), (Row("r", (Cell(1.0),)),))
    write_page([], tmp_path / "page.html", tables=[table])
    ids = {attributes.get("id") for _, attributes in read(tmp_path / "page.html").seen}
    assert "tables" in ids
    assert not ids & {"curves", "reliability", "settings", "charts", "overview"}
    with pytest.raises(OptionError, match="nothing to show"):
        write_page([], tmp_path / "nothing.html")
    assert not (tmp_path / "nothing.html").exists()


def test_curves_are_the_measures_of_the_rows_so_far(tmp_path: Path) -> None:
    result = made_result("cretta", ("fog/5", "snow/5"))
    write_page([result], tmp_path / "page.html")
    data = data_of(tmp_path / "page.html")
    run = data["groups"][0]["runs"][0]
    rows = list(result.rows)
    assert run["images"] == 20
    assert run["right"] == [row.right for row in rows]
    assert run["running"] == pytest.approx(
        [100 * scores_of(rows[:end]).calibration_error for end in range(1, len(rows) + 1)], rel=1e-5
    )
    assert run["ece"] == pytest.approx([100 * scores_of([row]).calibration_error for row in rows], rel=1e-5)
    assert run["energy"] == pytest.approx([row.energy for row in rows], rel=1e-5)
    assert run["source"] == pytest.approx([row.source_energy for row in rows], rel=1e-5)
    assert run["skipped"] == [[2, "the loss is not finite"]]
    assert [[data["names"][index], count] for index, count in run["domains"]] == [["fog/5", 6], ["snow/5", 6]]
    assert run["bins"][0] == [sum(row.bin_images[bin] for row in rows) for bin in range(10)]
    assert sum(run["bins"][2]) == sum(row.right for row in rows)


def test_one_of_a_kind_is_counted_in_the_singular(tmp_path: Path) -> None:
    write_page([made_result("cretta", ("fog/5", "snow/5"))], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    for name, count in (("run", 1), ("method", 1), ("dataset", 1), ("shifts", 2), ("seed", 1)):
        assert f"<dt>{name}</dt><dd>{count}</dd>" in page


def test_columns_without_numbers_are_left_out(tmp_path: Path) -> None:
    write_page([made_result("source")], tmp_path / "page.html")
    run = data_of(tmp_path / "page.html")["groups"][0]["runs"][0]
    assert not {"source", "weight", "loss"} & run.keys()


def test_batches_of_unequal_size_and_numbers_that_are_none(tmp_path: Path) -> None:
    result = made_result("tent")
    rows = (*result.rows[:-1], dataclasses.replace(made_result("tent", images=7).rows[0], energy=math.nan))
    write_page([dataclasses.replace(result, rows=rows)], tmp_path / "page.html")
    run = data_of(tmp_path / "page.html")["groups"][0]["runs"][0]
    assert run["images"] == [20] * 5 + [7]
    assert run["energy"][-1] is None


def test_long_runs_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "POINTS", 4)
    result = made_result("cretta", batches=10)
    run = payload.groups_payload(grouped([result]), styles(["cretta"]))["groups"][0]["runs"][0]
    rows = list(result.rows)
    assert run["block"] == 3
    assert run["batches"] == 10
    assert run["right"] == [sum(row.right for row in rows[start : start + 3]) for start in (0, 3, 6, 9)]
    assert run["images"] == [60, 60, 60, 20]
    assert run["running"][-1] == pytest.approx(100 * scores_of(rows).calibration_error, rel=1e-5)
    assert run["ece"][1] == pytest.approx(100 * scores_of(rows[3:6]).calibration_error, rel=1e-5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1 / 3, 0.333333), (1234567.0, 1234570), (2.0, 2), (math.nan, None), (math.inf, None), (None, None), (-0.0, 0)],
)
def test_six_digits(value: float | None, expected: float | None) -> None:
    assert payload.short(value) == expected


def test_json_cannot_leave_its_element() -> None:
    text = payload.script_json({"<!--": "</script>&\u2028"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"<!--": "</script>&\u2028"}


def test_charts_of_a_page_do_not_share_names(tmp_path: Path) -> None:
    panel = Panel("p", "x", "y", "bar", (Series("source", ("a", "b"), (1, 2)),))
    write_page([], tmp_path / "page.html", charts=[Chart("a", "A", (panel,)), Chart("a", "A", (panel,))])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    read(tmp_path / "page.html")
    names = set(re.findall(r' id="([^"]+)"', page))
    used = re.findall(r"url\(#([^)]+)\)", page.partition("<script")[0])
    assert used
    assert set(used) <= names


def test_runs_take_a_few_kilobytes_each(tmp_path: Path) -> None:
    base = made_result("cretta", batches=50, images=20)
    results = []
    for number in range(200):
        method = ("source", "bn_adapt", "tent", "tea", "cretta")[number % 5]
        domains = (Domain(f"shift{number // 25}", 5),)
        run = dataclasses.replace(base.run, method=method, domains=domains, seed=number // 5 % 5)
        results.append(dataclasses.replace(base, key=f"{number:024x}", run=run))
    least = write_page(results[:1], tmp_path / "one.html")
    assert (write_page(results, tmp_path / "page.html") - least) / len(results) < 5000
    assert len(data_of(tmp_path / "page.html")["groups"]) == 40


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot write"):
        write_page([made_result()], tmp_path / "nowhere" / "page.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(StateError, match="cannot write"):
        write_page([made_result()], tmp_path / "folder.html")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder.html"]
