"""The web phone in a real browser: headless Chromium, a running server, the embedded voice."""

from __future__ import annotations

import asyncio
import base64
import re
import signal
import sys
import wave
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from aiohttp import web
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.peers.live_server import Live, child_environment, serve
from tests.peers.programs import needs_chromium
from tests.peers.web.browsers import Page, chromium
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_chromium]

ROOT = Path(__file__).parent.parent.parent.parent
CONFIG = f"""
server: {{drain_s: 1}}
routes:
  default: {{dialogue: {{script: "{ROOT / "configs/demo-script.yaml"}"}}}}
  call: {{parameters: {{tier: gold}}}}
webrtc: {{lost_after_s: 300, allowed_origins: ["*"]}}  # no call is given up within a test: each ends on purpose
"""
SENTENCE = "The quick brown fox jumps over the lazy dog, and then it runs back home to sleep until the morning."
SELECTED = "return document.querySelector('[data-part=route]').selectedOptions[0]?.textContent ?? ''"
LONG = " ".join([SENTENCE] * 15)
"""Longer than anybody waits here: who hears silence has cut it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with serve(tmp_path_factory.mktemp("server"), CONFIG) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four seconds of silence, a sentence, half a minute of silence: what the browser's microphone hears."""
    folder = tmp_path_factory.mktemp("microphone")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "talkspurt", "say", "Wait a moment, please stop talking now."),
        *("--rate", "48000", "-o", str(folder / "said.wav")),
        env=child_environment(),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    with wave.open(str(folder / "said.wav")) as said:
        assert said.getframerate() == 48000
        words = said.readframes(said.getnframes())
    with wave.open(str(folder / "speech.wav"), "wb") as file:
        file.setparams((1, 2, 48000, 0, "NONE", ""))
        file.writeframes(bytes(4 * 96_000) + words + bytes(30 * 96_000))
    return folder / "speech.wav"


@pytest.fixture(scope="module")
def driver(speech: Path) -> Iterator[webdriver.Chrome]:
    with chromium(microphone=speech) as made:
        yield made


class Phone(Page):
    """The page, as a hand and an eye use it."""

    async def part(self, name: str, what: str = "textContent") -> Any:
        return await self.do(f"return document.querySelector('[data-part={name}]').{what}")

    async def click(self, selector: str) -> None:
        await asyncio.to_thread(lambda: self.driver.find_element(By.CSS_SELECTOR, selector).click())

    async def type(self, keys: str, selector: str = "body") -> None:
        await asyncio.to_thread(lambda: self.driver.find_element(By.CSS_SELECTOR, selector).send_keys(keys))

    async def call(self, route: str, *, microphone: bool) -> None:
        await self.until(
            lambda names: route in names, "return [...document.querySelectorAll('option')].map(o => o.value)"
        )
        await self.do(f"document.querySelector('[data-part=route]').value = '{route}'")
        if not microphone:
            await self.click("[data-part=use]")
        await self.click("[data-part=call]")
        await self.until(
            lambda state: state == "In call", "return document.querySelector('[data-part=state]').textContent"
        )
        await self.do(LISTEN)

    async def say(self, text: str) -> None:
        await self.do("document.querySelector('[data-part=say] input').value = args[0]", text)
        await self.click("[data-part=say] [type=submit]")

    async def said(self, count: int = 1) -> str:
        """The words of the bot, once at least ``count`` are there."""
        text: str = await self.until(
            lambda text: len(text.split()) >= count,
            "return [...document.querySelectorAll('.bot .said, .bot .now')].map(s => s.textContent).join('')",
        )
        return text

    async def heard(self) -> dict[str, Any]:
        value: dict[str, Any] = await self.do("return heard")
        return value

    async def silent(self) -> None:
        """Wait until nothing more is heard: the browser's own buffer is empty."""
        loud = frames = -1

        async def quiet() -> bool:
            nonlocal loud, frames
            heard = await self.heard()
            if heard["frames"] < frames + 20:
                return False
            before, loud, frames = loud, heard["loud"], heard["frames"]
            return before == loud

        await until(quiet, "silence")


# WebAudio on the element that plays the bot, beside the phone's own meter, and the events as they come.
LISTEN = """
const {call} = document.querySelector('main').phone;
const context = new AudioContext(), analyser = new AnalyserNode(context, {fftSize: 2048, smoothingTimeConstant: 0});
context.createMediaStreamSource(call.audio.srcObject).connect(analyser);
window.heard = {frames: 0, loud: 0, speech: 0, all: 0};
window.events = [];
for (const name of ["caption", "turn", "interrupt", "dtmf"])
  call.on(name, detail => events.push({name, at: performance.now(), ...detail}));
const wave = new Float32Array(2048), bins = new Float32Array(1024);
clearInterval(window.listening);
window.listening = setInterval(() => {
  analyser.getFloatTimeDomainData(wave);
  analyser.getFloatFrequencyData(bins);
  heard.frames += 1;
  const rms = Math.sqrt(wave.reduce((sum, x) => sum + x * x, 0) / wave.length);
  if (rms < 0.01) return;
  heard.loud += 1;
  bins.forEach((db, i) => {
    const hz = i * context.sampleRate / 2048, power = 10 ** (db / 10);
    heard.all += power;
    if (hz > 80 && hz < 4000) heard.speech += power;
  });
}, 20);
"""


# A microphone that hears what a test plays into it, when the test says so.
MICROPHONE = """
const context = new AudioContext(), ear = context.createMediaStreamDestination();
navigator.mediaDevices.getUserMedia = async () => ear.stream;
window.say = async wav => {
  const bytes = Uint8Array.from(atob(wav), letter => letter.charCodeAt(0));
  const sound = new AudioBufferSourceNode(context, {buffer: await context.decodeAudioData(bytes.buffer)});
  sound.connect(ear);
  sound.start();
};
"""


@asynccontextmanager
async def phoning(
    driver: webdriver.Chrome, live: Live, route: str = "call", *, microphone: bool = False, prepare: str = ""
) -> AsyncIterator[Phone]:
    """A call of the page. ``prepare``: a script that runs in the page before the call."""
    phone = Phone(driver)
    await phone.open(f"{live.http}/phone")
    await phone.do(prepare)
    await phone.call(route, microphone=microphone)
    yield phone
    await phone.open("about:blank")
    await until(lambda: no_calls(live), "the end of the call")
    # Not one refused file, style, script or connection, nothing thrown. A page that is left hangs up in two ways at
    # once: its request may come second and find no call.
    messages = [entry["message"] for entry in driver.get_log("browser")]
    assert [message for message in messages if "/whip/call/VX" not in message or "404" not in message] == []


async def calls(live: Live) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.get(f"{live.http}/v1/calls") as answer:
        found: list[dict[str, Any]] = (await answer.json())["calls"]
        return found


async def no_calls(live: Live) -> bool:
    return not await calls(live)


async def test_the_voice_is_heard_and_its_words_follow_it(driver: webdriver.Chrome, live: Live) -> None:
    async with phoning(driver, live) as phone:
        await phone.say(SENTENCE)
        await phone.until(bool, "return events.some(e => e.name === 'turn' && e.event === 'finished')")
        events = await phone.do("return events")
        captions = [event for event in events if event["name"] == "caption"]
        started, finished = ([e for e in events if e.get("event") == event][0] for event in ("started", "finished"))
        assert "".join(caption["text"] for caption in captions) == SENTENCE == await phone.said()
        assert len(captions) == len(SENTENCE.split())  # word by word
        # Spread over the sound, not bunched at its beginning or end.
        length_s = finished["audioMs"] / 1000
        times = np.array([caption["at"] - started["at"] for caption in captions]) / 1000
        assert times[-1] - times[0] > 0.5 * length_s
        assert 0.2 < (np.median(times) - times[0]) / (times[-1] - times[0]) < 0.8
        # Sound of a voice.
        heard = await phone.heard()
        assert heard["speech"] / heard["all"] > 0.9
        assert heard["loud"] > 20
        stats = await phone.do("return await document.querySelector('main').phone.call.stats()")
        assert stats["codec"] == "audio/opus"
        assert stats["packetsReceived"] >= finished["audioMs"] / 20
        assert stats["packetsLost"] == 0
        # What the visitor sees of it.
        assert re.fullmatch(r"\d+ ms", await phone.part("first"))
        facts = await phone.do("return [...document.querySelectorAll('.bot .chip')].map(c => c.textContent)")
        assert re.fullmatch(r"first packet \d+ ms", facts[0]) and facts[1] == f"{length_s:.1f} s"


async def test_setup_says_that_a_browser_calls(driver: webdriver.Chrome, live: Live) -> None:
    async with phoning(driver, live) as phone:
        setup = await phone.until(bool, "return document.querySelector('main').phone.call.setup")
        assert (setup["callType"], setup["transport"], setup["direction"]) == ("CLIENT", "webrtc", "inbound")
        assert setup["customParameters"] == {"tier": "gold"}


async def test_a_route_that_does_not_exist_or_has_no_bot_is_named(driver: webdriver.Chrome, live: Live) -> None:
    phone = Phone(driver)
    await phone.open(f"{live.http}/phone?route=nosuch")
    await phone.until(lambda text: text == "nosuch · no such route", SELECTED)
    await phone.click("[data-part=call]")
    await phone.until(lambda text: "nosuch" in text, "return document.querySelector('[data-part=notice]').textContent")
    await phone.open(f"{live.http}/phone?route=call")
    await phone.until(lambda text: text.startswith("call · waits for a bot"), SELECTED)
    await phone.call("call", microphone=False)
    assert "No bot leads this route yet" in await phone.part("notice")
    await phone.say("Hello there.")
    await phone.until(lambda text: text == "", "return document.querySelector('[data-part=notice]').textContent")
    await phone.click("[data-part=call]")
    await until(lambda: no_calls(live), "the end of the call")
    driver.get_log("browser")  # has the refused call, which other tests do not expect


async def test_a_typed_stop_silences_the_voice_and_shows_what_was_not_said(
    driver: webdriver.Chrome, live: Live
) -> None:
    async with phoning(driver, live) as phone:
        await phone.say(LONG)
        await phone.said(5)
        await phone.click("[data-part=cancel]")
        (cut,) = await phone.until(bool, "return events.filter(e => e.name === 'interrupt')")
        assert cut["reason"] == "cancel"
        assert cut["utteranceUntilInterrupt"] == await phone.said()
        assert cut["utteranceRemaining"] == await phone.do("return document.querySelector('.unsaid').textContent")
        assert cut["utteranceUntilInterrupt"] + cut["utteranceRemaining"] == LONG
        await phone.silent()


async def test_speaking_over_the_voice_stops_it(driver: webdriver.Chrome, live: Live, speech: Path) -> None:
    async with phoning(driver, live, microphone=True, prepare=MICROPHONE) as phone:
        await phone.say(LONG)
        await phone.said(3)
        words = (speech.parent / "said.wav").read_bytes()
        await phone.do("await say(args[0])", base64.b64encode(words).decode())
        (cut,) = await phone.until(bool, "return events.filter(e => e.name === 'interrupt')")
        assert cut["reason"] == "speech" and cut["utteranceRemaining"]
        chips = await phone.do("return [...document.querySelectorAll('.bot .chip')].map(c => c.textContent)")
        assert re.fullmatch(r"cut by your voice after \d+\.\d s", chips[-1])
        await phone.silent()


async def test_a_muted_microphone_does_not_interrupt(driver: webdriver.Chrome, live: Live) -> None:
    async with phoning(driver, live, microphone=True) as phone:
        await phone.click("[data-part=mute]")
        assert await phone.part("mute", "getAttribute('aria-pressed')") == "true"
        await phone.say(SENTENCE + " " + SENTENCE)  # longer than the four seconds until the sentence
        await phone.until(bool, "return events.some(e => e.event === 'finished')")
        assert await phone.do("return events.filter(e => e.name === 'interrupt').length") == 0


async def test_keys_of_page_and_keyboard_reach_the_script(driver: webdriver.Chrome, live: Live) -> None:
    async with phoning(driver, live, "default") as phone:
        await phone.said(2)
        await phone.click("[data-key='2']")
        await phone.until(
            lambda text: "order number" in text, "return document.querySelector('.phone-rows').textContent"
        )
        await phone.type("40*#")
        await phone.until(lambda text: "Order 4 0" in text, "return document.querySelector('.phone-rows').textContent")
        keys = await phone.do("return [...document.querySelectorAll('kbd')].map(k => k.textContent)")
        assert "".join(keys) == "240*#"


async def test_either_side_hangs_up_and_the_other_knows(driver: webdriver.Chrome, live: Live) -> None:
    state = "return document.querySelector('[data-part=state]').textContent"
    async with phoning(driver, live) as phone:
        await phone.click("[data-part=call]")
        assert await phone.do(state) == "Call ended"
        await until(lambda: no_calls(live), "the server's end of the call")
    async with phoning(driver, live) as phone:
        (call,) = await calls(live)
        assert await live.status(f"/v1/calls/{call['callId']}", method="DELETE") == 204
        await phone.until(lambda text: text == "The operator ended the call", state)
    async with phoning(driver, live, "default") as phone:
        await phone.said(2)
        await phone.type("0")
        await phone.until(lambda text: text == "The bot hung up", state)
        assert (await phone.said()).endswith("Goodbye.")
        await phone.click("[data-part=call]")  # and again
        await phone.until(lambda text: text == "In call", state)


async def test_closing_the_page_hangs_up_at_once(driver: webdriver.Chrome, live: Live) -> None:
    async with phoning(driver, live) as phone:  # webrtc.lost_after_s would take minutes
        assert len(await calls(live)) == 1
        await phone.open("about:blank")
        await until(lambda: no_calls(live), "the end of the call")


# A busy page hears of its new data channel late: by then the server has closed the link before. Only a new connection
# has a new channel, so this page cannot restart ICE.
LATE = """
RTCPeerConnection.prototype.restartIce = () => { throw new Error("cannot"); };
const listen = RTCDataChannel.prototype.addEventListener;
RTCDataChannel.prototype.addEventListener = function (type, handler, ...more) {
  const late = type === "open" ? (...args) => setTimeout(() => handler(...args), 3000) : handler;
  return listen.call(this, type, late, ...more);
};
"""


@pytest.mark.parametrize("page", ["", LATE], ids=["quick", "busy"])
async def test_a_call_survives_the_loss_of_its_network(driver: webdriver.Chrome, live: Live, page: str) -> None:
    async with phoning(driver, live) as phone:
        await phone.do(page)
        (before,) = await calls(live)
        state = "return document.querySelector('[data-part=state]').textContent"
        live.process.send_signal(signal.SIGSTOP)  # from outside as a dead network: nothing comes, nothing is answered
        try:
            await phone.until(lambda text: "reconnecting" in text, state)
        finally:
            live.process.send_signal(signal.SIGCONT)
        await phone.until(lambda text: text == "In call", state)
        setup = await phone.do("return document.querySelector('main').phone.call.setup")
        assert setup.get("resumed", False) is bool(page)  # after an ICE restart the data channel is the same
        assert [call["callId"] for call in await calls(live)] == [setup["sessionId"]] == [before["callId"]]
        await phone.say("And on we go.")
        assert await phone.said(4) == "And on we go."


async def test_the_call_button_of_the_documentation_works_on_another_site(driver: webdriver.Chrome, live: Live) -> None:
    (button,) = re.findall(r"^```html\n(.*?)^```", (ROOT / "docs/browser.md").read_text(), flags=re.M | re.S)
    assert button.count("https://voice.example.com") == 1

    async def show(request: web.Request) -> web.Response:
        head = '<!doctype html><title>site</title><link rel="icon" href="data:,">'
        return web.Response(
            text=head + button.replace("https://voice.example.com", live.http), content_type="text/html"
        )

    app = web.Application()
    app.router.add_get("/", show)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        phone = Phone(driver)
        await phone.open(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        await phone.click("#talk")
        words = "return document.querySelector('#words').textContent"
        await phone.until(lambda text: text.startswith("Hello there,"), words)
        assert await phone.do("return document.querySelector('#talk').textContent") == "Hang up"
        (call,) = await calls(live)
        assert call["route"] == "default"
        await phone.click("#talk")
        await until(lambda: no_calls(live), "the end of the call")
    finally:
        await runner.cleanup()


async def test_a_phone_with_a_token_for_calls_has_its_route_and_leads_nothing(
    driver: webdriver.Chrome, live: Live
) -> None:
    body = {"scope": "call", "route": "call"}
    async with aiohttp.ClientSession() as http, http.post(f"{live.http}/v1/tokens", json=body) as answer:
        token = (await answer.json())["token"]
    phone = Phone(driver)
    await phone.open(f"{live.http}/phone")
    await phone.do(
        "const {mountPhone} = await import('/web/phone.js');"
        f"mountPhone(document.querySelector('main'), {{token: '{token}', route: 'call'}});"
    )
    await phone.until(lambda value: value == "call", "return document.querySelector('[data-part=route]').value")
    await phone.click("[data-part=call]")
    await phone.until(lambda text: text == "In call", "return document.querySelector('[data-part=state]').textContent")
    (call,) = await calls(live)
    assert call["route"] == "call"
    assert await phone.do("return document.querySelector('[data-part=say] input').disabled")
    assert not await phone.do("return document.querySelector('[data-part=keys] button').disabled")
    await phone.click("[data-part=call]")
    await until(lambda: no_calls(live), "the end of the call")
    messages = [entry["message"] for entry in driver.get_log("browser")]
    assert all("/v1/routes" in message for message in messages), "nothing but the list of routes is refused"


async def test_twenty_calls_leave_nothing_behind(driver: webdriver.Chrome, live: Live) -> None:
    phone = Phone(driver)
    await phone.open(f"{live.http}/phone")
    one_call = """
        const {Call} = await import("/web/talkspurt.js");
        const call = new Call({route: "call", microphone: false});
        const word = new Promise(done => call.on("caption", done));
        await call.start();
        call.text("One more call, with a few words in it.");
        await word;
        call.hangup();
        return [...document.querySelectorAll("audio")].length;
    """
    await phone.do(
        "const Real = RTCPeerConnection; window.peers = [];"
        "window.RTCPeerConnection = class extends Real { constructor(...given) { super(...given); peers.push(this); } }"
    )

    async def settled() -> None:
        await until(lambda: no_calls(live), "no calls")
        await until(lambda: live.metric_is("talkspurt_calls_active", 0), "no calls in the metrics")

    before_any = live.open_files()
    for _ in range(4):
        await phone.do(one_call)
    await settled()
    resident = live.resident_kb()
    for _ in range(20):
        await phone.do(one_call)
    await settled()
    await until(lambda: live.open_files() <= before_any + 4, "the calls' files to be closed")
    assert live.resident_kb() < 1.1 * resident
    await phone.until(lambda states: states == ["closed"] * 24, "return peers.map(peer => peer.connectionState)")


async def test_everything_has_a_name_and_fits_a_small_screen(driver: webdriver.Chrome, live: Live) -> None:
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    await asyncio.to_thread(driver.execute_cdp_cmd, "Emulation.setDeviceMetricsOverride", metrics)
    try:
        async with phoning(driver, live) as phone:
            await phone.say(SENTENCE)
            await phone.said(3)
            await phone.click("[data-part=toggle]")
            assert await phone.do("return document.documentElement.scrollWidth") == 390
            controls = driver.find_elements(By.CSS_SELECTOR, "button, input, select, [role=meter], ol[tabindex]")
            names = [control.accessible_name for control in controls if control.is_displayed()]
            assert len(names) >= 17 and all(names), names
            low = await phone.do(
                "return [...document.querySelectorAll('button')].filter(button => "
                "button.checkVisibility({visibilityProperty: true}) && button.getBoundingClientRect().height < 40"
                ").map(button => button.textContent)"
            )
            assert low == []
    finally:
        await asyncio.to_thread(driver.execute_cdp_cmd, "Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize(
    ("flags", "permission", "sentence"),
    [
        (["use-fake-device-for-media-stream"], "denied", "was denied"),
        ([], "granted", "No microphone was found"),
    ],
)
async def test_without_a_microphone_the_page_says_so_and_listens(
    live: Live, flags: list[str], permission: str, sentence: str
) -> None:
    with chromium(*flags) as driver:
        driver.execute_cdp_cmd("Browser.setPermission", {"permission": {"name": "microphone"}, "setting": permission})
        phone = Phone(driver)
        await phone.open(f"{live.http}/phone")
        await phone.call("default", microphone=True)
        assert sentence in await phone.part("notice")
        assert await phone.part("mute", "disabled") and not await phone.part("notice", "hidden")
        await phone.said(2)
        await phone.type("2")
        await phone.until(
            lambda text: "order number" in text, "return document.querySelector('.phone-rows').textContent"
        )
        await phone.open("about:blank")
        await until(lambda: no_calls(live), "the end of the call")
