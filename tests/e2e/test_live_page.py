"""The page of the service in a real browser: curves that move, buttons that work, nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

import textbook
from browsing import DESKTOP, PATIENCE, chromium
from serving import TOKEN, adapter, http, listening, make, pixels, png, service_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.process, pytest.mark.slow]
PHONE = {"width": 390, "height": 844}
WIDTH = "async image => { await image.decode(); return image.naturalWidth }"
SHOTS = os.environ.get("CRETTA_SCREENSHOTS")
"""A folder for screenshots, to be looked at."""
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens a page; at the end, none may have complained or asked another site for anything."""
    contexts, complaints, sites = [], [], set()

    def visited(address: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda request: sites.add(request.url.split("/")[2] if "//" in request.url else "data"))
        page.goto(address, wait_until="domcontentloaded")
        page.wait_for_selector("html[data-ready]")
        assert sites <= {address.split("/")[2], "data"}
        return page

    yield visited
    for context in contexts:
        context.close()
    assert complaints == []


def send(address: str, count: int, seed: int = 0) -> None:
    for image in pixels(count, seed):
        response = http().post(f"{address}/predict", content=png(image), headers={"content-type": "image/png"})
        assert response.status_code == 200


def drawn(page: Page, lines: int) -> None:
    """Wait until each curve has this number of lines."""
    for metric in ("energy", "confidence", "accuracy"):
        path = page.locator(f"[data-metric='{metric}'] .curve").first
        expect(path).to_have_attribute("d", re.compile(f"^([^L]*L){{{lines}}}[^L]*$"))


def shown(page: Page, batches: int) -> None:
    page.wait_for_selector(f"html[data-batches='{batches}']", state="attached")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def confirm(page: Page, button: str, token: str | None = None) -> None:
    page.get_by_role("button", name=button).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    if token is not None:
        page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    expect(dialog).not_to_be_visible()


def test_curves_move_while_images_are_sent_and_rollback_works(visit: Open, tmp_path: Path) -> None:
    application = make(tmp_path, monitor_every=1, monitor_after=1)
    model = service_of(application).adapter
    with listening(application) as address:
        page = visit(address)
        expect(page.locator("#empty")).to_be_visible()
        expect(page.locator("#status")).to_have_text("ready")
        send(address, 4)
        shown(page, 4)
        drawn(page, 3)
        send(address, 3, seed=1)
        shown(page, 7)
        drawn(page, 6)
        expect(page.locator("#bars .share")).to_have_count(textbook.CLASSES)
        expect(page.locator(".thumb")).to_have_count(7)
        assert page.locator(".thumb img").first.evaluate(WIDTH) == textbook.SIDE
        assert page.locator("[data-metric='accuracy'] .curve").count() == 3

        confirm(page, "Save a snapshot", TOKEN)
        expect(page.locator("#result")).to_have_text("Done: snapshot.")
        saved = model.state_dict()
        send(address, 2, seed=2)
        shown(page, 9)
        confirm(page, "Roll back")  # the token is known
        expect(page.locator("#result")).to_have_text("Done: rollback.")
        textbook.assert_bits(model.state_dict(), saved)
        expect(page.locator("#event-list")).to_contain_text("rolled back to snapshot-00000001")
        confirm(page, "Reset to the source model")
        expect(page.locator("#result")).to_have_text("Done: reset.")
        learned = {name: value for name, value in model.state_dict().items() if name in model.initial}
        textbook.assert_bits(learned, model.initial)
        expect(page.locator("#event-list")).to_contain_text("reset to the source model")
        page.close()


def test_a_cancelled_question_and_the_keyboard(visit: Open, tmp_path: Path) -> None:
    with listening(make(tmp_path, adapter(), monitor_every=1, monitor_after=1)) as address:
        send(address, 5)
        page = visit(address)
        shown(page, 5)
        page.get_by_role("button", name="Reset to the source model").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).not_to_be_visible()
        expect(page.locator("#result")).to_be_empty()
        surface = page.locator("[data-metric='energy'] .surface")
        surface.focus()
        page.keyboard.press("ArrowRight")
        tip = page.locator("[data-metric='energy'] .tip")
        expect(tip).to_contain_text("batch 0")
        send(address, 1)
        shown(page, 6)
        expect(tip).to_contain_text("batch 0")  # new batches do not take the cursor away
        page.close()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that has had 30 batches and an alarm; pages only look at it."""
    application = make(tmp_path_factory.mktemp("busy"), monitor_every=1, monitor_after=1, snapshot_every=5)
    with listening(application) as address:
        send(address, 30)
        alarm = "energies drifted by +3.1 standard deviations; rolled back"
        service_of(application).live.event("guard", alarm, batch=9)
        yield address


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_fits(visit: Open, busy: str, scheme: str, viewport: dict[str, int]) -> None:
    touch = viewport is PHONE
    page = visit(busy, viewport=viewport, color_scheme=scheme, has_touch=touch, is_mobile=touch)
    shown(page, 30)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= viewport["width"]
    small = page.evaluate(
        "[...document.querySelectorAll('main *')].filter(node => node.childElementCount === 0"
        " && node.textContent.trim() && !node.closest('svg')"
        " && parseFloat(getComputedStyle(node).fontSize) < 11).length"
    )
    assert small == 0
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/live-{scheme}-{viewport['width']}.png", full_page=True)
    page.close()
