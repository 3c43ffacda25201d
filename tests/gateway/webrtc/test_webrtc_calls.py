"""Calls of an independent WebRTC implementation (aiortc's own peer) on loopback."""

import asyncio

import numpy as np
import pytest

from tests.gateway.webrtc.webrtc_gateway import (
    SilentMicrophone,
    calling,
    gateway,
    resources,
    strongest_hz,
    until,
)
from tts_engine.tone import tone_hz

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
        phone.say(type="text", token="This is a very long sentence that nobody wants to hear to its end.", last=True)
        await until(lambda: np.any(np.abs(phone.pcm) > 1000), "voice")
        phone.say(type="cancel")
        await until(lambda: phone.of_type("interrupt"), "interrupt")
        assert phone.of_type("interrupt")[0]["reason"] == "cancel"
        frames = len(phone.heard)
        await asyncio.sleep(0.3)
        assert len(phone.heard) - frames <= 6  # what aiortc's own buffer still held


async def one_call(url: str) -> None:
    async with calling(url) as phone:
        phone.say(type="text", token="Hi.", last=True, turn="a")
        await until(lambda: "started" in phone.turn_events("a"), "voice")


async def test_twenty_calls_in_a_row_leak_nothing() -> None:
    async with gateway() as made:
        for _ in range(2):  # thread pools and caches are made once
            await one_call(made.url)
        await until(lambda: not len(made.webrtc) and not made.tasks, "the first calls' end")
        await asyncio.sleep(0.1)
        before = resources()
        for _ in range(20):
            await one_call(made.url)
        await until(lambda: not len(made.webrtc) and not made.tasks, "the calls' end")
        await asyncio.sleep(0.1)
        after = resources()
        assert after["files"] == before["files"]
        assert after["tasks"] == before["tasks"]
        assert after["threads"] <= before["threads"] + 2  # the engine's codec pool grows to its size
        assert made.ended == ["hangup"] * 22
