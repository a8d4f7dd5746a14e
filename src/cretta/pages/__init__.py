"""Pages of one file that need no network: the look and the charts that they share."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files


def asset(name: str, package: str = __name__) -> str:
    """Return a text file in the folder ``assets`` of a package, by default one that pages share."""
    return (files(package) / "assets" / name).read_text(encoding="utf-8")


def joined(scripts: Iterable[str]) -> str:
    """Return one script of several; their names are visible to each other, and to nobody else."""
    return '(() => {\n"use strict";\n' + "\n".join(scripts) + "\n})();"


def filled(template: str, sections: Mapping[str, bool], parts: Mapping[str, str]) -> str:
    """Remove what lies between ``<!--name-->`` and ``<!--/name-->`` of absent sections; replace each ``{{part}}``.

    Parts are replaced in one pass, so that braces in their content stay as they are.
    """
    comments = re.compile(r"<!--(\w+)-->(.*?)<!--/\1-->", re.DOTALL)
    template = comments.sub(lambda match: match[2] if sections[match[1]] else "", template)
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def policy(script: str, style: str | None = None) -> str:
    """Return what a browser may do for a page: run exactly this script, show embedded images, nothing else.

    Without ``style``, all styles in the page are allowed, else exactly this one.
    """
    styles = "'unsafe-inline'" if style is None else _digest(style)
    return (
        f"default-src 'none'; script-src {_digest(script)}; style-src {styles}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
