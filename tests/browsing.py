"""Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: the page is not looked at in a browser")

from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATIENCE = 300_000
"""Milliseconds after which a wait for the browser counts as a hang."""
expect.set_options(timeout=PATIENCE)
BROWSERS = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP = {"width": 1280, "height": 900}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser; skip the test if there is none."""
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is there, nor named by $CHROMIUM: the page is not looked at")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS), timeout=PATIENCE)
        yield launched
        launched.close()
