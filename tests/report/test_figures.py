from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from cretta.measure import Trace
from cretta.report.figures import adaptation_curves


def traces() -> dict[str, dict[str, Trace]]:
    generator = torch.Generator().manual_seed(0)
    found: dict[str, dict[str, Trace]] = {}
    for shift in ("fog", "snow"):
        for method in ("source", "cretta"):
            trace = found.setdefault(shift, {})[method] = Trace()
            for _ in range(3):
                trace.update(torch.randn(8, 3, generator=generator), torch.arange(8) % 3, seconds=1.0)
    return found


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_the_suffix_decides_the_format(tmp_path: Path, name: str, start: bytes) -> None:
    adaptation_curves(traces(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_every_curve_is_drawn_and_named(tmp_path: Path) -> None:
    adaptation_curves(traces(), tmp_path / "a.svg")
    drawing = (tmp_path / "a.svg").read_text()
    for word in ("source", "cretta", "fog", "snow", "ECE so far (%)", "mean energy of the batch"):
        assert f"<!-- {word} -->" in drawing
    # Two shifts, two panels, two methods: each method's colour strokes four curves, and its key in the legend.
    for color in ("#000000", "#e69f00"):
        assert sum(f"stroke: {color}" in line and "fill: none" in line for line in drawing.splitlines()) >= 5


def test_a_row_for_each_shift(tmp_path: Path) -> None:
    both = traces()
    adaptation_curves(both, tmp_path / "two.png")
    adaptation_curves({"fog": both["fog"]}, tmp_path / "one.png")
    with Image.open(tmp_path / "one.png") as one, Image.open(tmp_path / "two.png") as two:
        assert one.width == two.width
        assert one.height < two.height
