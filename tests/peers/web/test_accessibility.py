"""No page breaks a rule that axe-core knows of WCAG 2.1, levels A and AA, nor its best practices: light and dark, on a
wide screen and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from tests.peers.live_server import TestCall
from tests.peers.programs import needs_chromium
from tests.peers.web.browsers import Page, chromium
from tests.peers.web.test_console_chromium import console, resize, row

pytestmark = needs_chromium

UNFOLD = "for (const folded of document.querySelectorAll('details')) folded.open = true"
AXE = (files("axe_core_python") / "axe.min.js").read_text()
LOOK = """
    for (const motion of document.getAnimations()) motion.finish();  // a colour under way has no contrast yet
    const { violations } = await axe.run({ resultTypes: ['violations'] });  // without selectors of all that is right
    return violations.map(rule => [rule.id, rule.help, ...rule.nodes.map(node => node.html.slice(0, 120))]);
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


async def violations(page: Page) -> dict[str, Any]:
    """Return the findings of axe-core by scheme and width. A page with many operations takes it a minute."""
    page.driver.set_script_timeout(120)
    await page.do("if (!window.axe) new Function(args[0]).call(window)", AXE)
    found = {}
    for scheme in ("light", "dark"):
        await page.do("document.documentElement.dataset.theme = args[0]", scheme)
        for width in (1440, 390):
            await resize(page.driver, width)
            if broken := await page.do(LOOK):
                found[f"{scheme}, {width} pixels"] = broken
    return found


async def test_console_with_live_and_past_calls_and_the_page_of_one(driver: webdriver.Chrome, tmp_path: Path) -> None:
    folders: dict[str, Any] = {
        "calls": {"folder": str(tmp_path / "calls"), "keep_text": True},
        "recording": {"folder": str(tmp_path)},
        "routes": {"default": {}, "talk": {"recording": True}},
    }
    async with console(driver, tmp_path, **folders) as page:
        async with TestCall(page.live, "talk", number=1) as past:
            await past.spoken("The shop opens at nine.")
        await page.until_text("#past-rows", "Hung up")
        async with TestCall(page.live, "talk", number=2) as live:
            await live.spoken("And it closes at five.")
            await page.until_text(row(live), "twilio")
            await page.do(UNFOLD)
            assert await violations(page) == {}
        for name in ("routes", "usage", "keys"):
            await page.open(f"{page.live.http}/#{name}")
            await page.until(bool, "return document.querySelector('#admin-note').textContent.length > 20")
            assert await violations(page) == {}, name
        await page.open(f"{page.live.http}/#call={past.call.session_id}")
        await page.until_text("#call-id", past.call.session_id)
        assert await violations(page) == {}


@pytest.mark.parametrize("path", ["/phone", "/docs"])
async def test_pages(driver: webdriver.Chrome, tmp_path: Path, path: str) -> None:
    async with console(driver, tmp_path) as page:
        await page.open(f"{page.live.http}{path}")
        await page.until(bool, "return document.querySelector('main table, main button')")
        await page.do(UNFOLD)
        assert await violations(page) == {}


async def test_sign_in(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path, auth={"api_keys": [{"key": "k" * 32}]}) as page:
        await page.until(bool, "return document.querySelector('input[type=password]')")
        assert await violations(page) == {}
