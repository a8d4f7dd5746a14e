"""The page at /: one file with everything in it except the data, which it reads from /events."""

from __future__ import annotations

import html
from functools import cache
from importlib.metadata import version

from cretta import pages


@cache
def page(title: str) -> tuple[str, str]:
    """Return the page, and what a browser may do for it."""
    style = pages.asset("style.css") + pages.asset("live.css", __package__)
    scripts = [pages.asset("dom.js"), pages.asset("plot.js"), pages.asset("live.js", __package__)]
    script = pages.joined(scripts)
    parts = {"title": html.escape(title), "style": style, "script": script, "version": html.escape(version("cretta"))}
    content = pages.filled(pages.asset("live.html", __package__), {}, parts)
    return content, f"{pages.policy(script, style)}; connect-src 'self'; frame-ancestors 'none'"
