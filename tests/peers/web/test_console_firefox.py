"""The console in Firefox: another engine's CSS, events and decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.http.api_gateway import api_gateway
from tests.peers.live_server import Live, TestCall
from tests.peers.programs import needs_firefox
from tests.peers.web.firefox import firefox
from tests.waiting import until

pytestmark = [needs_firefox, pytest.mark.slow]

SECTIONS: dict[str, Any] = {"carriers": {"twilio": {"verify": False}}, "routes": {"default": {"recording": True}}}


async def test_firefox_shows_a_call_speaks_into_it_and_plays_a_voice(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"calls": {"folder": str(tmp_path / "calls")}, "recording": {"folder": str(tmp_path)}}
    async with api_gateway(tmp_path, **SECTIONS, **kept) as (_, _, url), firefox(tmp_path / "profile") as page:
        await page.open(f"{url}/")
        await page.do("window.faults = []; addEventListener('error', event => faults.push(event.message))")
        live = Live(url.removeprefix("http://"), None, tmp_path)  # type: ignore[arg-type]  # the same process
        async with TestCall(live, "default") as call:
            await page.until("return document.querySelector('#call-rows .chip')?.textContent === 'twilio'")
            await page.do("document.querySelector('#turn-text').value = 'One two three four five six seven eight.'")
            await page.do("document.querySelector('#speak').click()")
            await until(lambda: call.leg.messages > 20, "speech")
            await page.until("return document.querySelector('.played').textContent.startsWith('One two')")
            await page.do("document.querySelector('#cancel').click()")
            await until(lambda: call.leg.clears, "the cut")
            await page.until("return document.querySelector('#log').textContent.includes('cut (stopped)')")
            await page.until("return document.querySelectorAll('path.line').length >= 3")
            await page.do("document.querySelector('[data-voice=tone] button').click()")
            assert await page.until("return document.querySelector('#player').duration") > 1
        await page.until("return document.querySelector('#call-rows').childElementCount === 0")
        light = await page.do("return getComputedStyle(document.body).backgroundColor")
        await page.do("document.querySelector('#theme').click()")
        assert await page.do("return getComputedStyle(document.body).backgroundColor") != light
        await page.until("return document.querySelectorAll('#past-rows tr').length === 1")
        await page.do("document.querySelector('#past-rows a').click()")
        await page.until("return document.querySelectorAll('.waterfall .stage').length > 1")
        assert await page.until("return document.querySelector('#call-recording').duration") > 0
        await page.do("document.querySelector('#call-page a').click()")
        await page.until("return document.activeElement.matches('#past-rows a')")
        # A plot that is drawn for another width writes its legend anew, and that changes the height that is reported.
        await page.do(
            "for (const plot of document.querySelectorAll('figure:has(.legend)')) {"
            " plot.querySelector('.legend').replaceChildren(); plot.style.width = '400px'; }"
            "for (let i = 0; i < 5; i++) await new Promise(requestAnimationFrame)"
        )
        assert await page.do("return faults") == []
