"""``examples/browser_widget.py`` in Chromium, before a server that asks for keys."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest
from selenium.webdriver.common.by import By

from tests.peers.live_server import child_environment, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_chromium
from tests.peers.web.browsers import Page, chromium
from tests.waiting import until

ROOT = Path(__file__).parents[3]


@needs_chromium
@pytest.mark.slow
async def test_a_visitor_calls_with_a_token_and_the_key_stays_on_the_site(tmp_path: Path) -> None:
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    config = (
        "auth: {api_keys: [{key: the-key, scopes: [browser, read]}]}\n"
        f"webrtc: {{allowed_origins: ['{site}']}}\n"
        f"routes: {{shop: {{dialogue: {{script: '{ROOT}/configs/demo-script.yaml'}}}}}}\n"
    )
    async with serve(tmp_path, config) as live:
        environment = {"TALKSPURT": live.http, "ROUTE": "shop", "TALKSPURT_API_KEY": "the-key", "PORT": str(port)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ROOT / "examples/browser_widget.py")),
            env=child_environment() | environment,
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:

            async def served() -> bool:
                try:
                    async with aiohttp.ClientSession() as http, http.get(site) as answer:
                        return "the-key" not in await answer.text()
                except aiohttp.ClientError:
                    return False

            await until(served, "the site")
            with chromium("use-fake-device-for-media-stream", "use-fake-ui-for-media-stream") as driver:
                page = Page(driver)
                await page.open(f"{site}/")
                await asyncio.to_thread(lambda: driver.find_element(By.ID, "talk").click())
                await page.until(
                    lambda text: text.startswith("Hello there,"),
                    "return document.querySelector('#words').textContent",
                )
                assert await page.do("return document.querySelector('#talk').textContent") == "Hang up"
                await asyncio.to_thread(lambda: driver.find_element(By.ID, "talk").click())
                await page.until(
                    lambda text: text == "Talk to us", "return document.querySelector('#talk').textContent"
                )
        finally:
            process.terminate()
            await process.wait()
