"""The report page in a real browser: what a reader clicks, drags, types and sees."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from playwright.sync_api import expect

from browsing import DESKTOP, PATIENCE, chromium
from cretta.bench import Domain, Result
from cretta.report.content import Cell, Chart, Column, Panel, Row, Series, Table
from cretta.report.page import write_page
from made_results import comparison, made_result

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.process
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
PHONE = {"width": 360, "height": 740}
SETTING = "embedded, iid stream, severity 5, batches of 20, first 120 images, wrn-40-2-cifar10"
ALL = (1.0, 12.0)
"""The batches of the stream that is shown first."""

Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens a page; at the end, none may have complained, asked for anything else or shown a dialog."""
    contexts = []
    complaints: list[str] = []
    requests: list[str] = []

    def visited(path: Path, *, curves: bool = True, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        if curves:
            page.wait_for_selector(".curve", state="attached")
        assert {url for url in requests if not url.startswith("data:")} == {path.as_uri()}
        return page

    yield visited
    for context in contexts:
        context.close()
    assert complaints == []
    assert len([url for url in requests if not url.startswith("data:")]) == len(contexts)


def numbers_table() -> Table:
    values = (9.5, 100.0, -1.0, None, 10.0, 2.0, 30.0)
    rows = tuple(Row(f"row {index + 1}", (Cell(value, 0.25), Cell(printed=1.0))) for index, value in enumerate(values))
    return Table("numbers", "Numbers", "name", (Column("value", better="lower"), Column("other")), rows)


def grouped_table() -> Table:
    rows = tuple(
        Row(label, (Cell(value, None, 1.5),), group)
        for label, value, group in (("a", 3.0, "first"), ("b", 1.0, "first"), ("c", 2.0, "last"), ("d", 0.0, "last"))
    )
    return Table("grouped", "Grouped", "name", (Column("ECE %", "CIFAR-10-C", "lower"),), rows, ("A note.",))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    chart = Chart("c", "A chart", (Panel("p", "x", "y", "line", (Series("tent", (1, 2), (1.0, 2.0), (0.1, 0.1)),)),))
    streams = [made_result(method, ("fog/1", "fog/5"), data="cifar100") for method in ("source", "cretta")]
    write_page(
        [*comparison(), *streams],
        path,
        tables=[numbers_table(), grouped_table()],
        charts=[chart],
        notes=["A note in the overview."],
    )
    return path


def column(page: Page, table: str, index: int) -> list[str]:
    """The texts of a column, the row's name being the first."""
    texts: list[str] = page.eval_on_selector_all(
        f"[data-table='{table}'] tbody tr:not(.group) > :nth-child({index + 1})",
        "cells => cells.map(cell => cell.firstChild.textContent.trim())",
    )
    return texts


def header(page: Page, table: str, title: str) -> Locator:
    return page.locator(f"[data-table='{table}'] thead button", has_text=title)


def shown_range(page: Page) -> tuple[float, float]:
    drawn = page.locator("#plots figure:not([hidden]) .surface > svg").first
    return float(drawn.get_attribute("data-from") or "nan"), float(drawn.get_attribute("data-to") or "nan")


def settle(page: Page) -> None:
    """Waits for two frames: charts are drawn in the next one."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def middle(page: Page, measure: str = "accuracy") -> tuple[float, float, float, float]:
    """Where a chart is on the screen, scrolled to: x and y of its middle, width, height."""
    surface = page.locator(f"[data-metric='{measure}'] .surface")
    surface.scroll_into_view_if_needed()
    box = surface.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, box["width"], box["height"]


def test_tables_sort_by_number_both_ways(visit: Open, report: Path) -> None:
    page = visit(report)
    assert column(page, "numbers", 1) == ["9.50", "100.00", "-1.00", "–", "10.00", "2.00", "30.00"]
    head = header(page, "numbers", "value")
    head.click()
    up = ["-1.00", "2.00", "9.50", "10.00", "30.00", "100.00"]
    assert column(page, "numbers", 1) == [*up, "–"]
    assert page.locator("[data-table='numbers'] th[aria-sort='ascending']").inner_text().startswith("value")
    head.click()
    assert column(page, "numbers", 1) == [*up[::-1], "–"]  # what is missing stays last
    assert page.locator("[data-table='numbers'] th[aria-sort='descending']").count() == 1
    assert page.locator("[data-table='numbers'] th[aria-sort='ascending']").count() == 0
    assert column(page, "numbers", 0) == ["row 2", "row 7", "row 5", "row 1", "row 6", "row 3", "row 4"]


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_tables_sort_by_keyboard(visit: Open, report: Path, key: str) -> None:
    page = visit(report)
    header(page, "numbers", "name").focus()
    page.keyboard.press("Tab")
    page.keyboard.press(key)
    assert column(page, "numbers", 1)[:3] == ["-1.00", "2.00", "9.50"]
    page.keyboard.press(key)
    assert column(page, "numbers", 1)[:3] == ["100.00", "30.00", "10.00"]


def test_rows_stay_in_their_groups(visit: Open, report: Path) -> None:
    page = visit(report)
    header(page, "grouped", "ECE").click()
    rows = page.locator("[data-table='grouped'] tbody tr").all_inner_texts()
    assert [re.split(r"\s", row.strip())[0] for row in rows] == ["first", "b", "a", "last", "d", "c"]
    assert page.locator("[data-table='grouped'] tbody b").all_inner_texts() == ["0.00"]
    assert "paper 1.50 (-0.50)" in rows[1]


def test_words_filter_rows(visit: Open, report: Path) -> None:
    page = visit(report)
    box = page.get_by_label("Filter rows of: All runs")
    box.fill("cretta SNOW")
    rows = page.locator("[data-table='runs'] tbody tr")
    expect(rows).to_have_count(1)
    assert column(page, "runs", 0) == ["cretta"]
    assert column(page, "runs", 1) == ["snow/5"]
    assert "1 of 8 rows" in page.locator("[data-table='runs'] [role=status]").inner_text()
    box.fill("")
    expect(rows).to_have_count(8)


def test_numbers_of_the_runs_are_mean_and_deviation(visit: Open, report: Path) -> None:
    page = visit(report)
    values = [100 * made_result("tent", ("snow/5",), seed, skill=0.5).scores.accuracy for seed in (0, 1)]
    row = page.locator("[data-table='runs'] tbody tr", has_text="tent").filter(has_text="snow/5")
    expected = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert expected in row.inner_text()


def test_folded_tables_are_built_when_opened(visit: Open, report: Path) -> None:
    page = visit(report)
    fold = page.locator("details[data-table^='shifts']").last
    assert fold.locator("table").count() == 0
    fold.locator("summary").click()
    fold.locator("table").wait_for()
    assert fold.locator("tr.group").all_inner_texts() == ["fog/5", "snow/5"]


def test_a_curve_for_each_chosen_run(visit: Open, report: Path) -> None:
    page = visit(report)
    curves = page.locator("[data-metric='accuracy'] .curve")
    assert page.locator("#picker input:checked").count() == 2  # the methods of the first stream
    assert curves.count() == 2
    page.select_option("#picker select", label=f"fog/5 · {SETTING}")
    settle(page)
    assert curves.count() == 3
    assert page.locator("#legend .chip").all_inner_texts() == ["source\n×", "tent\n×", "cretta\n×"]
    assert page.locator("[data-metric='weight'] .curve").count() == 1
    for path in page.locator("#plots .curve").all():
        drawn = path.get_attribute("d") or ""
        points = [float(number) for number in re.findall(r"-?\d+\.\d", drawn)]
        assert len(points) == 2 * 6
        assert "NaN" not in drawn
        assert all(0 <= number <= 1280 for number in points)
    page.locator("#picker label", has_text="tent").filter(has_text="snow/5").locator("input").check()
    settle(page)
    assert curves.count() == 4
    assert "tent · snow/5" in page.locator("#legend").inner_text()
    page.get_by_label("Take away source · fog/5").click()
    settle(page)
    assert curves.count() == 3
    page.get_by_label("each seed apart").check()
    settle(page)
    assert curves.count() == 6
    page.locator("#picker button", has_text="None").click()
    settle(page)
    assert page.locator("#plots .curve").count() == 0
    assert page.get_by_text("No run is chosen.").count() == 2


def test_the_numbers_under_the_pointer(visit: Open, report: Path) -> None:
    page = visit(report)
    page.select_option("#picker select", label=f"fog/5 · {SETTING}")
    settle(page)
    x, y, width, _ = middle(page)
    page.mouse.move(x + width / 2 - 14, y)
    tip = page.locator("[data-metric='accuracy'] .tip").inner_text()
    values = [100 * made_result("cretta", ("fog/5",), seed, skill=0.8).scores.accuracy for seed in (0, 1)]
    assert tip.startswith("batch 6")
    shown = re.search(r"cretta\s+([\d.]+)", tip)
    assert shown
    assert float(shown[1]) == pytest.approx(np.mean(values), rel=1e-3)
    page.locator("label", has_text="each batch").click()
    settle(page)
    assert page.locator("[data-metric='accuracy'] figcaption").inner_text() == "Accuracy of each batch (%)"


def test_charts_zoom_together_and_come_back(visit: Open, report: Path) -> None:
    page = visit(report)
    assert shown_range(page) == ALL
    x, y, width, _ = middle(page)
    before = page.locator("[data-metric='ece'] .curve").first.get_attribute("d")
    page.mouse.move(x - width / 4, y)
    page.mouse.down()
    page.mouse.move(x, y, steps=4)
    page.mouse.move(x + width / 8, y, steps=4)
    page.mouse.up()
    settle(page)
    start, end = shown_range(page)
    assert 1 < start < 6 < end < 12
    ticks = page.locator("[data-metric='accuracy'] text.batch").all_text_contents()
    assert all(start <= float(tick) <= end for tick in ticks)
    assert page.locator("[data-metric='ece'] .curve").first.get_attribute("d") != before
    page.mouse.dblclick(x, y)
    settle(page)
    assert shown_range(page) == ALL
    assert page.locator("[data-metric='ece'] .curve").first.get_attribute("d") == before


def test_the_wheel_scrolls_the_page_until_a_chart_is_clicked(visit: Open, report: Path) -> None:
    page = visit(report)
    x, y, *_ = middle(page)
    page.mouse.move(x, y)
    settle(page)
    page.evaluate("addEventListener('scrollend', () => document.documentElement.setAttribute('data-scrolled', ''))")
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, -120)
    page.wait_for_selector("html[data-scrolled]")
    assert page.evaluate("scrollY") < before
    assert shown_range(page) == ALL
    x, y, *_ = middle(page)
    page.mouse.click(x, y)
    page.mouse.wheel(0, -240)
    settle(page)
    start, end = shown_range(page)
    assert end - start < 11
    page.mouse.wheel(0, 240)
    page.mouse.wheel(0, 240)
    settle(page)
    assert shown_range(page) == ALL
    assert page.get_by_role("button", name="Show all batches").count() == 0
    page.mouse.wheel(0, -240)
    page.get_by_role("button", name="Show all batches").click()
    settle(page)
    assert shown_range(page) == ALL


def test_charts_by_keyboard(visit: Open, report: Path) -> None:
    page = visit(report)
    chart = page.locator("[data-metric='accuracy']")
    chart.locator(".surface").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert chart.locator("[aria-live]").inner_text().startswith("batch 2 · fog/1: source ")
    page.keyboard.press("+")
    settle(page)
    start, end = shown_range(page)
    assert end - start < 11
    page.keyboard.press("Shift+ArrowRight")
    settle(page)
    assert shown_range(page)[0] > start
    page.keyboard.press("Escape")
    settle(page)
    assert shown_range(page) == ALL
    assert "2 curves, batches 1 to 12" in (chart.locator(".surface").get_attribute("aria-label") or "")


def test_charts_by_touch(visit: Open, report: Path) -> None:
    page = visit(report, viewport=PHONE, has_touch=True, is_mobile=True)
    x, y, *_ = middle(page)
    page.touchscreen.tap(x, y)
    assert page.locator("[data-metric='accuracy'] .tip").inner_text().startswith("batch ")
    session = page.context.new_cdp_session(page)

    def touch(kind: str, *xs: float, **options: float) -> None:
        points = [{"x": node, "y": y, "id": index} for index, node in enumerate(xs)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points, **options})

    touch("touchStart", x - 60)
    for step in range(1, 7):
        touch("touchMove", x - 60 + 20 * step)
    touch("touchEnd")
    settle(page)
    start, end = shown_range(page)
    assert 1 < start < end < 12
    now = time.time()
    for tap, expected in ((10, (start, end)), (11, (start, end)), (11.1, ALL)):
        touch("touchStart", x, timestamp=now + tap)  # the page compares these times, however late it hears of them
        touch("touchEnd", timestamp=now + tap)
        settle(page)
        assert shown_range(page) == expected
    touch("touchStart", x - 20, x + 20)
    for step in range(1, 6):
        touch("touchMove", x - 20 - 10 * step, x + 20 + 10 * step)
    touch("touchEnd")
    settle(page)
    start, end = shown_range(page)
    assert end - start < 7


def test_reliability_diagrams_of_the_chosen_runs(visit: Open, report: Path) -> None:
    page = visit(report)
    page.select_option("#picker select", label=f"snow/5 · {SETTING}")
    diagrams = page.locator("#diagrams figure")
    assert diagrams.count() == 3
    results = [made_result("source", ("snow/5",), seed, skill=0.2) for seed in (0, 1)]
    errors = [100 * result.scores.calibration_error for result in results]
    summary = f"ECE {np.mean(errors):.2f} ± {np.std(errors, ddof=1):.2f} %, 2 seeds"
    assert summary in diagrams.first.inner_text()
    rows = [row for result in results for row in result.rows]
    count, sure, right = (
        sum(getattr(row, name)[9] for row in rows) for name in ("bin_images", "bin_confidence", "bin_right")
    )
    titles = diagrams.first.locator("g.bin title").all_text_contents()
    assert titles[-1] == f"confidence {100 * sure / count:.1f} %: {100 * right / count:.1f} % right, {count} images"
    for box in diagrams.first.locator("g.bin rect").all():
        assert float(box.get_attribute("height") or "nan") >= 0


def test_axes_of_reliability_diagrams_have_names(visit: Open, report: Path) -> None:
    page = visit(report)
    for diagram in page.locator("#diagrams figure").all():
        texts = diagram.locator("svg[role=img] text")
        assert {"accuracy (%)", "images", "confidence (%)"} <= set(texts.all_text_contents())
        frame = diagram.locator("svg[role=img]").bounding_box()
        name = texts.filter(has_text="accuracy (%)").bounding_box()
        assert frame
        assert name
        assert name["height"] > name["width"]  # along the axis
        assert frame["x"] <= name["x"]


@pytest.mark.parametrize(("count", "rows"), [(3, [3]), (5, [3, 2]), (7, [4, 3]), (9, [3, 3, 3])])
def test_no_diagram_stands_alone_in_a_row(visit: Open, tmp_path: Path, count: int, rows: list[int]) -> None:
    methods = ("source", "bn_adapt", "pl", "shot", "tent", "eta", "eata", "sar", "cretta")[:count]
    write_page([made_result(method) for method in methods], tmp_path / "page.html")
    page = visit(tmp_path / "page.html")

    def counted() -> list[int]:
        tops = [round(box["y"]) for node in page.locator("#diagrams figure").all() if (box := node.bounding_box())]
        return [tops.count(top) for top in sorted(set(tops))]

    assert counted() == rows
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    settle(page)
    assert counted() == [1] * count


def test_markers_at_both_ends_are_whole(visit: Open, report: Path) -> None:
    page = visit(report)
    drawn = page.locator("[data-metric='accuracy'] .marker")
    assert drawn.count() == 2
    assert page.locator("#plots [clip-path] .marker").count() == 0
    surface = page.locator("[data-metric='accuracy'] .surface").bounding_box()
    assert surface
    boxes = [box for node in drawn.all() if (box := node.bounding_box())]
    edge = page.locator("[data-metric='accuracy'] .axis").bounding_box()
    assert edge
    # The first batch lies on the left edge of the plot: half of its marker is beyond, and none outside the chart.
    assert min(box["x"] for box in boxes) < edge["x"] - 2
    for box in boxes:
        assert surface["x"] <= box["x"]
        assert box["x"] + box["width"] <= surface["x"] + surface["width"]


def test_runs_of_one_batch_have_a_sentence_in_place_of_curves(visit: Open, tmp_path: Path) -> None:
    results = [made_result(method, seed=seed, batches=1) for method in ("source", "tent") for seed in (0, 1)]
    same = [dataclasses.replace(node, rows=results[0].rows) for node in results]  # the seeds see the same batch
    write_page(same, tmp_path / "page.html")
    page = visit(tmp_path / "page.html", curves=False)
    assert page.locator("#plots figure:visible").count() == 0
    assert page.get_by_text("These runs have one batch each: there are no curves over batches.").is_visible()
    assert not page.locator("#curve-bar").is_visible()
    assert page.locator("#diagrams figure").count() == 2
    assert "±" not in page.locator("#tables table").first.inner_text()
    assert "±" not in page.locator("#tables table").last.inner_text()
    assert "±" not in page.locator("#diagrams").inner_text()
    assert "±" not in page.locator("#overview").inner_text()


def test_a_measure_of_one_batch_is_named_and_not_drawn(visit: Open, tmp_path: Path) -> None:
    result = made_result("cretta")
    rows = tuple(dataclasses.replace(row, loss=row.loss if row.batch == 0 else None) for row in result.rows)
    write_page([dataclasses.replace(result, rows=rows)], tmp_path / "page.html")
    page = visit(tmp_path / "page.html")
    assert page.locator("[data-metric='weight']").is_visible()
    assert not page.locator("[data-metric='loss']").is_visible()
    assert page.get_by_text("Not recorded by these runs, or for one batch only: Loss.").is_visible()


@pytest.mark.parametrize("width", [1280, 1920])
def test_tables_of_all_measures_fit_the_page(visit: Open, tmp_path: Path, width: int) -> None:
    methods = ("source", "bn_adapt", "tent", "cretta")
    results = [
        made_result(method, domains, seed, data=data, options={"lr": 0.001, "beta": 2.0})
        for method in methods
        for seed in (0, 1)
        for domains, data in ((("gaussian_noise/5",), "embedded"), (("fog/1", "fog/3", "fog/5"), "tiny-imagenet"))
    ]
    write_page(results, tmp_path / "page.html")
    page = visit(tmp_path / "page.html", viewport={"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details[data-table]').forEach(node => node.open = true)")
    settle(page)
    assert page.locator("[data-table='runs'] thead th").count() == 13
    for box in page.locator("#table-list .scroll").all():
        assert box.evaluate("box => box.scrollWidth - box.clientWidth") == 0
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 1920])
def test_a_single_chart_stands_beside_the_counts(visit: Open, tmp_path: Path, width: int) -> None:
    write_page([made_result(method) for method in ("source", "tent")], tmp_path / "page.html")
    page = visit(tmp_path / "page.html", viewport={"width": width, "height": 900})
    assert page.locator("#charts").count() == 0
    facts = page.locator("#overview .facts").bounding_box()
    chart = page.locator("#overview .chart").bounding_box()
    assert facts
    assert chart
    assert abs(chart["y"] - facts["y"]) < 20
    assert chart["x"] >= facts["x"] + facts["width"]


def test_curves_fill_their_rows(visit: Open, tmp_path: Path) -> None:
    write_page([made_result("source")], tmp_path / "page.html")  # three measures, two in a row
    page = visit(tmp_path / "page.html")
    first, _, last = [box for node in page.locator("#plots figure:visible").all() if (box := node.bounding_box())]
    assert last["y"] > first["y"]
    assert last["width"] > 1.9 * first["width"]


def test_parts_of_a_stream_are_marked(visit: Open, report: Path) -> None:
    page = visit(report)
    assert page.locator("[data-metric='accuracy'] .parts text").all_text_contents() == ["fog/1", "fog/5"]
    assert page.locator("[data-metric='accuracy'] .parts path").count() == 1


def test_settings_are_complete(visit: Open, report: Path) -> None:
    page = visit(report)
    fold = page.locator("details.setting", has_text="snow/5").filter(has_text="cretta")
    assert fold.locator("dl").count() == 0
    fold.locator("summary").click()
    fold.locator("dl").first.wait_for()
    text = " ".join(fold.inner_text().split())
    for word in (
        "stream iid",
        "batch_size 20",
        "seed 0",
        "seed 1",
        "torch 2.13.0",
        "peak_megabytes 402.25",
        "target bb",
    ):
        assert word in text


def test_readable_on_a_phone(visit: Open, report: Path) -> None:
    page = visit(report, viewport=PHONE, has_touch=True, is_mobile=True)
    page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    settle(page)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
    for table in page.locator("#table-list table").all():
        assert table.evaluate("table => table.closest('.scroll').getBoundingClientRect().right") <= 360
    small = page.evaluate(
        "[...document.querySelectorAll('main *')].filter(node => node.childElementCount === 0"
        " && node.textContent.trim() && !node.closest('svg')"
        " && parseFloat(getComputedStyle(node).fontSize) < 11).length"
    )
    assert small == 0
    tallest = page.eval_on_selector_all("[data-table='runs'] tbody tr", "rows => rows.map(row => row.offsetHeight)")
    assert max(tallest) < 90
    first = page.locator("[data-table='runs'] tbody th").first
    scroll = page.locator("[data-table='runs'] .scroll")
    scroll.evaluate("box => box.scrollLeft = 300")
    box = first.bounding_box()
    assert box
    assert 0 <= box["x"] < 40  # the names stay in sight


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(visit: Open, report: Path, scheme: str) -> None:
    page = visit(report, color_scheme=scheme)

    def brightness(selector: str, name: str) -> float:
        color = page.eval_on_selector(selector, f"node => getComputedStyle(node).{name}")
        red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", color)[:3])
        return float(0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2)

    paper = brightness("body", "backgroundColor")
    assert paper > 0.9 if scheme == "light" else paper < 0.03
    for selector, name in (("body", "color"), (".quiet", "color"), (".chart svg text", "fill"), (".grid text", "fill")):
        ink = brightness(selector, name)
        contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
        assert contrast > 4.5, (selector, contrast)
    stroke = brightness("[data-metric='accuracy'] .curve", "stroke")
    assert (max(stroke, paper) + 0.05) / (min(stroke, paper) + 0.05) > 3


def test_hostile_names_stay_text(visit: Open, tmp_path: Path) -> None:
    results = [made_result(HOSTILE, (HOSTILE,), options={HOSTILE: HOSTILE}, data=HOSTILE), made_result(HOSTILE)]
    table = Table(
        "t", HOSTILE, HOSTILE, (Column(HOSTILE, HOSTILE),), (Row(HOSTILE, (Cell(1.0),), HOSTILE),), (HOSTILE,)
    )
    chart = Chart("c", HOSTILE, (Panel(HOSTILE, HOSTILE, HOSTILE, "bar", (Series(HOSTILE, (HOSTILE,), (1.0,)),)),))
    write_page(
        results,
        tmp_path / "page.html",
        tables=[table],
        charts=[chart],
        title=HOSTILE,
    )
    page = visit(tmp_path / "page.html")
    page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    settle(page)
    x, y, *_ = middle(page)
    page.mouse.move(x, y)
    assert page.title() == HOSTILE
    assert page.locator("h1").inner_text() == HOSTILE
    assert HOSTILE in page.locator("[data-metric='accuracy'] .tip").inner_text()
    assert page.locator("script").count() == 2
    assert page.locator("img[src='x']").count() == 0


def test_names_in_the_page_are_unique(visit: Open, report: Path) -> None:
    page = visit(report)
    page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    settle(page)
    twice = page.evaluate(
        "(() => { const ids = [...document.querySelectorAll('[id]')].map(node => node.id);"
        " return ids.filter((id, index) => ids.indexOf(id) !== index); })()"
    )
    assert twice == []


def thousand() -> Iterator[Result]:
    base = made_result("cretta", batches=50, images=20)
    methods = ("source", "bn_adapt", "tent", "tea", "cretta")
    for number in range(1000):
        run = dataclasses.replace(base.run, method=methods[number % 5], domains=(Domain(f"shift{number // 5}", 5),))
        yield dataclasses.replace(base, key=f"{number:024x}", run=run)


def test_a_thousand_runs_are_built_as_they_are_looked_at(visit: Open, tmp_path: Path) -> None:
    write_page(list(thousand()), tmp_path / "page.html")
    page = visit(tmp_path / "page.html")
    assert page.evaluate("document.querySelectorAll('*').length") < 12_000
    rows = page.locator("[data-table='runs'] tbody tr:not(.end)")
    assert rows.count() < 400
    page.get_by_label("Filter rows of: All runs").fill("shift199/")
    expect(rows).to_have_count(5)
    page.get_by_label("Filter rows of: All runs").fill("")
    expect(rows.nth(99)).to_be_attached()
    header(page, "runs", "shift").click()
    header(page, "runs", "shift").click()
    assert column(page, "runs", 1)[0] == "shift199/5"  # 199 after 99: numbers in words count
    before = rows.count()
    page.locator("[data-table='runs'] .scroll").evaluate("box => box.scrollTop = box.scrollHeight")
    expect(rows.nth(before)).to_be_attached()
    page.get_by_label("Filter runs", exact=True).fill("shift150/5 tent")
    expect(page.locator("#picker .choices label")).to_have_count(1)
    page.locator("#picker .choices input").check()
    settle(page)
    assert page.locator("[data-metric='accuracy'] .curve").count() == 6
