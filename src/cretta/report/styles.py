"""How a method looks in every figure: distinct by color, and without color by dashes, markers and hatches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import cycle

# The colors of Okabe and Ito, which the color-blind can distinguish; gray replaces their yellow, too faint for a line.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, GRAY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#767676",
)  # fmt: skip
PRINTED = " (paper)"


@dataclasses.dataclass(frozen=True)
class Style:
    """The look of one method, or of another series."""

    color: str
    dash: tuple[float, ...]
    """Lengths of lines and gaps in line widths; empty for a solid line."""
    marker: str
    hatch: str
    """As matplotlib writes it, for bars."""
    hollow: bool = False
    """Whether markers and bars are outlines."""


KNOWN = {
    "source": Style(BLACK, (1, 1.6), "square", "...."),
    "bn_adapt": Style(ORANGE, (6, 1.6, 1, 1.6), "up", "////"),
    "pl": Style(GRAY, (4, 1, 1, 1, 1, 1), "left", "--"),
    "shot": Style(SKY, (3, 1.2), "plus", "++"),
    "shot_im": Style(SKY, (1, 1), "cross", "xx"),
    "tent": Style(BLUE, (4, 1.6), "diamond", "\\\\\\\\"),
    "eta": Style(PURPLE, (5, 1.2, 1, 1.2), "right", "||"),
    "eata": Style(PURPLE, (2, 1), "hexagon", "oo"),
    "sar": Style(ORANGE, (2, 1, 2, 3), "pentagon", "//.."),
    "aea": Style(BLUE, (1.2, 1.2), "star", "**"),
    "tea": Style(GREEN, (8, 1.6), "down", "xxxx"),
    "cretta": Style(VERMILION, (), "circle", ""),
}
_COLORS = (BLUE, VERMILION, GREEN, PURPLE, BLACK, ORANGE, SKY)
_DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.6), (1, 1.6), (6, 1.6, 1, 1.6), (8, 1.6))
_MARKERS = tuple(style.marker for style in KNOWN.values())[::-1]
_HATCHES = ("////", "....", "\\\\\\\\", "xx", "--", "oo", "||", "++", "//..", "**", "xxxx")


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return the style of each name: a method's own, however it is spelled; for others hollow ones, as they appear.

    What the paper printed of a method, "TENT (paper)", is the outline of what was measured of it.

    >>> styles(["CreTTA", "BN Adapt", "mine"])["mine"].hollow
    True
    """
    known = {_plain(name): style for name, style in KNOWN.items()}
    # Lists of 7, 5, 12 and 11: hundreds of names before two look the same.
    others = zip(cycle(_COLORS), cycle(_DASHES), cycle(_MARKERS), cycle(_HATCHES), strict=True)
    by_name: dict[str, Style] = {}
    for name in dict.fromkeys(names):
        measured = name.removesuffix(PRINTED)
        if _plain(measured) in known:
            by_name[name] = dataclasses.replace(known[_plain(measured)], hollow=measured != name)
        else:
            by_name[name] = Style(*next(others), hollow=True)
    return by_name


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
