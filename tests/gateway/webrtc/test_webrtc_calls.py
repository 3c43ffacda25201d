"""Calls of an independent WebRTC implementation (aiortc's own peer) on loopback."""

import asyncio
import socket
import time
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from hibari import Hibari

from gateway.config import DialogueConfig, RouteConfig, WebRtcConfig
from gateway.principal import ANYONE
from gateway.tokens import GrantScope
from tests.gateway.webrtc.webrtc_gateway import (
    LIMITS,
    Phone,
    SilentMicrophone,
    calling,
    gateway,
    resources,
    strongest_hz,
)
from tests.waiting import until
from tts_engine.tone import tone_hz
from voicecodecs.pcm import to_int16
from voicecodecs.resample import Resampler

WORDS = "Hello there."


async def test_a_browser_bot_speaks_and_its_voice_arrives() -> None:
    async with gateway() as made, calling(made.url, microphone=SilentMicrophone()) as phone:
        phone.say(type="text", token=WORDS, last=True, turn="a")
        await until(lambda: "finished" in phone.turn_events("a"), "the turn's end")
        assert phone.of_type("setup")[0]["codec"] == "OPUS/48000"
        assert phone.of_type("setup")[0]["transport"] == "webrtc"
        voiced = phone.pcm[np.abs(phone.pcm) > 1000]
        assert len(voiced) > 48000 * 0.2
        start = int(np.argmax(np.abs(phone.pcm) > 1000))
        assert strongest_hz(phone.pcm[start + 4800 : start + 14400], 48000) == pytest.approx(tone_hz(WORDS), abs=10)


SCRIPT = """
start: hello
steps:
  hello:
    - gather: {say: Welcome., timeout_s: 120, digits: {"1": hello}, otherwise: hello}
"""


@pytest.mark.parametrize("scope", ["call", "lead"])
async def test_only_a_token_of_scope_lead_leads_the_dialogue(scope: GrantScope, tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(SCRIPT)
    route = RouteConfig(dialogue=DialogueConfig(script=str(tmp_path / "script.yaml")))
    async with gateway(default=route) as made:
        token = made.tokens.grant(b"-", scope, expires=time.time() + 600, route="default")
        async with calling(made.url, token=token, params={"case": "secret"}) as phone:
            leads = scope == "lead"
            assert phone.of_type("setup")[0]["customParameters"] == ({"case": "secret"} if leads else {})
            await until(lambda: [m for m in phone.of_type("turn") if m["event"] == "finished"], "the script's words")
            assert "".join(caption["text"] for caption in phone.of_type("caption")) == "Welcome."
            phone.say(type="play", source="x.wav", turn="clip")
            phone.say(type="text", token="Hello.", last=True, turn="mine")
            phone.say(type="mark", name="end")
            if leads:
                await until(lambda: phone.turn_events("mine")[-1:] == ["finished"], "the end of the turn")
                assert phone.of_type("mark")
            else:
                await until(lambda: len(phone.of_type("error")) == 3, "three refusals")
                assert {error["code"] for error in phone.of_type("error")} == {"not_allowed"}
                assert not phone.turn_events("mine") and not phone.turn_events("clip")


@pytest.mark.parametrize("encoding", ["PCMU", "PCMA"])
async def test_g711_is_spoken_with_a_peer_that_offers_only_that(encoding: str) -> None:
    payload_type = {"PCMU": "0", "PCMA": "8"}[encoding]

    def only(sdp: str) -> str:
        lines = []
        for line in sdp.split("\r\n"):
            if line.startswith("m=audio"):
                line = " ".join([*line.split()[:3], payload_type])
            if (
                line.startswith(("a=rtpmap:", "a=fmtp:", "a=rtcp-fb:"))
                and line.split(":")[1].split()[0] != payload_type
            ):
                continue
            lines.append(line)
        return "\r\n".join(lines)

    async with gateway() as made, calling(made.url, change=only) as phone:
        assert phone.of_type("setup")[0]["codec"] == f"{encoding}/8000"
        phone.say(type="text", token=WORDS, last=True, turn="a")
        await until(lambda: "finished" in phone.turn_events("a"), "the turn's end")
        start = int(np.argmax(np.abs(phone.pcm) > 1000))
        rate = 8000
        assert strongest_hz(phone.pcm[start + rate // 10 : start + 3 * rate // 10], rate) == pytest.approx(
            tone_hz(WORDS), abs=10
        )


async def test_cancel_stops_the_voice() -> None:
    async with gateway() as made, calling(made.url) as phone:
        phone.say(type="text", token="This is a very long sentence that is cut before its end.", last=True)
        await until(lambda: np.any(np.abs(phone.pcm) > 1000), "voice")
        phone.say(type="cancel")
        await until(lambda: phone.of_type("interrupt"), "interrupt")
        assert phone.of_type("interrupt")[0]["reason"] == "cancel"
        frames = len(phone.heard)
        phone.say(type="text", token="Yes.", last=True, turn="b")
        await until(lambda: "finished" in phone.turn_events("b"), "the next turn's end")
        assert len(phone.heard) - frames < 80  # the next turn, and what was on its way; not three more seconds


async def test_reports_of_both_sides_are_kept() -> None:
    route = RouteConfig(dialogue=DialogueConfig(give_up_s=0.2), events=("debugging",))
    async with gateway(default=route) as made, calling(made.url, microphone=SilentMicrophone()) as phone:
        leg = next(iter(made.webrtc._legs.values()))
        peer = leg.peer
        assert peer is not None
        phone.say(type="text", token="Some words to say.", last=True, turn="a")
        await until(lambda: "finished" in phone.turn_events("a"), "the turn's end")
        await until(lambda: peer.stats.round_trip_s is not None, "a report on a report")
        assert made.reports and made.reports[-1].lost == 0
        seen = [report for report in (await phone.connection.getStats()).values() if report.type == "inbound-rtp"]
        assert seen[0].packetsReceived == peer.stats.packets_sent > 20
        assert (seen[0].packetsLost, peer.stats.remote_lost, peer.stats.lost) == (0, 0, 0)
        assert peer.stats.packets_received > 20
        assert peer.stats.round_trip_s is not None and peer.stats.round_trip_s < 1
        await until(lambda: phone.of_type("info"), "the round trip")
        told = phone.of_type("info")[0]
        assert told["name"] == "roundTripDelayMs" and 0 <= int(told["value"]) < 1000


async def settled_resources() -> dict[str, int]:
    """Return the resources after the calls before have ended: the same twice, a little apart."""
    seen: list[dict[str, int]] = [{}]

    def settled() -> bool:
        seen.append(resources())
        return seen[-1] == seen[-2]

    await until(settled)
    return seen[-1]


async def one_call(url: str) -> None:
    async with calling(url) as phone:
        phone.say(type="text", token="Hi.", last=True, turn="a")
        await until(lambda: "started" in phone.turn_events("a"), "voice")


async def test_twenty_calls_in_a_row_leak_nothing() -> None:
    async with gateway() as made:
        for _ in range(2):  # thread pools and caches are made once
            await one_call(made.url)
        await until(lambda: not len(made.webrtc) and not made.tasks, "the first calls' end")
        before = await settled_resources()
        for _ in range(20):
            await one_call(made.url)
        await until(lambda: not len(made.webrtc) and not made.tasks, "the calls' end")

        def nothing_left() -> bool:
            after = resources()
            return (
                after["files"] == before["files"]
                and after["tasks"] == before["tasks"]
                and after["threads"] <= before["threads"] + 2  # the engine's codec pool grows to its size
            )

        await until(nothing_left, f"all to be as before: {before}")
        assert made.ended == ["hangup"] * 22


LONG = "A very long sentence that runs on and on, and on, and on, without end in sight, as sentences sometimes do."


async def test_the_caller_interrupts_by_speaking() -> None:
    resampler = Resampler(24000, 48000)
    words = Hibari(threads=1)("Wait a moment please, I have a question.", seed=1).astype(np.float32)
    pcm = np.concatenate((np.zeros(48000, np.float32), resampler.process(words), resampler.flush()))
    async with gateway() as made:
        phone = Phone(microphone=SilentMicrophone(to_int16(pcm)))
        await phone.call(made.url)
        phone.say(type="text", token=LONG, last=True)
        await until(lambda: phone.of_type("interrupt"), "interrupt")
        interrupt = phone.of_type("interrupt")[0]
        assert interrupt["reason"] == "speech"
        assert LONG.startswith(interrupt["utteranceUntilInterrupt"]) and interrupt["utteranceUntilInterrupt"]
        await phone.close()


def vanish(phone: Phone) -> None:
    """The peer's network is gone: no goodbye of any kind."""
    for transport in phone.connection._RTCPeerConnection__iceTransports:  # type: ignore[attr-defined]
        for protocol in transport._connection._protocols:
            protocol.transport.sendto = lambda data, addr: None
            protocol.datagram_received = lambda data, addr: None


async def test_a_peer_that_vanishes_ends_its_call_alone() -> None:
    config = WebRtcConfig(lost_after_s=1.0, restart_s=0.2)
    async with gateway(config) as made, calling(made.url, microphone=SilentMicrophone()) as other:
        phone = Phone(microphone=SilentMicrophone())
        await phone.call(made.url)
        vanish(phone)
        await until(lambda: made.ended == ["connection_lost"], "the call's end")
        assert len(made.webrtc) == 1
        other.say(type="text", token=WORDS, last=True, turn="a")
        await until(lambda: "finished" in other.turn_events("a"), "the other's voice")
        await phone.close()


async def test_a_lost_peer_comes_back_to_its_call() -> None:
    config = WebRtcConfig(lost_after_s=1.0, restart_s=15)
    async with gateway(config) as made:
        lost = Phone(microphone=SilentMicrophone())
        await lost.call(made.url)
        vanish(lost)
        leg = next(iter(made.webrtc._legs.values()))
        await until(lambda: leg.peer is not None and not leg.peer.connected, "the loss")
        async with calling(made.url, callId=lost.call_id) as back:
            assert back.call_id == lost.call_id and back.etag != lost.etag
            assert back.of_type("setup")[0]["resumed"] is True
            back.say(type="text", token=WORDS, last=True, turn="a")
            await until(lambda: "finished" in back.turn_events("a"), "voice")
            assert np.any(np.abs(back.pcm) > 1000)
            assert made.ended == [] and len(made.directory) == 1
        await until(lambda: made.ended == ["hangup"], "the call's end")
        await lost.close()


async def test_an_old_offer_that_fails_does_not_harm_the_call_it_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as made, calling(made.url) as phone:
        monkeypatch.setattr("gateway.webrtc.signalling.CONNECT_S", 0.1)
        stranger = Phone()
        sdp = await stranger.offer()
        async with aiohttp.ClientSession() as http:
            body = {"sdp": sdp, "type": "offer", "callId": phone.call_id}
            async with http.post(f"{made.url}/v1/webrtc/offer", json=body) as response:
                assert response.status == 200  # and then its browser never comes
            only_g711 = sdp.replace("opus/48000/2", "unknown/48000/2")
            async with http.post(f"{made.url}/v1/webrtc/offer", json={**body, "sdp": only_g711}) as response:
                assert response.status == 422
                assert (await response.json())["error"]["code"] == "no_common_codec"
        leg = made.webrtc._legs[phone.call_id]
        await until(lambda: leg.latest is leg.peer, "the end of the wait for that browser")
        phone.say(type="text", token=WORDS, last=True, turn="a")
        await until(lambda: "finished" in phone.turn_events("a"), "voice")
        await stranger.close()


async def test_noise_at_a_calls_port_does_not_harm_it() -> None:
    async with gateway(WebRtcConfig(addresses=("127.0.0.1",))) as made, calling(made.url) as phone:
        leg = next(iter(made.webrtc._legs.values()))
        assert leg.peer is not None
        target = ("127.0.0.1", leg.peer._ice.local_candidates[0].port)
        binding = bytes.fromhex("000100002112a442") + bytes(12)  # an unsigned STUN request
        noise = [
            b"",
            b"\x00",
            b"\x80",
            b"\x16\xfe\xfd",
            binding,
            b"\x80\x6f" + bytes(40),
            b"\x80\xc8" + bytes(40),
            b"\xff" * 1400,
        ]
        phone.say(type="text", token=LONG, last=True, turn="a")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for round_ in range(300):
                for datagram in noise:
                    sock.sendto(datagram, target)
                if round_ % 10 == 0:
                    await asyncio.sleep(0.001)
        await until(lambda: "finished" in phone.turn_events("a"), "voice")
        assert phone.connection.connectionState == "connected"
        assert leg.peer._ice.queued <= 256


async def test_a_bad_message_gets_an_error_and_too_many_close_the_channel() -> None:
    async with gateway() as made, calling(made.url) as phone:
        assert phone.channel is not None
        phone.channel.send("{")
        phone.channel.send(b"\0\1")
        phone.say(type="text")
        await until(lambda: len(phone.of_type("error")) == 3, "three errors")
        assert phone.of_type("error")[2]["field"] == "token"
        phone.say(type="text", token=WORDS, last=True, turn="a")  # nothing else was lost
        await until(lambda: "accepted" in phone.turn_events("a"), "the turn")
        for _ in range(LIMITS.errors_in_a_row):
            phone.channel.send("{")
        await until(lambda: phone.channel is not None and phone.channel.readyState == "closed", "the close")
        assert phone.connection.connectionState == "connected" and made.ended == []


@pytest.mark.parametrize("size", [70_000, 2_000_000])
async def test_an_oversized_message_gets_one_error_and_closes_the_channel_alone(size: int) -> None:
    async with gateway() as made, calling(made.url) as phone:
        assert phone.channel is not None
        phone.connection.sctp._remote_max_message_size = 0  # this peer does not keep to what we told it
        phone.channel.send("x" * size)
        await until(lambda: phone.channel is not None and phone.channel.readyState == "closed", "the close")
        (error,) = phone.of_type("error")
        assert error["code"] == "message_too_big" and "at most 65536 bytes" in error["description"]
        assert phone.connection.connectionState == "connected" and made.ended == []


async def test_other_channels_are_closed() -> None:
    async with gateway() as made, calling(made.url) as phone:
        other = phone.connection.createDataChannel("chat")
        again = phone.connection.createDataChannel("talkspurt")
        await until(lambda: other.readyState == again.readyState == "closed", "their close")
        assert phone.channel is not None and phone.channel.readyState == "open"
        for number in range(20):
            phone.connection.createDataChannel(f"flood {number}")
        await until(
            lambda: phone.channel is not None and phone.channel.readyState == "closed", "the end of all channels"
        )
        assert phone.connection.connectionState == "connected" and made.ended == []


async def test_without_the_data_channel_a_call_is_a_call() -> None:
    async with gateway(WebRtcConfig(data_channel=False)) as made:
        phone = Phone(microphone=SilentMicrophone())
        answer = (await made.webrtc.answer(await phone.offer(), ANYONE))[1]
        assert "m=application 0 " in answer
        await phone.close()


async def test_a_dialled_manager_that_fails_ends_the_call_though_a_browser_looks_on() -> None:
    nowhere = DialogueConfig(url="ws://127.0.0.1:9/", give_up_s=0.1)
    async with gateway(led=RouteConfig(dialogue=nowhere)) as made, calling(made.url, route="led") as phone:
        await until(lambda: made.ended == ["dialogue_failed"], "the call's end")
        await until(lambda: phone.of_type("ended"), "the browser to be told")
