"""No page breaks a rule that axe-core knows of WCAG 2.1, levels A and AA, nor its best practices: light and dark, on a
wide screen and on a phone, in Chromium and in Firefox. Firefox looks at two of the four, since a look takes it long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.http.api_gateway import api_gateway
from tests.peers.live_server import Live, TestCall
from tests.peers.programs import needs_chromium, needs_firefox
from tests.peers.web.browsers import Page, chromium
from tests.peers.web.firefox import Firefox, firefox
from tests.peers.web.test_console_chromium import SECTIONS, resize, row
from tests.waiting import until

pytestmark = pytest.mark.parametrize(
    "browser", [pytest.param("chromium", marks=needs_chromium), pytest.param("firefox", marks=needs_firefox)]
)

UNFOLD = "for (const folded of document.querySelectorAll('details')) folded.open = true"
AXE = (files("axe_core_python") / "axe.min.js").read_text()
LOOK = """
    for (const motion of document.getAnimations()) motion.finish();  // a colour under way has no contrast yet
    const { violations } = await axe.run({ resultTypes: ['violations'] });  // without selectors of all that is right
    return violations.map(rule => [rule.id, rule.help, ...rule.nodes.map(node => node.html.slice(0, 120))]);
"""
SCHEMES_AND_WIDTHS = tuple(product(("light", "dark"), (1440, 390)))
PATIENCE_S = 180
"""Longest work of axe-core on a page: one with many operations takes it a minute."""


@asynccontextmanager
async def browsing(browser: str, folder: Path, **more: Any) -> AsyncIterator[tuple[Page | Firefox, Live]]:
    """Yield a browser and a running gateway with its console."""
    async with api_gateway(folder, **{**SECTIONS, **more}) as (_, _, url):
        live = Live(url.removeprefix("http://"), None, folder)  # type: ignore[arg-type]  # the same process
        if browser == "firefox":
            async with firefox(folder / "profile") as fox:
                fox.patience_s = PATIENCE_S
                yield fox, live
        else:
            with chromium() as driver:
                driver.set_script_timeout(PATIENCE_S)
                yield Page(driver), live


async def shown(page: Page | Firefox, script: str) -> None:
    """Wait until an expression in the page is true."""
    await until(lambda: page.do(f"return {script}"), script)


async def violations(page: Page | Firefox) -> dict[str, Any]:
    """Return the findings of axe-core by scheme and width."""
    await page.do("if (!window.axe) new Function(args[0]).call(window)", AXE)
    found = {}
    for scheme, width in (("light", 1440), ("dark", 390)) if isinstance(page, Firefox) else SCHEMES_AND_WIDTHS:
        await page.do("document.documentElement.dataset.theme = args[0]", scheme)
        await (page.resize(width) if isinstance(page, Firefox) else resize(page.driver, width))
        if broken := await page.do(LOOK):
            found[f"{scheme}, {width} pixels"] = broken
    return found


async def test_console_with_live_and_past_calls_and_the_page_of_one(browser: str, tmp_path: Path) -> None:
    folders: dict[str, Any] = {
        "calls": {"folder": str(tmp_path / "calls"), "keep_text": True},
        "recording": {"folder": str(tmp_path)},
        "routes": {"default": {}, "talk": {"recording": True}},
    }
    async with browsing(browser, tmp_path, **folders) as (page, live):
        await page.open(f"{live.http}/")
        async with TestCall(live, "talk", number=1) as past:
            await past.spoken("The shop opens at nine.")
        await shown(page, "document.querySelector('#past-rows').textContent.includes('Hung up')")
        async with TestCall(live, "talk", number=2) as talking:
            await talking.spoken("And it closes at five.")
            await shown(page, f"document.querySelector({row(talking)!r})?.textContent.includes('twilio')")
            await page.do(UNFOLD)
            assert await violations(page) == {}
        for name in ("routes", "usage", "keys"):
            await page.open(f"{live.http}/#{name}")
            await shown(page, "document.querySelector('#admin-note').textContent.length > 20")
            assert await violations(page) == {}, name
        await page.open(f"{live.http}/#call={past.call.session_id}")
        await shown(page, f"document.querySelector('#call-id').textContent.includes({past.call.session_id!r})")
        assert await violations(page) == {}


@pytest.mark.parametrize("path", ["/phone", "/docs"])
async def test_pages(browser: str, tmp_path: Path, path: str) -> None:
    async with browsing(browser, tmp_path) as (page, live):
        await page.open(f"{live.http}{path}")
        await shown(page, "!!document.querySelector('main table, main button')")
        await page.do(UNFOLD)
        assert await violations(page) == {}


async def test_sign_in(browser: str, tmp_path: Path) -> None:
    async with browsing(browser, tmp_path, auth={"api_keys": [{"key": "k" * 32}]}) as (page, live):
        await page.open(f"{live.http}/")
        await shown(page, "!!document.querySelector('input[type=password]')")
        assert await violations(page) == {}
