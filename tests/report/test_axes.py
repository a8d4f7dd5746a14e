from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from cretta.report.axes import round_ticks, y_limits
from cretta.report.charts import render
from cretta.report.content import Chart, Panel, Series

Draw = Callable[[Chart], Figure]


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Draw:
    """Return the figure of a chart, laid out, rather than its file."""
    drawn: list[Figure] = []

    def keep(figure: Figure, *_: object, **__: object) -> None:
        figure.draw_without_rendering()
        drawn.append(figure)

    def figure_of(chart: Chart) -> Figure:
        render(chart, "png")
        return drawn[-1]

    monkeypatch.setattr(Figure, "savefig", keep)
    return figure_of


def panel(*series: Series, y: str = "Acc, % ↑", kind: str = "line", logarithmic: bool = False) -> Panel:
    return Panel("panel", "x", y, kind, series, logarithmic)  # type: ignore[arg-type]


def line(label: str, *y: float, deviation: tuple[float, ...] = (), background: bool = False) -> Series:
    return Series(label, tuple(map(float, range(1, len(y) + 1))), y, deviation, background)


def labels_of(texts: Sequence[Text]) -> list[str]:
    return [text.get_text() for text in texts if text.get_visible() and text.get_text()]


def overlapping(texts: Sequence[Text], figure: Figure) -> list[tuple[str, str]]:
    """Return neighbors that run into each other."""
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    shown = [text for text in texts if text.get_visible() and text.get_text()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
    return [(a, b) for (a, first), (b, second) in itertools.pairwise(boxes) if first.x1 > second.x0]


def above(axis: Axes) -> list[Text]:
    """Return the names of parts above a panel."""
    return [text for child in axis.child_axes for text in child.get_xticklabels()]


def visits(names: Sequence[str], panels: int = 2) -> Chart:
    parts = tuple((number - 0.5, number + 0.5, name) for number, name in enumerate(names, start=1))
    lines = panel(line("tent", *(50 + number % 7 for number in range(len(names)))))
    return Chart("n", "T", (lines,) * panels, parts=parts)


# Limits


def test_an_axis_in_percent_spans_two_points() -> None:
    assert y_limits([panel(line("a", 49.60, 49.73))]) == pytest.approx((48.565, 50.765))
    assert y_limits([panel(line("a", 49.60, 49.73), y="energy")]) == pytest.approx((49.5935, 49.7365))
    assert y_limits([panel(line("a", 40.0, 50.0))]) == pytest.approx((39.5, 50.5))
    # There is nothing below 0 % and above 100 %, except for differences.
    assert y_limits([panel(line("a", 0.3, 0.4))]) == pytest.approx((-0.1, 2.1))
    assert y_limits([panel(line("a", 99.9, 99.95))]) == pytest.approx((97.9, 100.1))
    assert y_limits([panel(line("a", -0.2, 0.2))]) == pytest.approx((-1.1, 1.1))


def test_the_drawn_panel_has_these_limits(draw: Draw) -> None:
    (axis,) = draw(Chart("n", "T", (panel(line("a", 49.60, 49.73)),))).axes
    assert axis.get_ylim() == pytest.approx((48.565, 50.765))


def test_limits_include_deviations_and_ignore_what_is_not_a_number() -> None:
    lines = [line("a", 40.0, 50.0, deviation=(2.0, 1.0)), line("b", math.nan, math.inf)]
    assert y_limits([panel(*lines)]) == pytest.approx((38 - 0.65, 51 + 0.65))
    assert y_limits([panel(lines[1])]) is None
    assert y_limits([panel(line("a", 2.0, 2.0), y="loss")]) is None


def test_bars_begin_at_zero(draw: Draw) -> None:
    (axis,) = draw(Chart("n", "T", (panel(line("a", 49.60, 49.73), kind="bar"),))).axes
    assert axis.get_ylim()[0] == 0


def test_lines_in_the_background_are_thin_and_do_not_set_the_limits(draw: Draw) -> None:
    far = line("far", 5.0, 20.0, background=True)
    assert y_limits([panel(line("a", 40.0, 50.0), far)]) == pytest.approx((39.5, 50.5))
    assert y_limits([panel(far)]) == pytest.approx((4.25, 20.75))
    (axis,) = draw(Chart("n", "T", (panel(line("a", 40.0, 50.0), far),))).axes
    front, back = axis.lines
    assert back.get_linewidth() < front.get_linewidth()
    assert back.get_zorder() < front.get_zorder()
    assert back.get_color() != front.get_color()
    assert axis.get_ylim() == pytest.approx((39.5, 50.5))


def test_panels_that_are_compared_have_the_same_limits(draw: Draw) -> None:
    panels = (panel(line("a", 40.0, 45.0)), panel(line("a", 45.0, 50.0)), panel(line("a", 1.0, 5.0), y="ECE, %"))
    compared = [axis.get_ylim() for axis in draw(Chart("n", "T", panels, shared_y=True)).axes]
    assert compared[0] == compared[1] == pytest.approx((39.5, 50.5))
    assert compared[2] == pytest.approx((0.8, 5.2))
    alone = [axis.get_ylim() for axis in draw(Chart("n", "T", panels)).axes]
    assert alone[:2] == [pytest.approx((39.75, 45.25)), pytest.approx((44.75, 50.25))]


# Ticks


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((131.53, 131.96, 132.59, 527.4, 3034.98, 4335.82), ["200", "500", "1000", "2000", "5000"]),
        ((0.5, 1.0, 2.0, 5.0), ["0.5", "1", "2", "5"]),
        ((0.1, 0.5, 1.0, 2.0, 5.0, 10.0), ["0.1", "0.2", "0.5", "1", "2", "5", "10"]),
        ((0.0, 1.0, 100.0), ["0", "1", "2", "5", "10", "20", "50", "100"]),
        ((1.0, 1e6), ["1", "10", "100", "1000", "10000", "100000", "1e+06"]),
        ((130.0, 140.0), ["130", "140"]),
        ((3.0,), ["1", "2", "5", "10"]),
    ],
)
def test_a_logarithmic_axis_has_round_ticks_that_can_be_read(
    values: tuple[float, ...], ticks: list[str], draw: Draw
) -> None:
    points = panel(Series("tent", values, (1.0,) * len(values)), kind="scatter", logarithmic=True)
    figure = draw(Chart("n", "T", (points,)))
    (axis,) = figure.axes
    assert labels_of(axis.get_xticklabels()) == ticks
    assert overlapping(axis.get_xticklabels(), figure) == []
    low, high = axis.get_xlim()
    assert low <= min(values) <= max(values) <= high


def test_ticks_of_many_powers_are_a_few_of_them() -> None:
    ticks = round_ticks(1e-12, 1e12, 1e-12)
    assert len(ticks) <= 8
    assert {math.log10(tick) % 1 for tick in ticks} == {0}


# Parts


def test_the_title_of_a_panel_is_above_the_names_of_parts(draw: Draw) -> None:
    figure = draw(visits(["gaussian noise", "fog"]))
    first, second = figure.axes
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    title = first._left_title.get_window_extent(renderer)  # type: ignore[attr-defined]
    assert labels_of(above(first)) == ["gaussian\nnoise", "fog"]
    assert all(title.y0 >= text.get_window_extent(renderer).y1 for text in above(first))
    assert above(second) == []


CORRUPTIONS = ["gaussian noise", "fog", "jpeg compression", "elastic transform", "brightness"]


@pytest.mark.parametrize("repeated", [3, 15, 60])
def test_names_of_many_parts_do_not_run_into_each_other(repeated: int, draw: Draw) -> None:
    names = CORRUPTIONS * repeated
    figure = draw(visits(names))
    texts = above(figure.axes[0])
    assert overlapping(texts, figure) == []
    assert len(texts) == {15: 15, 75: 75, 300: 75}[len(names)]
    rotated = len(names) > 15
    assert {text.get_rotation() for text in texts} == {90 if rotated else 0}
    assert any("\n" in text.get_text() for text in texts) is not rotated
    assert figure.get_figwidth() == pytest.approx(1.08 * 15)


def test_names_of_long_words_are_rotated(draw: Draw) -> None:
    texts = above(draw(visits(["fog", "photographs of paintings"])).axes[0])
    assert [(text.get_text(), text.get_rotation()) for text in texts] == [("fog", 0), ("photographs\nof\npaintings", 0)]
    figure = draw(visits(["spectrophotometry", "misclassification"]))
    assert {text.get_rotation() for text in above(figure.axes[0])} == {90}
    assert overlapping(above(figure.axes[0]), figure) == []


def test_visits_have_whole_numbers(draw: Draw) -> None:
    for names, expected in ((CORRUPTIONS * 3, range(1, 16)), (CORRUPTIONS * 15, range(5, 80, 5))):
        figure = draw(visits(names))
        axis = figure.axes[-1]
        low, high = axis.get_xlim()
        assert [tick for tick in axis.get_xticks() if low <= tick <= high] == list(expected)
        assert overlapping(axis.get_xticklabels(), figure) == []


def test_parts_that_begin_at_whole_numbers_have_these(draw: Draw) -> None:
    parts = tuple((400.0 * number, 400.0 * (number + 1), "fog") for number in range(30))
    series = Series("tent", tuple(start + 200 for start, _, _ in parts), (50.0,) * len(parts))
    figure = draw(Chart("n", "T", (panel(series),), parts=parts))
    (axis,) = figure.axes
    assert list(axis.get_xticks()) == [800.0 * number for number in range(16)]
    assert overlapping(axis.get_xticklabels(), figure) == []
