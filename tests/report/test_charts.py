from __future__ import annotations

import io
import itertools
import math
import re
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from cretta.report.charts import render, write_chart
from cretta.report.content import Chart, Panel, Series
from cretta.report.styles import KNOWN, styles


def chart(*series: Series, kind: str = "line") -> Chart:
    return Chart("name", "Title", (Panel("panel", "x", "y", kind, series),), ("A note.",))  # type: ignore[arg-type]


def line(label: str, *y: float, deviation: tuple[float, ...] = ()) -> Series:
    return Series(label, tuple(range(len(y))), y, deviation)


def text_of(drawing: bytes) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawing.decode())


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_ending_decides_the_format(tmp_path: Path, form: str, start: bytes) -> None:
    write_chart(chart(line("tent", 1, 2)), tmp_path / f"a.{form}")
    assert (tmp_path / f"a.{form}").read_bytes().startswith(start)


def test_settings_of_matplotlib_are_left_as_they_were() -> None:
    before = dict(mpl.rcParams)
    render(chart(line("tent", 1, 2)), "png")
    assert dict(mpl.rcParams) == before


def test_methods_are_distinct_without_color() -> None:
    known = list(KNOWN.values())
    assert len({style.marker for style in known}) == len(known)
    assert len({style.hatch for style in known}) == len(known)
    assert len({style.dash for style in known}) == len(known)
    others = list(styles(f"other {number}" for number in range(60)).values())
    assert len(set(others)) == 60
    assert all(style.hollow for style in others)


def test_a_method_looks_the_same_whoever_stands_beside_it() -> None:
    alone, among = styles(["CreTTA"]), styles(["mine", "BN Adapt", "tent", "CreTTA", "bn_adapt"])
    assert alone["CreTTA"] == among["CreTTA"] == KNOWN["cretta"]
    assert among["BN Adapt"] == among["bn_adapt"] == KNOWN["bn_adapt"]
    assert among["mine"] == styles(["cretta", "mine"])["mine"]
    for example in (chart(line("cretta", 1, 2)), chart(line("source", 2, 1), line("mine", 0, 1), line("cretta", 1, 2))):
        assert "#d55e00" in render(example, "svg").decode()


def test_names_stand_as_they_are_given() -> None:
    names = ("_private", "a $dollar$ \\frac", "<script>alert(1)</script>", "β & co", "名前")
    drawing = render(chart(*(line(name, 1, 2) for name in names)), "svg")
    texts = [text.replace("\u200b", "") for text in text_of(drawing)]
    for name in names:
        assert name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in texts
    assert b"<script" not in drawing


def test_deviations_are_drawn() -> None:
    for kind in ("line", "bar", "scatter"):
        without = render(chart(line("tent", 1, 2), kind=kind), "svg")
        drawn = render(chart(line("tent", 1, 2, deviation=(0.1, 0.1)), kind=kind), "svg")
        assert len(drawn) > len(without)


def test_bars_have_hatches_and_all_categories() -> None:
    example = chart(
        Series("source", ("fog", "snow"), (1, 2)), Series("tent", ("snow", "blur"), (3, 4), (0.1, 0.2)), kind="bar"
    )
    drawing = render(example, "svg")
    assert drawing.count(b"<pattern") == 2
    assert [text for text in text_of(drawing) if text in ("fog", "snow", "blur")] == ["fog", "snow", "blur"]


def test_missing_data_is_stated() -> None:
    texts = text_of(render(chart(line("tent", 1, 2), line("sar")), "svg"))
    assert "\u200bsar (no data)" in texts
    assert "no data" in text_of(render(chart(), "svg"))
    assert "no data" in text_of(render(chart(line("sar")), "svg"))
    render(chart(line("tent", math.nan, math.inf, 1)), "png")


def test_a_line_of_one_point_is_a_sentence() -> None:
    single = text_of(render(chart(line("tent", 1), line("sar", 2)), "svg"))
    assert "one value each: no curve to draw" in single
    for example in (chart(line("tent", 1), line("sar", 2, 3)), chart(line("tent", 1), kind="scatter")):
        assert "one value each: no curve to draw" not in text_of(render(example, "svg"))


def test_many_panels_and_series_stand_in_rows_with_the_legend_beside() -> None:
    panel = chart(*(line(name, 1, 2, 3) for name in KNOWN)).panels[0]
    with Image.open(io.BytesIO(render(Chart("n", "T", (panel,) * 4), "png"))) as image:
        width, height = image.size
    with Image.open(io.BytesIO(render(Chart("n", "T", (panel,)), "png"))) as image:
        assert width > 1.5 * image.width
        assert height > 1.5 * image.height


@pytest.mark.parametrize("panels", [1, 2, 4])
@pytest.mark.parametrize("names", [("one",), ("TENT", "CreTTA", "TEA"), tuple(KNOWN)], ids=len)
def test_title_legend_notes_and_panels_do_not_overlap(
    panels: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []

    def keep(figure: Figure, *_: object, **__: object) -> None:
        figure.draw_without_rendering()
        drawn.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    panel = chart(*(line(name, 1, 2, 3) for name in names)).panels[0]
    notes = (
        "CIFAR10-C: 32 images of each domain, in batches of 16 (paper: 200), and so on. " * 4,
        "One seed.",
        "β " * 90,
    )
    render(
        Chart("n", "A title of many words that no single panel is wide enough for " * 3, (panel,) * panels, notes),
        "png",
    )
    (figure,) = drawn
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    title, below = figure.texts
    boxes = {"title": title, "notes": below, "legend": figure.legends[0]}
    outside = {name: part.get_window_extent(renderer) for name, part in boxes.items()}
    axes = {
        f"panel {index}": box
        for index, axis in enumerate(figure.axes)
        if (box := axis.get_tightbbox(renderer)) is not None
    }
    assert len(axes) == panels
    for (name, box), (other, beside) in itertools.combinations({**outside, **axes}.items(), 2):
        assert not box.overlaps(beside), (name, other)
    # The file shows the tight box, which holds them all.
    saved = figure.get_tightbbox(renderer).transformed(figure.dpi_scale_trans)
    for name, box in {**outside, **axes}.items():
        assert saved.x0 - 1 <= box.x0 <= box.x1 <= saved.x1 + 1, name
        assert saved.y0 - 1 <= box.y0 <= box.y1 <= saved.y1 + 1, name


def test_panels_with_named_parts_stand_below_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []

    def keep(figure: Figure, *_: object, **__: object) -> None:
        figure.draw_without_rendering()
        drawn.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    panel = chart(Series("tent", (50, 150), (1, 2))).panels[0]
    parts = ((0.0, 100.0, "jpeg compression"), (100.0, 200.0, "fog"))
    render(Chart("n", "T", (panel,) * 3, parts=parts), "png")
    (figure,) = drawn
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    boxes = [axis.get_window_extent(renderer) for axis in figure.axes]
    assert boxes[0].y0 > boxes[1].y1
    assert boxes[1].y0 > boxes[2].y1
    assert len({round(box.x0) for box in boxes}) == 1
    names = [text for child in figure.axes[0].child_axes for text in child.get_xticklabels()]
    assert [text.get_text() for text in names] == ["jpeg\ncompression", "fog"]
    assert not any(axis.child_axes for axis in figure.axes[1:])
    for axis in figure.axes:
        assert axis.get_xlim() == (0, 200)
        assert list(axis.get_xticks()) == [0, 100, 200]
    ticks = [[label.get_text() for label in axis.get_xticklabels() if label.get_visible()] for axis in figure.axes]
    assert ticks == [[], [], ["0", "100", "200"]]
    assert names[0].get_window_extent(renderer).x1 < names[1].get_window_extent(renderer).x0


def test_title_and_notes_can_be_left_out() -> None:
    full = text_of(render(chart(line("tent", 1, 2)), "svg"))
    bare = text_of(render(chart(line("tent", 1, 2)), "svg", page_styles={}))
    assert {"Title", "A note."} <= set(full)
    assert not {"Title", "A note."} & set(bare)
