"""Bots that make their own sound, in whole calls: what they send is heard, cut and reported as our own voice is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from talkspurt.simulator.carrier_leg import CarrierLeg, SimulatedUplink
from talkspurt.simulator.carriers import TwilioCarrier
from tests.peers.live_server import Live, serve
from tests.waiting import PATIENCE_S, until
from voicecodecs import registry
from voicecodecs.pcm import to_float32

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = """
engine: {kind: tone}
carriers: {twilio: {verify: false}}
auth:
  api_keys:
    - {key: one-secret-key-of-tenant-one, tenant: one, scopes: [calls, read]}
    - {key: two-secret-key-of-tenant-two, tenant: two, scopes: [calls, read]}
    - {key: admin-secret-key-of-the-office, tenant: one, scopes: [admin]}
    - {key: reader-secret-key-of-tenant-one, tenant: one, scopes: [read]}
routes:
  raw:
    tenant: one
    dialogue: {audio: true, give_up_s: 20, ping_s: 2}
    fallback: {text: Please hold the line for a moment.}
  text: {tenant: one}
"""
ONE = {"Authorization": "Bearer one-secret-key-of-tenant-one"}
TWO = {"Authorization": "Bearer two-secret-key-of-tenant-two"}
READER = {"Authorization": "Bearer reader-secret-key-of-tenant-one"}


def tone(hz: float, seconds: float, rate: int) -> bytes:
    at = np.arange(int(seconds * rate)) / rate
    return (8000 * np.sin(2 * np.pi * hz * at)).astype("<i2").tobytes()


def loudest(pcm: NDArray[np.float32], rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    return float(np.argmax(spectrum) * rate / len(pcm))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with serve(tmp_path_factory.mktemp("audio"), CONFIG) as running:
        running.headers = {"Authorization": "Bearer admin-secret-key-of-the-office"}
        yield running


class Bot:
    """The bot's end of an audio socket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.messages: list[dict[str, Any]] = []
        self.heard = b""
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self.messages.append(json.loads(message.data))
            else:
                assert len(message.data) % 2 == 0
                self.heard += message.data

    def of(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        return [m for m in self.messages if m["type"] == kind and wanted.items() <= m.items()]

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send_json({"type": kind, **fields})


class Call:
    """A caller on a carrier, and the client of the bot."""

    def __init__(self, live: Live, leg: CarrierLeg, client: aiohttp.ClientSession, setup: dict[str, Any]) -> None:
        self.live = live
        self.leg = leg
        self.client = client
        self.setup = setup
        self.bots: list[Bot] = []

    async def open(self, rate: int = 16000) -> Bot:
        socket = await self.client.ws_connect(
            f"{self.live.http}{self.setup['audio']}?sampleRate={rate}", headers=ONE, max_msg_size=0
        )
        self.bots.append(Bot(socket))
        await until(lambda: self.bots[-1].of("setup"), "setup")
        return self.bots[-1]

    def heard(self) -> NDArray[np.float32]:
        return to_float32(registry.decoder(self.leg.carrier.format).decode(bytes(self.leg.playout.heard)))


@asynccontextmanager
async def calling(live: Live, number: int) -> AsyncIterator[Call]:
    """A call that the event stream announces."""
    async with aiohttp.ClientSession() as client, client.get(f"{live.http}/v1/events", headers=ONE) as events:
        leg = CarrierLeg(TwilioCarrier(number, {}), record=True)
        uplink = SimulatedUplink()
        await leg.connect(f"{live.ws}/media/twilio/raw", timeout_s=PATIENCE_S)
        uplink.join(leg)
        call: Call | None = None
        try:
            async for line in events.content:
                if line.startswith(b"data:") and (message := json.loads(line[5:]))["type"] == "setup":
                    call = Call(live, leg, client, message)
                    break
            assert call is not None
            yield call
        finally:
            uplink.stop()
            await leg.aclose()
            for bot in call.bots if call is not None else ():
                await until(bot.task.done, "the end of the bot's socket")


@pytest.mark.parametrize("rate", [8000, 16000, 24000])
async def test_sound_of_a_bot_is_heard_at_its_pitch_and_its_mark_comes_back(live: Live, rate: int) -> None:
    async with calling(live, rate) as call:
        bot = await call.open(rate)
        await bot.socket.send_bytes(tone(1000, 1.0, rate))
        await bot.send("mark", name="said")
        await until(lambda: bot.of("mark"), "the mark")
        assert bot.of("mark") == [{"type": "mark", "name": "said", "cleared": False}]
        await until(lambda: bot.of("turn", event="finished"), "the turn's end")
        (finished,) = bot.of("turn", event="finished")
        assert 1000 <= finished["audioMs"] <= 1040
        frames = call.heard()[: len(call.heard()) // 160 * 160].reshape(-1, 160)
        heard = frames[np.sqrt((frames**2).mean(axis=1)) > 0.02].reshape(-1)  # a busy machine may leave a gap between
        assert 0.98 <= len(heard) / 8000 <= 1.06
        assert abs(loudest(heard, 8000) - 1000) < 5
        await until(lambda: len(bot.heard) > rate, "half a second of the caller")
    assert bot.of("ended")


async def test_clear_stops_at_once_and_marks_tell_what_was_heard(live: Live) -> None:
    async with calling(live, 11) as call:
        bot = await call.open()
        for name in ("first", "second"):
            await bot.socket.send_bytes(tone(700, 2.0 if name == "second" else 0.3, 16000))
            await bot.send("mark", name=name)
        await until(lambda: bot.of("mark", name="first"), "the first mark")
        assert bot.of("mark", name="first")[0]["cleared"] is False and not bot.of("mark", name="second")
        await bot.send("clear")
        await until(lambda: bot.of("mark", name="second"), "the second mark")
        assert bot.of("mark", name="second")[0]["cleared"] is True
        await until(lambda: call.leg.clears, "the carrier's clear")
        (cut,) = bot.of("interrupt")
        assert cut["reason"] == "cancel" and 300 <= cut["durationUntilInterruptMs"] < 2000
        await bot.socket.send_bytes(tone(1500, 0.3, 16000))  # what follows a clear is new
        await bot.send("mark", name="third")
        await until(lambda: bot.of("mark", name="third"), "the third mark")
        assert bot.of("mark", name="third")[0]["cleared"] is False


async def test_a_lost_socket_is_bridged_by_the_fallback_and_can_be_opened_again(live: Live) -> None:
    async with calling(live, 12) as call:
        bot = await call.open()
        await bot.socket.send_bytes(tone(700, 0.2, 16000))
        await until(lambda: bot.of("turn", event="started"), "sound")
        before = len(call.leg.playout.heard)
        transport = bot.socket.get_extra_info("socket")
        transport.shutdown(2)
        await until(lambda: len(call.leg.playout.heard) > before + 8000, "the fallback text")
        again = await call.open(8000)
        assert again.of("setup")[0]["resumed"] is True
        await again.send("mark", name="here")
        await until(lambda: again.of("mark"), "the mark")


async def test_a_close_on_purpose_ends_the_call(live: Live) -> None:
    async with calling(live, 13) as call:
        bot = await call.open()
        await bot.socket.close()
        await until(lambda: call.leg.closed_at is not None, "the end of the call")


async def test_strangers_other_rates_and_second_sockets_are_refused(live: Live) -> None:
    async with calling(live, 14) as call:
        path = call.setup["audio"]
        for headers, query, status in (
            ({}, "", 401), (TWO, "", 404), (READER, "", 403), (ONE, "?sampleRate=44100", 422),
        ):  # fmt: skip
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await call.client.ws_connect(f"{live.http}{path}{query}", headers=headers)
            assert refused.value.status == status
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await call.client.ws_connect(f"{live.http}/v1/audio/VX{'0' * 32}", headers=ONE)
        assert refused.value.status == 404
        assert await live.status(path, headers=ONE) == 426
        await call.open()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await call.client.ws_connect(f"{live.http}{path}", headers=ONE)
        assert refused.value.status == 409


async def test_too_much_sound_is_refused_with_one_error_and_counted(live: Live) -> None:
    async with calling(live, 15) as call:
        bot = await call.open(8000)
        for _ in range(10):
            await bot.socket.send_bytes(tone(500, 10.0, 8000))
        await bot.socket.send_bytes(b"odd")
        await until(lambda: len(bot.of("error")) == 2, "both errors")
        full, odd = bot.of("error")
        assert full["code"] == "too_much_sound" and "at most 60 s" in full["description"]
        assert "even number of bytes" in odd["description"]
        assert await live.metric("talkspurt_audio_socket_refused_seconds_total") >= 10
        await bot.send("clear")
        await until(lambda: bot.of("interrupt"), "the cut")


async def test_a_dialled_in_manager_learns_of_the_call_and_may_speak_too(live: Live) -> None:
    async with aiohttp.ClientSession() as client:
        socket = await client.ws_connect(f"{live.http}/v1/dialogue?route=raw", headers=ONE)
        manager = Bot(socket)
        async with calling(live, 16) as call:
            await until(lambda: manager.of("setup", sessionId=call.setup["sessionId"]), "the announcement")
            assert manager.of("setup")[0]["audio"] == call.setup["audio"]
            bot = await call.open()
            named = {"sessionId": call.setup["sessionId"]}
            await manager.send("subscribe", media=True, **named)
            await until(lambda: manager.of("error"), "a refusal")
            await manager.send("text", token="Hello there.", last=True, turn="mine", **named)
            await until(lambda: bot.of("turn", event="finished", turn="mine"), "the turn")
        await socket.close()
        await until(manager.task.done, "the end of the manager's socket")
