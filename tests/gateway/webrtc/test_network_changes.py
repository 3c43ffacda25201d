"""A browser's connection whose network changes: ICE restarts, new addresses, losses. The peer is aiortc."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import numpy as np
import pytest
from aioice import Candidate, Connection
from aiortc import RTCSessionDescription

from gateway.config import WebRtcConfig
from gateway.seams.messages import Subscribe
from gateway.webrtc.leg import WebRtcLeg
from tests.gateway.webrtc.address_translator import AddressTranslator
from tests.gateway.webrtc.test_webrtc_calls import vanish
from tests.gateway.webrtc.webrtc_gateway import Phone, SilentMicrophone, TestGateway, calling, gateway, strongest_hz
from tests.waiting import until
from tts_engine.tone import tone_hz

WORDS = "Hello there."
LOOPBACK = WebRtcConfig(addresses=("127.0.0.1",))
MICROPHONE_HZ = 620
HEALED_S = 3.0
"""Longest interruption after a change of the network."""


def tone() -> SilentMicrophone:
    wave = 9000 * np.sin(2 * np.pi * MICROPHONE_HZ * np.arange(120 * 48000) / 48000)
    return SilentMicrophone(wave.astype(np.int16))


def leg_of(made: TestGateway) -> WebRtcLeg:
    (leg,) = made.webrtc._legs.values()
    return leg


async def both_hear(made: TestGateway, phone: Phone, turn: str) -> None:
    """The bot's words reach the phone, whose tone reaches the server. Both are judged by the sound."""
    pcm: list[bytes] = []
    session = next(iter(made.directory))
    session.caller.on_pcm = pcm.append  # type: ignore[method-assign, assignment]
    session.on_message(Subscribe(media=True, sample_rate=16000))
    phone.heard.clear()
    phone.say(type="text", token=WORDS, last=True, turn=turn)
    await until(lambda: "finished" in phone.turn_events(turn), "the turn's end")
    await until(lambda: len(pcm) >= 40, "the microphone")
    start = int(np.argmax(np.abs(phone.pcm) > 1000))
    assert strongest_hz(phone.pcm[start + 4800 : start + 14400], 48000) == pytest.approx(tone_hz(WORDS), abs=10)
    assert strongest_hz(np.frombuffer(b"".join(pcm[-20:]), np.int16), 16000) == pytest.approx(MICROPHONE_HZ, abs=5)


async def post(made: TestGateway, phone: Phone, sdp: str) -> str:
    """Offer for the phone's call; the answer."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"{made.url}/v1/webrtc/offer", json={"sdp": sdp, "type": "offer", "callId": phone.call_id}
        ) as response,
    ):
        answer = await response.json()
        assert response.status == 200, answer
        assert answer["callId"] == phone.call_id
        phone.etag = response.headers["ETag"]
        return str(answer["sdp"])


async def patch(made: TestGateway, phone: Phone, fragment: str, match: str) -> str:
    """Restart ICE as a WHIP client does; the answer's fragment (RFC 9725 section 4.3.3)."""
    headers = {"Content-Type": "application/trickle-ice-sdpfrag", "If-Match": match or phone.etag}
    async with (
        aiohttp.ClientSession() as http,
        http.patch(made.url + phone.resource, data=fragment, headers=headers) as response,
    ):
        answer = await response.text()
        assert response.status == 200, answer
        assert response.content_type == "application/trickle-ice-sdpfrag"
        phone.etag = response.headers["ETag"]
        return answer


async def restart_ice(made: TestGateway, phone: Phone, *, version: int = 1, match: str | None = None) -> str:
    """Restart ICE as ``restartIce`` of a browser does. aiortc has no such call, so its connection gets another ICE
    session below DTLS.

    Args:
        match: the browser is a WHIP client, which sends a fragment with this ``If-Match`` (empty: its entity tag).
    """
    (transport,) = phone.connection._RTCPeerConnection__iceTransports  # type: ignore[attr-defined]
    before = transport._connection
    ice = Connection(ice_controlling=True)
    ice._queue = before._queue
    await ice.gather_candidates()
    sdp = phone.connection.localDescription.sdp
    sdp = re.sub(r"a=ice-ufrag:\S+", f"a=ice-ufrag:{ice.local_username}", sdp)
    sdp = re.sub(r"a=ice-pwd:\S+", f"a=ice-pwd:{ice.local_password}", sdp)
    sdp = re.sub(r"o=(\S+ \S+) (\d+)", lambda line: f"o={line[1]} {int(line[2]) + version}", sdp)
    lines = [line for line in sdp.split("\r\n") if not line.startswith(("a=candidate", "a=end-of-candidates"))]
    at = next(number for number, line in enumerate(lines) if line.startswith("a=ice-ufrag"))
    lines[at:at] = [f"a=candidate:{candidate.to_sdp()}" for candidate in ice.local_candidates]
    if match is None:
        answer = await post(made, phone, "\r\n".join(lines))
    else:
        kept = ("m=audio", "a=mid:0", "a=ice-ufrag", "a=ice-pwd", "a=candidate")
        fragment = "\r\n".join(["a=group:BUNDLE 0 1", *(line for line in lines if line.startswith(kept))])
        answer = await patch(made, phone, fragment, match)
        assert answer == await patch(made, phone, fragment, "*"), "the answer was lost, and the client asks again"
    found = dict(re.findall(r"a=ice-(ufrag|pwd):(\S+)", answer))
    ice.remote_username, ice.remote_password = found["ufrag"], found["pwd"]
    for text in set(re.findall(r"a=candidate:(.*)", answer)):
        await ice.add_remote_candidate(Candidate.from_sdp(text.strip()))
    await ice.add_remote_candidate(None)
    await ice.connect()
    transport._connection, transport._recv, transport._send = ice, ice.recv, ice.send
    before._queue = asyncio.Queue()
    await before.close()
    return answer


def fingerprints(sdp: str) -> set[str]:
    return set(re.findall(r"a=fingerprint:(.*)", sdp))


async def test_a_renegotiation_keeps_the_connection_and_its_data_channel() -> None:
    async with gateway() as made, calling(made.url, microphone=tone()) as phone:
        peer, etag = leg_of(made).peer, phone.etag
        first = phone.connection.remoteDescription.sdp
        answer = await post(made, phone, await phone.offer())
        assert fingerprints(answer) == fingerprints(first)
        await phone.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        assert leg_of(made).peer is peer and phone.etag == etag
        await both_hear(made, phone, "a")
        assert len(phone.of_type("setup")) == 1


async def test_an_ice_restart_keeps_dtls_and_the_data_channel_on_a_new_network() -> None:
    async with gateway() as made, calling(made.url, microphone=tone()) as phone:
        peer, etag = leg_of(made).peer, phone.etag
        assert peer is not None
        old = peer._path.ice
        vanish(phone)
        begun = time.monotonic()
        answer = await restart_ice(made, phone)
        await until(lambda: peer._path.ice is not old, "the new path")
        assert time.monotonic() - begun < HEALED_S
        assert fingerprints(answer) == fingerprints(phone.connection.remoteDescription.sdp)
        assert leg_of(made).peer is peer and phone.etag != etag
        await both_hear(made, phone, "a")
        assert not old._protocols, "the old session's sockets are closed"
        await restart_ice(made, phone, version=2)
        await both_hear(made, phone, "b")
        assert len(phone.of_type("setup")) == 1 and made.ended == []


@pytest.mark.parametrize("match", ["*", '"*"', ""])
async def test_an_ice_restart_of_a_whip_client_keeps_dtls_and_the_data_channel(match: str) -> None:
    async with gateway() as made, calling(made.url, microphone=tone()) as phone:
        peer, etag = leg_of(made).peer, phone.etag
        assert peer is not None
        old = peer._path.ice
        vanish(phone)
        answer = await restart_ice(made, phone, match=match)
        await until(lambda: peer._path.ice is not old, "the new path")
        assert "a=group:BUNDLE 0 1" in answer and "a=end-of-candidates" in answer
        assert leg_of(made).peer is peer and phone.etag != etag
        await both_hear(made, phone, "a")
        assert len(phone.of_type("setup")) == 1 and made.ended == []
        async with aiohttp.ClientSession() as http:
            headers = {"Content-Type": "application/trickle-ice-sdpfrag", "If-Match": etag}
            async with http.patch(made.url + phone.resource, data="", headers=headers) as response:
                assert response.status == 412, "candidates of the old session"


async def test_the_old_path_carries_media_until_the_restarted_session_has_one() -> None:
    async with gateway() as made, calling(made.url, microphone=tone()) as phone:
        peer = leg_of(made).peer
        assert peer is not None
        sdp = phone.connection.localDescription.sdp  # an offer of a later second would be another session's (aiortc)
        sdp = re.sub(r"a=ice-ufrag:\S+", "a=ice-ufrag:abcd", sdp)
        sdp = re.sub(r"o=(\S+ \S+) (\d+)", lambda line: f"o={line[1]} {int(line[2]) + 5}", sdp)
        answer = await post(made, phone, re.sub(r"a=candidate:.*\r\n", "", sdp))
        assert peer._next_ice is not None and peer._next_ice.local_username in answer
        await both_hear(made, phone, "a")
        assert await post(made, phone, re.sub(r"a=candidate:.*\r\n", "", sdp))  # the page repeats a lost request
        await both_hear(made, phone, "b")
        late = sdp.replace("ufrag:abcd", "ufrag:efgh")
        late = re.sub(r"o=(\S+ \S+) (\d+)", lambda line: f"o={line[1]} {int(line[2]) - 1}", late)
        async with aiohttp.ClientSession() as http:
            body = {"sdp": late, "type": "offer", "callId": phone.call_id}
            async with http.post(f"{made.url}/v1/webrtc/offer", json=body) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (409, "old_offer")


async def test_paused_audio_is_answered_and_comes_back() -> None:
    async with gateway() as made, calling(made.url, microphone=tone()) as phone:
        peer = leg_of(made).peer
        sdp = await phone.offer()
        for direction, answered in (("inactive", "inactive"), ("recvonly", "sendonly"), ("sendrecv", "sendrecv")):
            answer = await post(made, phone, sdp.replace("a=sendrecv", f"a={direction}"))
            assert f"a={answered}\r\n" in answer
        assert leg_of(made).peer is peer
        await both_hear(made, phone, "a")


@asynccontextmanager
async def behind_nat(made: TestGateway) -> AsyncIterator[tuple[Phone, AddressTranslator]]:
    """A phone in a call. All that it sends passes its NAT."""
    phone = Phone(microphone=tone())
    nat: AddressTranslator | None = None
    try:
        sdp = re.sub(r"a=candidate:.*\r\n", "", await phone.offer())
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{made.url}/v1/webrtc/offer", json={"sdp": sdp, "type": "offer"}) as response,
        ):
            answer = await response.json()
        phone.call_id = answer["callId"]
        port = int(re.findall(r"a=candidate:\S+ 1 udp \d+ 127.0.0.1 (\d+)", answer["sdp"])[0])
        nat = AddressTranslator(("127.0.0.1", port))
        await nat.open()
        told = answer["sdp"].replace(f" {port} ", f" {nat.address[1]} ")
        await phone.connection.setRemoteDescription(RTCSessionDescription(told, "answer"))
        await until(lambda: phone.of_type("setup"), "setup")
        yield phone, nat
    finally:
        await phone.close()
        if nat is not None:
            nat.close()


async def test_a_new_address_with_the_same_credentials_heals_without_signalling() -> None:
    async with gateway(LOOPBACK) as made, behind_nat(made) as (phone, nat):
        await both_hear(made, phone, "a")
        peer = leg_of(made).peer
        assert peer is not None
        for turn in ("b", "c"):
            before = peer._path.ice.selected
            await nat.move()
            begun = time.monotonic()
            await until(lambda before=before: peer._path.ice.selected is not before, "the new path")
            assert time.monotonic() - begun < HEALED_S
            await both_hear(made, phone, turn)
        assert leg_of(made).peer is peer and len(phone.of_type("setup")) == 1 and made.ended == []


async def test_media_that_is_not_authentic_moves_nothing() -> None:
    async with gateway(LOOPBACK) as made, behind_nat(made) as (phone, _):
        peer = leg_of(made).peer
        assert peer is not None
        before = peer._path.ice.selected
        await both_hear(made, phone, "a")
        (socket,) = peer._path.ice._protocols
        for _ in range(100):
            socket.datagram_received(b"\x80\x6f" + bytes(60), ("127.0.0.1", 9))
        assert peer._path.ice.selected is before and len(peer._path.ice.remote_candidates) == 1


async def test_a_lost_browser_returns_on_the_same_connection() -> None:
    config = WebRtcConfig(addresses=("127.0.0.1",), lost_after_s=1.0, restart_s=30)
    async with gateway(config) as made, behind_nat(made) as (phone, nat):
        peer = leg_of(made).peer
        assert peer is not None
        server, nat.server = nat.server, ("127.0.0.1", 9)
        await until(lambda: not peer.connected, "the loss")
        assert leg_of(made)._waiting is not None
        phone.say(type="text", token=WORDS, last=True, turn="of the dead time")
        nat.server = server
        await until(lambda: peer.connected, "the return")
        assert leg_of(made)._waiting is None
        await until(lambda: "finished" in phone.turn_events("of the dead time"), "what the page sent meanwhile")
        await both_hear(made, phone, "a")
        assert made.ended == []
