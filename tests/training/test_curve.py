from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
from PIL import Image

from cretta.training import Row
from cretta.training.curve import draw_curve


def test_the_curve_shows_loss_and_accuracy(tmp_path: Path) -> None:
    rows = [Row(n, n, n, 0.1, 32, 2 / n, 0.1 * n, 0.1) for n in range(1, 6)]
    draw_curve(rows, tmp_path / "both.png", "a title")
    unmeasured = [dataclasses.replace(row, accuracy=math.nan) for row in rows]
    draw_curve(unmeasured, tmp_path / "loss.png", "a title")
    both, loss = (np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB")) for name in ("both", "loss"))
    blue, gray = (31, 119, 180), (127, 127, 127)
    assert (both == blue).all(2).sum() > 100
    assert (loss == blue).all(2).sum() == 0
    assert (loss == gray).all(2).sum() > 100
