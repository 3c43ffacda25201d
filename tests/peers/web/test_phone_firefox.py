"""The web phone in Firefox: another engine's WebRTC, and a microphone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.live_server import serve
from tests.peers.programs import needs_firefox
from tests.peers.web.firefox import firefox
from tests.peers.web.test_phone_chromium import CONFIG, LISTEN, SENTENCE, calls, no_calls
from tests.waiting import until

pytestmark = [needs_firefox, pytest.mark.slow]


async def test_firefox_calls_hears_reads_presses_keys_and_hangs_up(tmp_path: Path) -> None:
    async with serve(tmp_path / "server", CONFIG) as live, firefox(tmp_path / "profile") as page:
        await page.open(f"{live.http}/phone")
        await page.until("return document.querySelectorAll('option').length === 2")
        await page.do("document.querySelector('[data-part=route]').value = 'call'")
        await page.do("document.querySelector('[data-part=call]').click()")
        state = "document.querySelector('[data-part=state]').textContent"
        await page.until(f"return {state} === 'In call'")
        assert not await page.do("return document.querySelector('[data-part=mute]').disabled")  # there is a microphone
        assert len(await calls(live)) == 1
        await page.do(LISTEN)
        # Not interruptible by speech: the fake microphone hums.
        await page.do(f"document.querySelector('main').phone.call.text({SENTENCE!r}, {{interruptible: 'dtmf'}})")
        await page.until("return events.some(e => e.event === 'finished')")
        said = await page.do("return events.filter(e => e.name === 'caption').map(e => e.text).join('')")
        assert said == SENTENCE
        # WebAudio stands still in a Firefox without a sound card: its decoder says what was heard.
        stats = await page.do("return await document.querySelector('main').phone.call.stats()")
        assert stats["codec"] == "audio/opus" and stats["packetsLost"] == 0 and stats["packetsReceived"] > 100
        assert stats["audioEnergy"] > 0.01
        await page.do("document.querySelector('[data-key=\"5\"]').click()")
        (key,) = await page.until("const k = events.filter(e => e.name === 'dtmf'); return k.length && k")
        assert key["digit"] == "5"
        await page.do("document.querySelector('[data-part=call]').click()")
        await until(lambda: no_calls(live), "the end of the call")
        assert await page.do(f"return {state}") == "Call ended"
