"""Callers without SIP who are joined with a person on SIP: a media stream in Twilio's dialect, and a browser."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from gateway.seams.messages import Error, Transfer
from talkspurt.build import Gateway
from tests.gateway.call.joined.people import Talker, Told
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.mixing.legs import level_of, tone
from tests.gateway.webrtc.webrtc_gateway import Phone as Browser
from tests.gateway.webrtc.webrtc_gateway import SilentMicrophone
from tests.peers.ports import free_port
from tests.waiting import until
from voicecodecs.g711 import decode_ulaw, encode_ulaw

A_HZ, B_HZ = 600, 1000
TARGETS = ["*@127.0.0.1"]


@asynccontextmanager
async def person(
    folder: Path, *, sip_targets: list[str] | None = None, **sections: Any
) -> AsyncIterator[tuple[Gateway, str, Talker, str]]:
    """A gateway, its address, a person with a SIP phone, and the person's target."""
    sip: dict[str, Any] = {
        "port": free_port(),
        "rtp_ports": "43000-43999",
        "trunks": {"office": {"addresses": ["127.0.0.0/8"]}},
        "allowed_targets": TARGETS if sip_targets is None else sip_targets,
    }
    async with api_gateway(
        folder, clones=False, sip=sip, carriers={"twilio": {"verify": False}}, webrtc={}, **sections
    ) as (made, _, url):
        with Talker(sip["port"]) as phone:
            yield made, url, phone, f"sip:ann@127.0.0.1:{phone.port}"
            for each in made.directory:
                each.end("test is over", hang_up=True)
            await until(lambda: not len(made.directory))


class TwilioStream:
    """A media stream in Twilio's words: it says a tone and keeps what it hears."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.heard: list[bytes] = []
        self.closed = False

    async def begin(self) -> None:
        begun = {
            "streamSid": "MZ1",
            "accountSid": "AC1",
            "callSid": "CA1",
            "tracks": ["inbound"],
            "customParameters": {},
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        }
        await self.socket.send_json({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        await self.socket.send_json({"event": "start", "sequenceNumber": "1", "streamSid": "MZ1", "start": begun})

    async def talk(self, hz: float) -> None:
        loop, pcm = asyncio.get_running_loop(), tone(hz, 8000, 1.0)
        begun = loop.time()
        for number in range(1_000_000):
            frame = encode_ulaw(pcm[number * 160 % 8000 :][:160])
            media = {
                "track": "inbound",
                "chunk": str(number + 1),
                "timestamp": str(number * 20),
                "payload": base64.b64encode(frame).decode(),
            }
            message = {"event": "media", "sequenceNumber": str(number + 2), "streamSid": "MZ1", "media": media}
            await self.socket.send_json(message)
            await asyncio.sleep(max(0.0, begun + (number + 1) * 0.02 - loop.time()))

    async def listen(self) -> None:
        async for message in self.socket:
            told = json.loads(message.data)
            if told["event"] == "media":
                self.heard.append(decode_ulaw(base64.b64decode(told["media"]["payload"])).tobytes())
        self.closed = True

    def hears(self, hz: float) -> float:
        pcm = np.frombuffer(b"".join(self.heard), np.int16)[-4000:]
        return level_of(pcm, hz, 8000) if len(pcm) == 4000 else 0.0


@asynccontextmanager
async def twilio_call(made: Gateway, url: str) -> AsyncIterator[tuple[TwilioStream, Told]]:
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/media/twilio/default") as socket,
    ):
        stream = TwilioStream(socket)
        await stream.begin()
        await until(lambda: len(made.directory))
        (session,) = made.directory
        tasks = [asyncio.create_task(stream.listen()), asyncio.create_task(stream.talk(A_HZ))]
        try:
            yield stream, Told(made, session)
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await asyncio.gather(*tasks)


async def test_a_media_stream_and_a_person_hear_each_other(tmp_path: Path) -> None:
    async with person(tmp_path) as (made, url, phone, target), twilio_call(made, url) as (stream, app):
        app.say(Transfer(target=target, mode="bridge"))
        await phone.answers()
        await app.hears_of("answered")
        phone.talk(B_HZ)
        await phone.until_hears(A_HZ)
        await until(lambda: stream.hears(B_HZ) > 0.1, f"{B_HZ} Hz: {app.told}")
        assert stream.hears(A_HZ) < 0.01 and phone.hears(B_HZ) < 0.01
        await stream.socket.close()
        await phone.hung_up()
        await app.over()


async def test_a_browser_and_a_person_hear_each_other(tmp_path: Path) -> None:
    """A browser's peer transfers no calls, so ``auto`` bridges at once."""
    async with person(tmp_path) as (made, url, phone, target):
        browser = Browser(microphone=SilentMicrophone(tone(A_HZ, 48000, 60.0)))
        try:
            await browser.call(url)
            await until(lambda: len(made.directory))
            (session,) = made.directory
            app = Told(made, session)
            app.say(Transfer(target=target))
            await phone.answers()
            await app.hears_of("answered")
            phone.talk(B_HZ)
            await phone.until_hears(A_HZ)
            await until(lambda: level_of(browser.pcm[-24000:], B_HZ, 48000) > 0.1, f"{B_HZ} Hz: {app.told}")
            assert level_of(browser.pcm[-24000:], A_HZ, 48000) < 0.01 and phone.hears(B_HZ) < 0.01
        finally:
            await browser.close()
        await phone.hung_up()
        await app.over()


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({}, "calling.allowed_targets or sip.allowed_targets"),
        ({"allowed_targets": ["+49*"]}, "routes.default.calling.allowed_targets"),
    ],
)
async def test_the_error_names_the_lists_that_may_allow_the_target(
    tmp_path: Path, own: dict[str, Any], named: str
) -> None:
    routes = {"default": {"calling": own}}
    async with (
        person(tmp_path, sip_targets=[], routes=routes) as (made, url, phone, target),
        twilio_call(made, url) as (_, app),
    ):
        app.say(Transfer(target=target, mode="bridge"))
        await until(lambda: app.errors == ["target_not_allowed"])
        (error,) = [each for each in app.told if isinstance(each, Error)]
        assert f"({named})" in error.description
        assert phone.nothing()
