"""Chromium's calls over a TURN relay alone and over IPv6 alone, judged by the sound at both ends."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from selenium import webdriver

from gateway.config import IceServerConfig, WebRtcConfig
from gateway.seams.messages import Subscribe
from tests.gateway.webrtc.webrtc_gateway import TestGateway, gateway, strongest_hz
from tests.peers.ports import free_port
from tests.peers.programs import needs_chromium, needs_coturn
from tests.peers.web.browsers import Page, chromium, tone_file
from tests.waiting import PATIENCE_S, until
from tts_engine.tone import tone_hz

PAGE = (Path(__file__).parent / "page.html").read_text()
MICROPHONE_HZ = 620
WORDS = "Hello there."
SECRET = "north-wind"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    tone = tone_file(tmp_path_factory.mktemp("microphone"), MICROPHONE_HZ)
    with chromium("allow-loopback-in-peer-connection", microphone=tone) as made:
        yield made


@asynccontextmanager
async def relay(folder: Path) -> AsyncIterator[str]:
    """coturn on loopback, with credentials from a shared secret; its address."""
    port = free_port()
    first = free_port(40)
    lines = (
        f"listening-port={port}", "listening-ip=127.0.0.1", "relay-ip=127.0.0.1", f"min-port={first}",
        f"max-port={first + 39}", "use-auth-secret", f"static-auth-secret={SECRET}", "realm=example.com",
        "allow-loopback-peers", "no-tls", "no-dtls", "no-cli", "cli-password=none", "log-file=stdout",
        f"pidfile={folder}/turn.pid", f"userdb={folder}/turn.db",
    )  # fmt: skip
    (folder / "turn.conf").write_text("\n".join(lines) + "\n")
    process = await asyncio.create_subprocess_exec(
        *("turnserver", "-c", str(folder / "turn.conf")),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )

    async def listens() -> bool:
        assert process.returncode is None, "coturn has ended"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await until(listens, "coturn")
        yield f"turn:127.0.0.1:{port}?transport=udp"
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()


async def both_hear(made: TestGateway, page: Page) -> None:
    """The tone of the microphone reaches the server, and the tone of the bot's words the page."""
    await page.until(bool, "return call.messages.some(m => m.type === 'setup')")
    pcm: list[bytes] = []
    session = next(iter(made.directory))
    session.caller.on_pcm = pcm.append  # type: ignore[method-assign, assignment]
    session.on_message(Subscribe(media=True, sample_rate=16000))

    def microphone() -> bool:
        heard = np.frombuffer(b"".join(pcm[-20:]), np.int16)
        return len(heard) > 4000 and abs(strongest_hz(heard, 16000) - MICROPHONE_HZ) < 8

    await until(microphone, "the microphone")
    await page.do(f"call.say({{type: 'text', token: '{WORDS}', last: true, turn: 'a', interruptible: 'none'}})")
    await page.until(bool, "return call.messages.some(m => m.turn === 'a' && m.event === 'finished')")
    heard = await page.until(lambda heard: heard["frames"] > 5, "return call.heard")
    assert abs(int(max(heard["hz"], key=lambda hz: heard["hz"][hz])) - tone_hz(WORDS)) <= 12


async def candidate_pair(page: Page) -> dict[str, dict[str, str]]:
    """Both candidates of the pair that carries the call."""
    found: dict[str, dict[str, str]] = await page.do("""
        const stats = new Map(await call.pc.getStats());
        const transport = [...stats.values()].find(s => s.type === "transport");
        const pair = stats.get(transport.selectedCandidatePairId);
        return {local: stats.get(pair.localCandidateId), remote: stats.get(pair.remoteCandidateId)};
    """)
    return found


@needs_chromium
@needs_coturn
@pytest.mark.parametrize("policy", ["max-bundle", "balanced"])
async def test_a_call_over_a_relay_alone(driver: webdriver.Chrome, tmp_path: Path, policy: str) -> None:
    async with relay(tmp_path) as url:
        config = WebRtcConfig(
            addresses=("127.0.0.1",), ice_servers=(IceServerConfig(urls=(url,), secret=SECRET, username="page"),)
        )
        async with gateway(config, page=PAGE) as made:
            page = Page(driver)
            await page.open(made.url)
            await page.do(
                "const {iceServers} = await (await fetch('/v1/webrtc/ice')).json();"
                f"await call.start({{microphone: true, video: true, config: {{iceServers, iceTransportPolicy: 'relay',"
                f" bundlePolicy: '{policy}'}}}})"
            )
            await both_hear(made, page)
            assert (await candidate_pair(page))["local"]["candidateType"] == "relay"
            await asyncio.to_thread(driver.get, "about:blank")


@needs_chromium
@needs_coturn
async def test_both_sides_reach_each_other_over_a_relay_alone(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """The server asks the relay for an address of its own, and the browser is told no other."""
    async with relay(tmp_path) as url:
        server = IceServerConfig(urls=(url,), secret=SECRET)
        config = WebRtcConfig(addresses=("127.0.0.1",), ice_servers=(server,), gather_from_servers=True)
        async with gateway(config, page=PAGE) as made:
            page = Page(driver)
            await page.open(made.url)
            await page.do("""
                const take = RTCPeerConnection.prototype.setRemoteDescription;
                RTCPeerConnection.prototype.setRemoteDescription = function ({type, sdp}) {
                  return take.call(this, {type, sdp: sdp.replace(/a=candidate:.* typ (?!relay).*\\r\\n/g, "")});
                };
                const {iceServers} = await (await fetch("/v1/webrtc/ice")).json();
                await call.start({microphone: true, config: {iceServers, iceTransportPolicy: "relay"}});
            """)
            await both_hear(made, page)
            pair = await candidate_pair(page)
            assert pair["local"]["candidateType"] == "relay"
            await asyncio.to_thread(driver.get, "about:blank")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@needs_chromium
@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
async def test_a_call_over_ipv6_alone(driver: webdriver.Chrome) -> None:
    async with gateway(WebRtcConfig(addresses=("::1",)), page=PAGE) as made:
        page = Page(driver)
        await page.open(made.url)
        await page.do("await call.start({microphone: true, video: true, config: {bundlePolicy: 'max-bundle'}})")
        await both_hear(made, page)
        pair = await candidate_pair(page)
        assert ":" in pair["remote"]["address"] and made.ended == []
        await asyncio.to_thread(driver.get, "about:blank")
