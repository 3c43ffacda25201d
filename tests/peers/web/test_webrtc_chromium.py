"""Calls of a real browser: headless Chromium against a running gateway."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver

from gateway.config import WebRtcConfig
from gateway.seams.messages import Subscribe
from tests.gateway.webrtc.webrtc_gateway import TestGateway, gateway, strongest_hz
from tests.peers.programs import needs_chromium
from tests.peers.web.browsers import Page, chromium, tone_file
from tests.waiting import until
from tts_engine.tone import tone_hz

pytestmark = needs_chromium

PAGE = (Path(__file__).parent / "page.html").read_text()
MICROPHONE_HZ = 620


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    tone = tone_file(tmp_path_factory.mktemp("microphone"), MICROPHONE_HZ)
    with chromium(microphone=tone) as made:
        yield made


class Browser(Page):
    """The bare caller of ``page.html``."""

    async def messages(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.do(f"return call.messages.filter(m => m.type === '{kind}')")
        return found


@asynccontextmanager
async def browsing(
    driver: webdriver.Chrome, config: WebRtcConfig | None = None, start: str = "{}"
) -> AsyncIterator[tuple[TestGateway, Browser]]:
    async with gateway(config, page=PAGE) as made:
        browser = Browser(driver)
        await browser.open(made.url)
        await browser.do(f"await call.start({start})")
        await browser.until(bool, "return call.messages.some(m => m.type === 'setup')")
        yield made, browser
        await asyncio.to_thread(driver.get, "about:blank")


async def spoken(browser: Browser, turn: str) -> None:
    await browser.until(bool, f"return call.messages.some(m => m.turn === '{turn}' && m.event === 'finished')")


@pytest.mark.parametrize(
    ("codec", "setup"), [("", "OPUS/48000"), ("audio/PCMU", "PCMU/8000"), ("audio/PCMA", "PCMA/8000")]
)
async def test_chromium_hears_the_voice(driver: webdriver.Chrome, codec: str, setup: str) -> None:
    text = "Hello there, this is a longer sentence."
    async with browsing(driver, start=f"{{codec: '{codec}'}}") as (_, browser):
        assert (await browser.messages("setup"))[0]["codec"] == setup
        await browser.do(f"call.say({{type: 'text', token: '{text}', last: true, turn: 'a'}})")
        await spoken(browser, "a")
        heard = await browser.do("return call.heard")
        loudest = max(heard["hz"], key=lambda hz: heard["hz"][hz])
        wanted = [tone_hz("Hello there,"), tone_hz(text)]
        assert heard["frames"] > 10
        assert min(abs(int(loudest) - hz) for hz in wanted) <= 12
        stats = await browser.do("return await call.stats()")
        assert stats["inbound-rtp"]["packetsLost"] == 0
        assert stats["inbound-rtp"]["packetsReceived"] > 50


@pytest.mark.parametrize("policy", ["max-bundle", "max-compat", "balanced"])
async def test_chromium_hears_the_voice_with_video_before_audio(driver: webdriver.Chrome, policy: str) -> None:
    text = "Hello there."
    start = f"{{video: true, config: {{bundlePolicy: '{policy}'}}}}"
    async with browsing(driver, start=start) as (_, browser):
        await browser.do(f"call.say({{type: 'text', token: '{text}', last: true, turn: 'a'}})")
        await spoken(browser, "a")
        heard = await browser.do("return call.heard")
        assert abs(int(max(heard["hz"], key=lambda hz: heard["hz"][hz])) - tone_hz(text)) <= 12


async def test_sender_reports_reach_the_browser_and_agree_with_it(driver: webdriver.Chrome) -> None:
    async with browsing(driver) as (_, browser):
        for turn in ("a", "b"):
            await browser.do(f"call.say({{type: 'text', token: 'Some words to say.', last: true, turn: '{turn}'}})")
            await spoken(browser, turn)
            await asyncio.sleep(1.0)  # silence: nothing is sent
        stats = await browser.until(
            lambda s: s.get("remote-outbound-rtp", {}).get("packetsSent") == s["inbound-rtp"]["packetsReceived"],
            "return await call.stats()",
        )
        assert stats["inbound-rtp"]["packetsLost"] == 0
        assert stats["remote-outbound-rtp"]["bytesSent"] == stats["inbound-rtp"]["bytesReceived"]


async def test_typed_cancel_silences_chromium(driver: webdriver.Chrome) -> None:
    async with browsing(driver) as (_, browser):
        await browser.do(
            "call.say({type: 'text', token: args[0], last: true})",
            "A sentence that runs on and on, for longer than anybody waits here. " * 25,
        )
        await browser.until(lambda frames: frames > 5, "return call.heard.frames")
        await browser.do("call.say({type: 'cancel'})")
        await browser.until(bool, "return call.messages.some(m => m.type === 'interrupt' && m.reason === 'cancel')")
        frames = -1

        async def silent() -> bool:  # when its own buffer is empty
            nonlocal frames
            before, frames = frames, await browser.do("return call.heard.frames")
            await asyncio.sleep(0.5)
            return before == frames

        await until(silent, "silence")


async def test_touch_tones_and_the_microphone_arrive(driver: webdriver.Chrome) -> None:
    async with browsing(driver, start="{microphone: true}") as (made, browser):
        session = next(iter(made.directory))
        pcm: list[bytes] = []
        session.caller.on_pcm = pcm.append  # type: ignore[method-assign, assignment]  # where the uplink's thread delivers
        session.on_message(Subscribe(media=True, sample_rate=16000))
        await until(lambda: len(pcm) >= 50, "a second of the microphone")
        heard = np.frombuffer(b"".join(pcm[10:50]), np.int16)
        assert strongest_hz(heard, 16000) == pytest.approx(MICROPHONE_HZ, abs=5)
        assert np.abs(heard).max() > 3000
        await browser.do("call.pc.getSenders()[0].dtmf.insertDTMF('1*#')")
        await browser.until(lambda keys: len(keys) == 3, "return call.messages.filter(m => m.type === 'dtmf')")
        assert [m["digit"] for m in await browser.messages("dtmf")] == ["1", "*", "#"]


async def test_hanging_up_on_either_side_ends_the_call_on_both(driver: webdriver.Chrome) -> None:
    async with browsing(driver) as (made, browser):
        await browser.do("call.pc.close()")
        await until(lambda: made.ended == ["hangup"], "the session's end")
    async with browsing(driver) as (made, browser):
        await browser.do("call.say({type: 'end'})")
        await browser.until(bool, "return call.messages.some(m => m.type === 'ended')")
        await until(lambda: made.ended == ["end"] and not len(made.webrtc), "the session's end")
        await browser.until(lambda state: state == "closed", "return call.channel.readyState")


async def test_a_closed_tab_ends_the_call(driver: webdriver.Chrome) -> None:
    config = WebRtcConfig(lost_after_s=4.0, restart_s=0.1)
    async with browsing(driver, config) as (made, browser):
        await asyncio.to_thread(driver.get, "about:blank")
        await until(lambda: made.ended, "the session's end")
        await until(lambda: not len(made.webrtc), "the leg's end")


async def test_chromium_comes_back_to_its_call_with_a_new_offer(driver: webdriver.Chrome) -> None:
    async with browsing(driver) as (made, browser):
        first = await browser.do("return call.id")
        await browser.do("call.old = call.pc; call.messages = []; await call.start()")
        await browser.until(bool, "return call.messages.some(m => m.type === 'setup' && m.resumed)")
        assert await browser.do("return call.id") == first
        await browser.do("call.say({type: 'text', token: 'And on we go.', last: true, turn: 'a'})")
        await spoken(browser, "a")
        assert (await browser.do("return call.heard"))["frames"] > 5
        assert made.ended == [] and len(made.directory) == 1
