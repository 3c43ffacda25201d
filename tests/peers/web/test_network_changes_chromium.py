"""Chromium's calls while its network and microphone change, judged by the sound at the far end of each direction.

The browser reaches the server through an address translator, which can change its address or lose everything.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from selenium import webdriver

from gateway.config import WebRtcConfig
from gateway.seams.messages import Subscribe
from tests.gateway.webrtc.address_translator import AddressTranslator
from tests.gateway.webrtc.webrtc_gateway import TestGateway, gateway, strongest_hz
from tests.peers.programs import needs_chromium
from tests.peers.web.browsers import Page, chromium, tone_file
from tests.waiting import until
from tts_engine.tone import tone_hz

pytestmark = needs_chromium

WEB = Path(__file__).parents[3] / "gateway/web"
MICROPHONE_HZ = 620
HEALED_S = 3.0
WORDS = "Hello there, this is a sentence."
PAGE = (Path(__file__).parent / "page.html").read_text() + (
    f"<script type=module>{(WEB / 'talkspurt.js').read_text()}\nwindow.Call = Call;</script>"
)
THROUGH = """
// The first answer leads through the translator, whose port is asked for; nothing else is told to either side.
window.direct = false;
const post = window.fetch;
window.fetch = (url, options) => {
  if (window.direct || !options?.body) return post(url, options);
  if (options.method === "PATCH") return Promise.resolve(new Response());
  const body = JSON.parse(options.body);
  body.sdp = body.sdp.replace(/a=candidate.*\\r\\n/g, "");
  return post(url, {...options, body: JSON.stringify(body)});
};
const take = RTCPeerConnection.prototype.setRemoteDescription;
RTCPeerConnection.prototype.setRemoteDescription = async function (answer) {
  if (window.direct) return take.call(this, answer);
  window.serverPort = Number(answer.sdp.match(/udp \\d+ 127.0.0.1 (\\d+) typ host/)[1]);
  while (!window.translator) await new Promise(done => setTimeout(done, 10));
  window.direct = true;
  return take.call(this, {type: "answer", sdp: answer.sdp.replaceAll(` ${serverPort} `, ` ${translator} `)});
};
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    tone = tone_file(tmp_path_factory.mktemp("microphone"), MICROPHONE_HZ)
    with chromium("allow-loopback-in-peer-connection", microphone=tone) as made:
        yield made


class Call:
    """A call of the page, either of its bare connection or of ``talkspurt.js``."""

    def __init__(self, made: TestGateway, page: Page, nat: AddressTranslator) -> None:
        self.made, self.page, self.nat = made, page, nat
        self.arrivals: list[tuple[float, bytes]] = []
        session = next(iter(made.directory))
        session.caller.on_pcm = lambda pcm: self.arrivals.append((time.monotonic(), pcm))  # type: ignore[method-assign, assignment]
        session.on_message(Subscribe(media=True, sample_rate=16000))

    def microphone_hz(self, begin: float) -> float:
        """The frequency of the half second from ``begin``; 0: silence."""
        pcm = np.frombuffer(b"".join(pcm for at, pcm in self.arrivals if at >= begin)[:16000], np.int16)
        return strongest_hz(pcm, 16000) if len(pcm) and np.abs(pcm).max() > 1000 else 0.0

    async def speaks(self, *, hz: float = MICROPHONE_HZ) -> None:
        """Wait until the server hears the tone of the microphone, or silence."""
        await until(lambda: abs(self.microphone_hz(time.monotonic() - 0.7) - hz) < 8, f"a tone of {hz} Hz")

    async def hears(self, turn: str) -> None:
        await self.page.do("call.heard = {frames: 0, hz: {}}")
        await self.page.do(f"call.say({{type: 'text', token: '{WORDS}', last: true, turn: '{turn}'}})")
        await self.page.until(bool, f"return call.messages.some(m => m.turn === '{turn}' && m.event === 'finished')")
        heard = await self.page.do("return call.heard")
        loudest = int(max(heard["hz"], key=lambda hz: heard["hz"][hz]))
        assert min(abs(loudest - tone_hz(words)) for words in (WORDS, "Hello there,")) <= 12, heard

    async def healed(self, begun: float) -> float:
        """Wait for the microphone's sound after a change at ``begun``. Return how long it was away, in seconds."""
        await until(lambda: [at for at, _ in self.arrivals if at > begun + 0.5], "sound after the change")
        await self.speaks()
        times = [begun, *(at for at, _ in self.arrivals if at > begun)]
        return max(later - earlier for earlier, later in zip(times, times[1:], strict=False))


BARE = "await call.start({microphone: true})"
LIBRARY = """
const made = window.made = new Call({microphone: true});
window.events = [];
for (const name of ["state", "error", "microphone"]) made.on(name, detail => events.push({name, ...detail}));
for (const name of ["setup", "turn"]) made.on(name, detail => call.messages.push({type: name, ...detail}));
await made.start();
call.say = message => made.send(message);
call.listen(made.audio.srcObject);
"""


@asynccontextmanager
async def calling(driver: webdriver.Chrome, start: str) -> AsyncIterator[Call]:
    async with gateway(WebRtcConfig(addresses=("127.0.0.1",)), page=PAGE) as made:
        page = Page(driver)
        await page.open(made.url)
        await page.until(bool, "return window.Call !== undefined")
        await page.do(THROUGH)
        await page.do(f"window.started = (async () => {{ {start} }})();")
        port = await page.until(bool, "return window.serverPort ?? 0")
        nat = AddressTranslator(("127.0.0.1", port))
        await nat.open()
        try:
            await page.do(f"window.translator = {nat.address[1]}; await window.started")
            await page.until(bool, "return call.messages.some(m => m.type === 'setup')")
            call = Call(made, page, nat)
            await call.speaks()
            await call.hears("first")
            yield call
        finally:
            nat.close()
            await asyncio.to_thread(driver.get, "about:blank")


async def test_a_new_address_heals_without_signalling(driver: webdriver.Chrome) -> None:
    async with calling(driver, BARE) as call:
        begun = time.monotonic()
        await call.nat.move()
        assert await call.healed(begun) < HEALED_S
        await call.hears("second")
        assert call.made.ended == []


async def test_an_ice_restart_of_a_bare_connection_heals_and_keeps_the_data_channel(driver: webdriver.Chrome) -> None:
    async with calling(driver, BARE) as call:
        begun = time.monotonic()
        call.nat.server = ("127.0.0.1", 9)
        await call.page.do("call.pc.restartIce(); await call.offer()")
        assert await call.healed(begun) < HEALED_S
        await call.hears("second")
        assert await call.page.do("return call.channel.readyState") == "open"
        assert await call.page.do("return call.messages.filter(m => m.type === 'setup').length") == 1
        assert call.made.ended == [] and len(call.made.directory) == 1


WHIP_RESTART = r"""
const {pc} = call, before = pc.remoteDescription.sdp;
pc.restartIce();
await pc.setLocalDescription();
const lines = pc.localDescription.sdp.split("\r\n").filter(line => /^a=(ice-ufrag|ice-pwd|group):/.test(line));
const response = await fetch(`/whip/default/${call.id}`, {
  method: "PATCH", body: lines.join("\r\n"),
  headers: {"Content-Type": "application/trickle-ice-sdpfrag", "If-Match": "*"},
});
if (response.status !== 200) throw new Error(await response.text());
const fragment = await response.text(), value = name => fragment.match(new RegExp(`a=${name}:(\\S+)`))[1];
const candidates = fragment.match(/a=candidate:.*\r\n/g).join("");
const sdp = before.replace(/a=candidate:.*\r\n/g, "").replace(/a=ice-ufrag:\S+/g, `a=ice-ufrag:${value("ice-ufrag")}`)
  .replace(/a=ice-pwd:\S+\r\n/g, `a=ice-pwd:${value("ice-pwd")}\r\n${candidates}`);
await pc.setRemoteDescription({type: "answer", sdp});
"""
"""A client of RFC 9725 puts the answer's fragment into the remote description that it has."""


async def test_an_ice_restart_by_whip_heals_and_keeps_the_data_channel(driver: webdriver.Chrome) -> None:
    async with calling(driver, BARE) as call:
        begun = time.monotonic()
        call.nat.server = ("127.0.0.1", 9)
        await call.page.do("window.direct = true;" + WHIP_RESTART)
        assert await call.healed(begun) < HEALED_S
        await call.hears("second")
        assert await call.page.do("return call.channel.readyState") == "open"
        assert call.made.ended == [] and len(call.made.directory) == 1


async def test_a_renegotiation_of_a_bare_connection_keeps_everything(driver: webdriver.Chrome) -> None:
    async with calling(driver, BARE) as call:
        await call.page.do("call.pc.addTransceiver('video'); await call.offer()")
        await call.hears("second")
        assert call.made.ended == []


@pytest.mark.parametrize(("pause", "microphone_hz"), [("inactive", 0), ("sendonly", MICROPHONE_HZ), ("recvonly", 0)])
async def test_both_sides_hear_each_other_after_a_pause(
    driver: webdriver.Chrome, pause: str, microphone_hz: int
) -> None:
    async with calling(driver, BARE) as call:
        await call.page.do(f"call.pc.getTransceivers()[0].direction = '{pause}'; await call.offer()")
        await call.speaks(hz=microphone_hz)
        await call.page.do("call.pc.getTransceivers()[0].direction = 'sendrecv'; await call.offer()")
        await call.speaks()
        await call.hears("second")


async def test_the_library_heals_a_dead_path(driver: webdriver.Chrome) -> None:
    async with calling(driver, LIBRARY) as call:
        begun = time.monotonic()
        call.nat.server = ("127.0.0.1", 9)
        # A busy machine takes sound from before the change until long after it.
        await call.page.until(bool, "return events.some(e => e.state === 'reconnecting')")
        assert await call.healed(begun) < HEALED_S
        await call.page.until(bool, "return made.state === 'connected'")
        states = await call.page.do("return events.filter(e => e.name === 'state').map(e => e.state)")
        assert states == ["connecting", "connected", "reconnecting", "connected"]
        await call.hears("second")
        assert await call.page.do("return call.messages.filter(m => m.type === 'setup').length") == 1


async def test_the_library_makes_a_new_connection_if_the_old_one_cannot_restart(driver: webdriver.Chrome) -> None:
    async with calling(driver, LIBRARY) as call:
        await call.page.do("RTCPeerConnection.prototype.restartIce = () => { throw new Error('cannot') }")
        call.nat.server = ("127.0.0.1", 9)
        await call.page.until(bool, "return call.messages.some(m => m.type === 'setup' && m.resumed)")
        await call.page.do("call.listen(made.audio.srcObject)")
        await call.speaks()
        await call.hears("second")


UNPLUG = "made.connection.getSenders()[0].track.dispatchEvent(new Event('ended'))"


async def test_an_unplugged_microphone_is_replaced_and_the_page_is_told(driver: webdriver.Chrome) -> None:
    async with calling(driver, LIBRARY) as call:
        await call.page.do(UNPLUG)
        await call.page.until(lambda count: count == 2, "return events.filter(e => e.name === 'microphone').length")
        await call.speaks()
        assert await call.page.do("return events.filter(e => e.name === 'error').map(e => e.code)") == [
            "microphone_lost"
        ]
        await call.page.do(
            "window.list = navigator.mediaDevices.enumerateDevices;"
            "navigator.mediaDevices.enumerateDevices = async () => [];" + UNPLUG
        )
        await call.speaks(hz=0)
        assert not await call.page.do("return made.hasMicrophone")
        await call.hears("second")
        await call.page.do(
            "navigator.mediaDevices.enumerateDevices = window.list;"
            "navigator.mediaDevices.dispatchEvent(new Event('devicechange'))"
        )
        await call.speaks()
        labels = await call.page.do("return events.filter(e => e.name === 'microphone').map(e => Boolean(e.label))")
        assert labels == [True, True, False, True]
        await call.page.do("await made.useMicrophone(false)")
        await call.speaks(hz=0)
        assert call.made.ended == []
