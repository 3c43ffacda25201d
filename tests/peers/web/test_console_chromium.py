"""The console in headless Chromium, beside simulated calls on a running gateway."""

import asyncio
import io
import wave
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.gateway.http.api_gateway import CloningEngine, api_gateway
from tests.gateway.mixing.legs import level_of
from tests.peers.live_server import Live, TestCall
from tests.peers.programs import needs_chromium
from tests.peers.web.browsers import Page, chromium
from tests.waiting import until
from voicecodecs.g711 import decode_ulaw

pytestmark = needs_chromium

TEXT = "One two three four five six seven eight nine ten."
LONG = "And on it goes, on and on, and on" + ", and on and on" * 20 + ", until somebody has heard enough of it."
"""Longer than a browser takes to press a key, on a machine that does much else."""
WIDTHS = (1600, 1280, 1024, 900, 768, 390, 320)
SECTIONS: dict[str, Any] = {"carriers": {"twilio": {"verify": False}}, "routes": {"default": {}, "talk": {}}}


def tone(seconds: float = 2.0) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, 48000, 0, "NONE", ""))
        file.writeframes((9000 * np.sin(2 * np.pi * 440 * np.arange(48000 * seconds) / 48000)).astype("<i2").tobytes())
    return data.getvalue()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("voice") / "reference.wav"
    path.write_bytes(tone())
    return path


@pytest.fixture(scope="module")
def driver(reference: Path) -> Iterator[webdriver.Chrome]:
    with chromium("window-size=1280,800", microphone=reference) as driver:
        yield driver


class Console(Page):
    """The console, used as a person would."""

    def __init__(self, driver: webdriver.Chrome, live: Live, engine: Any) -> None:
        super().__init__(driver)
        self.live = live
        self.engine = engine

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        await asyncio.to_thread(lambda: ActionChains(self.driver).send_keys(*keys).perform())

    async def tab_to(self, selector: str) -> None:
        """Press Tab until an element has the focus."""
        for _ in range(80):
            if await self.do("return document.activeElement.matches(args[0])", selector):
                return
            await self.press(Keys.TAB)
        raise AssertionError(f"Tab does not reach {selector}")

    async def click(self, selector: str) -> None:
        await asyncio.to_thread(lambda: self.driver.find_element(By.CSS_SELECTOR, selector).click())

    async def answer(self, *, agrees: bool) -> None:
        """Answer a question that the page asks in a dialogue of the browser."""
        question = self.driver.switch_to.alert
        await asyncio.to_thread(question.accept if agrees else question.dismiss)

    async def type(self, selector: str, text: str) -> None:
        await asyncio.to_thread(lambda: self.driver.find_element(By.CSS_SELECTOR, selector).send_keys(text))

    async def text(self, selector: str) -> str:
        return str(await self.do("return document.querySelector(args[0])?.textContent ?? ''", selector))

    async def until_text(self, selector: str, *words: str) -> str:
        script = f"return document.querySelector({selector!r})?.textContent ?? ''"
        return str(await self.until(lambda text: all(word in text for word in words), script))

    async def errors(self) -> list[str]:
        """Return the browser's complaints."""
        log = await asyncio.to_thread(self.driver.get_log, "browser")
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]


@asynccontextmanager
async def console(driver: webdriver.Chrome, folder: Path, **more: Any) -> AsyncIterator[Console]:
    async with api_gateway(folder, **{**SECTIONS, **more}) as (_, engine, url):
        live = Live(url.removeprefix("http://"), None, folder)  # type: ignore[arg-type]  # the same process
        page = Console(driver, live, engine)
        await asyncio.to_thread(driver.get_log, "browser")
        await page.open(f"{url}/")
        if "auth" not in more:
            await page.until_text("#status", "ready")
        try:
            yield page
        finally:
            await page.open("about:blank")


def row(call: TestCall, part: str = "") -> str:
    return f"tr[data-call='{call.call.session_id}'] {part}".strip()


async def test_a_call_appears_and_its_text_follows_the_voice(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path, calls={"folder": str(tmp_path / "calls")}) as page:
        assert await page.do("return document.querySelector('#call-rows').childElementCount") == 0
        assert "No call is live" in await page.text("#no-calls")
        async with TestCall(page.live, "talk") as call:
            await page.until_text(row(call, ".call"), "twilio", "talk")
            turn = call.call.speak(f"{TEXT} {TEXT}")
            seen = []
            while not turn.outcome:
                seen.append(await page.do(
                    "const of = part => document.querySelector(args[0] + ' ' + part)?.textContent ?? '';"
                    "return [of('.played'), of('.queued'), of('.state')]", row(call),
                ))  # fmt: skip
            spoken = [(played, queued) for played, queued, state in seen if state == "speaking"]
            assert len({played for played, _ in spoken}) >= 3, "the text follows"
            assert min(len(queued) for _, queued in spoken) < max(len(queued) for _, queued in spoken)
            await page.until_text(row(call, ".played"), "nine ten.")
            await page.until_text(row(call, ".state"), "listening")
            assert (await page.text(row(call, "[data-label='first packet']"))).endswith(" ms")
            view = await page.do(f"return (await fetch('/v1/calls/{call.call.session_id}')).json()")
            assert (await page.text(row(call, "[data-label='gaps']"))).split()[0] == str(view["gaps"])
            await page.until_text("#log", "began", "first packet after", "finished")
            assert "call" in await page.text("#announcements")
            assert await page.text("#calls-live") == "1 / 500"
        await page.until(lambda rows: rows == 0, "return document.querySelector('#call-rows').childElementCount")
        await page.until_text("#announcements", "began", "ended")
        hosts = await page.do("return performance.getEntries().map(entry => entry.name)")
        loaded = [urlsplit(name) for name in hosts if "://" in name]
        assert len(loaded) > 10 and {part.netloc for part in loaded} == {page.live.address}
        assert await page.errors() == []


async def test_a_typed_turn_is_heard_in_the_call_and_cancelled(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path) as page, TestCall(page.live, "talk") as call:
        await page.until_text(row(call, ".call"), "twilio")
        await page.type("#turn-text", LONG)
        await page.click("#speak")
        await until(lambda: call.leg.messages > 20, "speech at the caller's")
        assert call.leg.playout.playing(asyncio.get_running_loop().time())
        await page.until_text(row(call, ".played"), "And on")
        await page.click("#cancel")
        await until(lambda: call.leg.clears, "the cut")
        await page.until_text(row(call, ".cut"), "cut")
        await page.until(lambda hidden: not hidden, f"return document.querySelector({row(call, '.cut')!r}).hidden")
        assert await page.text(row(call, ".queued")) == ""
        await page.until_text("#log", "cut (stopped) after")
        assert "enough" not in await page.text(row(call, ".played"))
        await page.until_text(row(call, "[data-label='last cut']"), "ms")
        await page.click(row(call, ".hangup"))
        await page.answer(agrees=False)
        await page.click(row(call, ".hangup"))
        assert call.leg.closed_at is None
        await page.answer(agrees=True)
        await until(lambda: call.leg.closed_at is not None, "the end of the call")
        await until(lambda: call.call.ended, "the callback of the end")
        assert call.call.ended == "hangup_by_api"


async def test_the_box_speaks_into_the_chosen_call_with_the_chosen_voice(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    async with (
        console(driver, tmp_path) as page,
        TestCall(page.live, "talk", number=1) as one,
        TestCall(page.live, "default", number=2) as two,
    ):
        await page.until_text(row(one, ".call"), "talk")
        await page.until_text(row(two, ".call"), "default")
        await page.click(row(two, ".choose"))
        await page.do("document.querySelector('#turn-voice').value = 'tone'")
        await page.type("#turn-text", TEXT)
        await page.click("#speak")
        await until(lambda: two.leg.messages > 5, "speech")
        assert one.leg.messages == 0
        assert page.engine.asked[-1].voice == "tone"
        assert "chosen" in await page.do("return document.querySelector(args[0]).className", row(two))


async def test_text_is_sent_as_if_the_caller_had_said_it(driver: webdriver.Chrome, tmp_path: Path) -> None:
    calls = {"folder": str(tmp_path / "calls"), "keep_text": True}
    async with console(driver, tmp_path, calls=calls) as page:
        async with TestCall(page.live, "talk") as call:
            await page.until_text(row(call, ".call"), "twilio")
            turn = call.call.speak(LONG)
            await until(lambda: call.leg.messages > 20, "speech")
            await page.type("#turn-text", "Where is my parcel?")
            await page.click("#as-caller")
            await until(lambda: any(each["type"] == "prompt" for each in call.messages), "the prompt")
            await until(lambda: turn.outcome == "interrupted", "words cut as speech does")
            (prompt,) = (each for each in call.messages if each["type"] == "prompt")
            assert (prompt["voicePrompt"], prompt["last"], prompt["lang"]) == ("Where is my parcel?", True, "en-US")
            assert not any("yped" in name for name in prompt)
            await page.until_text("#log", "caller: Where is my parcel?")
            await call.spoken("On the way.")
        await page.open(f"{page.live.http}/#call={call.call.session_id}")
        await page.until_text("#call-entries .heard", "Where is my parcel?", "typed by default")
        await page.until_text("#call-entries .silence", "caller stopped to bot heard")


async def test_the_plots_have_points_with_units(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path) as page, TestCall(page.live, "talk") as call:
        await call.spoken("Hello there.")
        cut = call.call.speak(LONG)
        await until(lambda: call.leg.messages > 40, "speech")
        call.call.send("cancel")
        await until(lambda: cut.outcome, "the cut")
        for title, series in {"First packet": 2, "Cut": 2, "Pacing error": 2, "First chunk": 0, "Engine": 2}.items():
            script = (
                f"const plot = [...document.querySelectorAll('.plot')].find(p => p.querySelector('h3').textContent"
                f".startsWith('{title}')); return [plot.querySelectorAll('path.line').length,"
                "plot.querySelector('svg').getAttribute('aria-label'), plot.querySelectorAll('text').length]"
            )
            lines, label, texts = await page.until(lambda found, least=series: found[0] >= least, script)
            assert texts == 6, "three marks on each axis"
            if title in ("First packet", "Cut", "Pacing error"):
                assert " ms" in label and "none" not in label
        paths = await page.do("return [...document.querySelectorAll('path.line')].map(path => path.getAttribute('d'))")
        assert all("NaN" not in path and "Infinity" not in path for path in paths)


async def test_a_page_that_is_opened_plots_the_hour_before(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with api_gateway(tmp_path, **SECTIONS) as (made, engine, url):
        history, now = made.http.history, made.ticker.now()
        live = Live(url.removeprefix("http://"), None, tmp_path)  # type: ignore[arg-type]  # the same process
        async with TestCall(live, "talk") as call:
            for age_s in range(3500, 1700, -10):
                history._now = lambda age_s=age_s: now - age_s  # type: ignore[misc]
                await history.take()
            await call.spoken(TEXT)
            for age_s in range(1700, 0, -10):
                history._now = lambda age_s=age_s: now - age_s  # type: ignore[misc]
                await history.take()
        history._now = made.ticker.now
        page = Console(driver, live, engine)
        await page.open(f"{url}/")
        first = "return document.querySelector('.plot svg')"
        await page.until(lambda text: "−60 min" in text, f"{first}.textContent")
        await page.until(lambda drawn: drawn == 2, f"{first}.querySelectorAll('path.line').length")
        await page.do(
            "const span = document.querySelector('#plots-span'); span.value = '600';"
            "span.dispatchEvent(new Event('change'))"
        )
        await page.until(lambda text: "−10 min" in text, f"{first}.textContent")
        await page.do("localStorage.clear()")
        await page.open("about:blank")


async def test_pages_of_routes_usage_and_keys_are_reached_by_keyboard(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path) as page:
        await page.tab_to(".bar a[href='#routes']")
        await page.press(Keys.ENTER)
        await page.until_text("#admin-rows", "talk", "the manager dials in", "en-US")
        assert await page.do("return [document.activeElement.id, document.querySelector('#overview').hidden]") == [
            "admin-title", True,
        ]  # fmt: skip
        await page.do("location.hash = '#usage'")
        await page.until_text("#admin-empty", "Nothing has been used yet")
        await page.do("await fetch('/v1/tts', {method: 'POST', headers: {'Content-Type': 'application/json'},"
                      " body: JSON.stringify({text: 'Nine chars'})}).then(answer => answer.blob())")  # fmt: skip
        await page.do("location.hash = '#keys'")
        await page.until_text("#admin-empty", "There is no key")
        await page.until_text("#admin-note", "No key is required", "auth.keys_file")
        await page.do("location.hash = '#usage'")
        await page.until_text("#admin-rows .sums", "All", "10")
        await page.tab_to("#admin-page nav a")
        await page.press(Keys.ENTER)
        await page.until(lambda at: at == "calls", "return document.activeElement.id")
        assert await page.do("return document.querySelector('#admin-page').hidden") is True


async def test_pages_tell_an_error_whole_and_draw_long_lists_in_parts(driver: webdriver.Chrome, tmp_path: Path) -> None:
    keys: list[dict[str, Any]] = [
        {"key": "k" * 20 + str(number), "tenant": f"tenant {number}"} for number in range(205)
    ]
    keys[0]["scopes"] = ["read"]
    keys[1]["scopes"] = ["admin"]
    async with console(driver, tmp_path, auth={"api_keys": keys}) as page:
        for key in keys[:2]:
            await page.type("#key", str(key["key"]))
            await page.press(Keys.ENTER)
            await page.until(bool, "return !!document.querySelector('#admin-page')")
            await page.do("location.hash = '#keys'")
            if key is keys[0]:
                await page.until_text("#admin-message", "this request needs the scope admin, the key has read")
                assert await page.do("return document.querySelector('#admin-scroll').hidden") is True
                await asyncio.to_thread(driver.delete_all_cookies)
                await page.open(f"{page.live.http}/")
        await page.until_text("#admin-rows", "tenant 199")
        rows = "return document.querySelectorAll('#admin-rows tr').length"
        assert await page.do(rows) == 200
        await page.click("#admin-all")
        assert await page.do(rows) == 205
        for width in (1440, 390):
            await resize(driver, width)
            assert await page.do("return document.documentElement.scrollWidth") <= width
        await resize(driver, 1280)
        await asyncio.to_thread(driver.delete_all_cookies)


async def test_percentiles_are_those_of_what_came_between(driver: webdriver.Chrome, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    histogram = Histogram("h_seconds", "", ["a"], buckets=(0.1, 0.2, 0.4, 0.8), registry=registry)
    histogram.labels("x").observe(0.7)
    before = generate_latest(registry).decode()
    for label, values in {"x": (0.15, 0.15, 0.15, 0.3), "y": (0.3, 0.3, 0.3, 5.0)}.items():
        for value in values:
            histogram.labels(label).observe(value)
    after = generate_latest(registry).decode()
    async with console(driver, tmp_path) as page:
        found = await page.do(
            "const {parse, quantile} = await import('/web/console-figures.js');"
            "const [a, b] = args.map(text => parse(text).buckets.get('h_seconds'));"
            "return [...[0.25, 0.375, 0.5, 0.875, 1].map(q => quantile(a, b, q)), quantile(b, b, 0.5)]",
            before, after,
        )  # fmt: skip
    # 3 values up to 0.2, 4 more up to 0.4, 1 beyond the last bound; within a bucket by straight lines
    assert found == pytest.approx([0.1 + 0.1 * 2 / 3, 0.2, 0.25, 0.4, 0.8, None])


async def test_voices_are_listed_heard_registered_and_removed(
    driver: webdriver.Chrome, tmp_path: Path, reference: Path
) -> None:
    async with console(driver, tmp_path) as page:
        assert isinstance(page.engine, CloningEngine)
        await page.until_text("#voice-list", "Tone", "built in")
        await page.click("[data-voice=tone] button")
        played = await page.until(
            lambda at: at[0] > 0.2, "const p = document.querySelector('#player'); return [p.currentTime, p.duration]"
        )
        assert played[1] > 1.0
        await page.click("#register summary")
        await page.click("#voice-form .primary")
        assert await page.do("return document.activeElement.id") == "transcript", "the browser asks for it"
        await page.type("#voice-file", str(reference))
        await page.until(lambda hidden: not hidden, "return document.querySelector('#reference').hidden")
        await page.type("#transcript", "Hum.")
        await page.type("#voice-id", "anna")
        await page.type("#voice-name", "Anna")
        await page.click("#voice-form .primary")
        await page.until_text("#voice-list", "Anna", "registered")
        with wave.open(io.BytesIO(page.engine.registry.wav("anna"))) as kept:
            assert (kept.getframerate(), kept.getnchannels()) == (24000, 1)
            assert kept.getnframes() == pytest.approx(48000, rel=0.01)
            pcm = np.frombuffer(kept.readframes(48000), "<i2")
            assert np.abs(pcm).max() == pytest.approx(9000, rel=0.02)
        await page.click("[data-voice=anna] button")
        await until(lambda: page.engine.asked[-1].voice == "anna", "the new voice")
        await page.click("[data-voice=anna] .plain")
        await page.answer(agrees=True)
        await page.until(
            lambda left: left == ["tone"],
            "return [...document.querySelectorAll('[data-voice]')].map(item => item.dataset.voice)",
        )


async def test_a_voice_from_the_microphone_and_an_engine_that_takes_none(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    async with console(driver, tmp_path, clones=False) as page:
        await page.click("#register summary")
        await page.click("#record")
        await page.until(lambda pressed: pressed == "true", "return document.querySelector('#record').ariaPressed")
        await asyncio.sleep(1)  # of recording
        await page.click("#record")
        seconds = await page.until(lambda s: s and s > 0.3, "return document.querySelector('#reference').duration")
        assert seconds < 60
        await page.type("#transcript", "Hum.")
        await page.click("#voice-form .primary")
        await page.until_text("#voice-problem", "cannot clone", "cosyvoice")


WATCH = """
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (...to) {
  window.ears = [0, 1].map(channel => {
    const [split, ear] = [new ChannelSplitterNode(this.context), new AnalyserNode(this.context)];
    connect.call(this, split);
    connect.call(split, ear, channel);
    return ear;
  });
  return connect.apply(this, to);
};"""
HEARD = """return (window.ears ?? []).map(ear => {
  const sound = new Float32Array(ear.fftSize);
  ear.getFloatTimeDomainData(sound);
  return Math.max(...sound.map(Math.abs));
})"""


async def test_a_supervisor_listens_in_by_keyboard_and_stops(driver: webdriver.Chrome, tmp_path: Path) -> None:
    calls = {"folder": str(tmp_path / "calls")}
    async with console(driver, tmp_path, calls=calls) as page, TestCall(page.live, "talk") as call:
        await page.do(WATCH)
        await page.until_text(row(call, ".call"), "talk")
        pressed = "return document.querySelector(args[0]).ariaPressed"
        await page.tab_to(row(call, ".listen"))
        assert await page.do(pressed, row(call, ".listen")) == "false"
        await page.press(Keys.SPACE)
        assert await page.do(pressed, row(call, ".listen")) == "true"
        call.call.speak(LONG)
        await page.until(lambda ears: ears and ears[1] > 0.02, HEARD)
        await page.press(Keys.SPACE)
        assert await page.do(pressed, row(call, ".listen")) == "false"
        assert not await page.errors()


async def test_a_supervisor_takes_over_by_the_microphone_and_leaves(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """The microphone says a tone of 440 Hz."""
    async with (
        console(driver, tmp_path, webrtc={"addresses": ["127.0.0.1"]}) as page,
        TestCall(page.live, "talk") as call,
    ):
        await page.until_text(row(call, ".call"), "talk")
        await page.click("#supervise [value=whisper]")
        await page.until_text("#problem", "has none")  # there is no person to whisper to
        await page.click("#supervise [value=takeover]")
        pressed = "return document.querySelector('#supervise [value=takeover]').ariaPressed"
        await page.until(lambda value: value == "true", pressed)

        def hears() -> bool:
            pcm = decode_ulaw(bytes(call.leg.playout.heard[-4000:]))
            return len(pcm) >= 4000 and level_of(pcm, 440, 8000) > 0.05

        await until(hears, "the supervisor at the caller")
        await until(lambda: {"info", "supervisor", "takeover"} <= told(call), "the manager is told")
        await page.click("#supervise [value=listen]")
        await until(lambda: {"supervisor", "none"} <= told(call), "the bot is alone with the caller")
        await page.click("#supervise-leave")
        await page.until(
            lambda value: value == "false", "return document.querySelector('#supervise [value=listen]').ariaPressed"
        )


def told(call: TestCall) -> set[object]:
    return {value for message in call.messages if message["type"] == "info" for value in message.values()}


async def test_everything_works_by_keyboard(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with (
        console(driver, tmp_path) as page,
        TestCall(page.live, "talk", number=1) as one,
        TestCall(page.live, "default", number=2) as two,
    ):
        await page.until_text(row(two, ".call"), "default")
        await page.press(Keys.TAB)
        assert await page.do("return document.activeElement.className") == "skip"
        await page.press(Keys.ENTER)
        assert await page.do("return document.activeElement.id") == "calls"
        await page.tab_to(row(two, ".choose"))
        await page.press(Keys.SPACE)
        assert await page.do("return document.querySelector(args[0]).ariaPressed", row(two, ".choose")) == "true"
        assert await page.do("return document.querySelector('#turn-call').value") == two.call.session_id
        await page.tab_to("#turn-text")
        await page.press(LONG, Keys.ENTER)
        await until(lambda: two.leg.messages > 10, "speech")
        await page.press(Keys.ESCAPE)
        await until(lambda: two.leg.clears, "the cut")
        await page.tab_to("[data-voice=tone] button")
        await page.press(Keys.ENTER)
        await page.until(lambda at: at > 0, "return document.querySelector('#player').currentTime")
        await page.until(lambda at: at, "return document.activeElement.matches('[data-voice=tone] button')")
        await page.press(Keys.HOME)
        await page.do("document.querySelector('.bar a').focus()")
        await page.tab_to(row(one, ".hangup"))
        await page.press(Keys.ENTER)
        await page.answer(agrees=True)
        await until(lambda: one.leg.closed_at is not None, "the end of the first call")
        assert two.leg.closed_at is None


async def test_every_control_has_a_name_and_the_table_its_parts(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path) as page, TestCall(page.live, "talk") as call:
        await page.until_text(row(call, ".call"), "twilio")
        await page.do("document.querySelector('#register').open = true")
        for width in (1280, 390):
            await resize(driver, width)
            tree = await asyncio.to_thread(driver.execute_cdp_cmd, "Accessibility.getFullAXTree", {})
            nodes = [node for node in tree["nodes"] if not node.get("ignored")]
            roles = [node["role"]["value"] for node in nodes]
            assert nameless(nodes) == []
            assert roles.count("row") == 2 and roles.count("columnheader") == 8
            assert roles.count("cell") + roles.count("gridcell") == 8
        await resize(driver, 1280)


def nameless(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Roles of those of an accessibility tree that need a name and have none."""
    named = {
        "button", "textbox", "searchbox", "combobox", "checkbox", "link", "img", "image", "table", "region", "meter",
        "list", "search",
    }  # fmt: skip
    found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    return [role for role, name in found if role in named and not name.strip()]


async def resize(driver: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    await asyncio.to_thread(driver.execute_cdp_cmd, "Emulation.setDeviceMetricsOverride", size)


CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgba = color => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data; };
const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const behind = node => { for (; node; node = node.parentElement) {
  const color = rgba(getComputedStyle(node).backgroundColor); if (color[3] === 255) return color; }
  return [255, 255, 255]; };
const bad = [];
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
  if (!own || !node.checkVisibility() || node.closest(":disabled, svg, .visually-hidden, noscript")) continue;
  const [a, b] = [light(rgba(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) bad.push([node.className, node.textContent, (a + 0.05) / (b + 0.05)]);
}
return bad;
"""


async def test_both_schemes_can_be_read_and_the_choice_is_kept(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path) as page, TestCall(page.live, "talk") as call:
        await call.spoken(TEXT)
        await page.until_text(row(call, ".played"), "ten.")
        schemes = []
        for _ in range(2):
            await page.click("#theme")
            schemes.append(await page.do("return getComputedStyle(document.body).backgroundColor"))
            assert await page.do(CONTRAST) == [], "WCAG 2.2, 1.4.3"
        assert len(set(schemes)) == 2
        await asyncio.to_thread(driver.refresh)
        await page.until_text("#status", "ready")
        assert await page.do("return getComputedStyle(document.body).backgroundColor") == schemes[-1]
        await page.do("localStorage.clear()")


async def test_nothing_sticks_out_of_the_screen(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path) as page:
        card = (
            "const card = document.querySelector('.dial').getBoundingClientRect();"
            "return card.bottom - document.querySelector('#phone [data-part=call]').getBoundingClientRect().bottom"
        )
        for width in WIDTHS:
            await resize(driver, width)
            room = await page.until(bool, card)
            assert room >= 8, f"the idle phone, which is the highest, fits its card at {width}"
        async with TestCall(page.live, "talk") as call:
            await call.spoken(TEXT)
            await page.until_text(row(call, ".played"), "ten.")
            await page.do("document.querySelector('#register').open = true")
            for width in WIDTHS:
                await resize(driver, width)
                await nothing_sticks_out(page, width)
    await resize(driver, 1280)


async def nothing_sticks_out(page: Console, width: int) -> None:
    sticking = await page.do(
        "return [...document.querySelectorAll('body *')]"
        ".filter(node => !node.closest('thead, .visually-hidden, .skip') && node.checkVisibility()"
        " && node.getBoundingClientRect().right > innerWidth)"
        ".map(node => node.outerHTML.slice(0, 80))"
    )
    assert sticking == [], width
    assert await page.do("return document.documentElement.scrollWidth") <= width
    overlapping = await page.do(
        "const boxes = [...document.querySelectorAll('#call-rows td')].map(cell => cell.getBoundingClientRect());"
        "return boxes.filter((a, i) => boxes.slice(0, i).some(b => a.left < b.right - 1 && b.left < a.right - 1"
        " && a.top < b.bottom - 1 && b.top < a.bottom - 1)).length"
    )
    assert overlapping == 0, width


async def test_the_phone_calls_from_the_console_and_hears_what_is_typed(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    async with console(driver, tmp_path) as page:
        await page.click("#phone [data-part=call]")
        await page.until_text("#call-rows", "webrtc")
        await page.until_text("#turn-call", "webrtc")
        await page.type("#turn-text", "Hello from the console.")
        await page.click("#speak")
        await page.until_text("#phone [data-part=rows]", "Hello", "console.")
        await page.click("#phone [data-part=call]")
        await page.until(lambda rows: rows == 0, "return document.querySelector('#call-rows').childElementCount")


async def test_a_server_that_is_gone_is_told(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with api_gateway(tmp_path, **SECTIONS) as (_, engine, url):
        page = Console(driver, Live("", None, tmp_path), engine)  # type: ignore[arg-type]
        await page.open(f"{url}/")
        await page.until_text("#status", "ready")
    await page.until_text("#status", "cannot be reached")
    assert await page.do("return document.querySelector('#status').dataset.state") == "unreachable"
    await page.open("about:blank")


async def test_with_keys_the_page_asks_for_one_first(driver: webdriver.Chrome, tmp_path: Path) -> None:
    keys = {"api_keys": [{"key": "a-long-random-key", "tenant": "desk"}]}
    async with console(driver, tmp_path, auth=keys) as page:
        await page.type("#key", "not the key")
        await page.press(Keys.ENTER)
        await page.until_text("[role=alert]", "Unknown key")
        await page.type("#key", "a-long-random-key")
        await page.press(Keys.ENTER)
        await page.until_text("#status", "ready")
        await page.until_text("#voice-list", "Tone")
        await page.until_text("#plots", "p95")
        stored = await page.do("return [document.cookie, location.href, JSON.stringify({...localStorage})].join(' ')")
        assert "a-long-random-key" not in stored, "scripts cannot read it"
        await asyncio.to_thread(driver.delete_all_cookies)
        await page.until(bool, "return !!document.querySelector('#key')")
