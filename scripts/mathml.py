"""Math fences of the documentation as MathML, made when the site is built, for browsers without a network."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **arguments: Any) -> str:
    """Return the equations of a fence, one per line, as pymdownx.superfences calls it."""
    lines = (line for line in source.splitlines() if line.strip())
    return f'<div class="{css_class}">{"".join(convert(line, display="block") for line in lines)}</div>'
