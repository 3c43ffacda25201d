"""A call whose frames leave late, from its session to the packets that a phone gets. Sockets and signalling are real.
The ticker's time is a number, and its ticks come when the test says so."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.call.session import Session
from gateway.media import rtp_session
from gateway.media.playout import LATE_S
from gateway.media.rtp import parse
from gateway.media.ticker import SLOT_S, Ticker
from gateway.uplink.echo_guard import EchoGuard
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.http.call_api.test_place_call import SIP
from tests.sip_bridge.phone import Phone, offer
from tests.waiting import PATIENCE_S, until

FRAMES = 10
"""The number of frames that leave in time before the late tick, and after it."""


class Talking:
    """A phone that is greeted."""

    def __init__(self, phone: Phone, ticker: Ticker, session: Session) -> None:
        self._phone = phone
        self._ticker = ticker
        self.session = session
        self.begun = time.monotonic() + 1.0  # signs of life were sent by this clock before
        self.now = self.begun
        self.packets: list[bytes] = []
        self.guarded: list[float] = []
        """The times at which the echo guard assumes our frames to be heard."""
        phone.waiting()  # reads the signs of life

    async def tick(self, at: float, packets: int) -> None:
        """Let the tick of a second come, and hear what it sends."""
        self.now = at
        self._ticker.on_timer(now=at)
        await self.hear(packets)

    async def hear(self, packets: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            self.packets += [await self._phone.packet() for _ in range(packets)]
        assert not self._phone.waiting()

    async def hear_in_time(self, begun: float, frames: range) -> None:
        for n in frames:
            await self.tick(begun + 0.02 * n + SLOT_S, 1)

    def expect(self, steps: list[int]) -> None:
        """Compare what the phone heard. A packet after silence, and no other, has the marker bit."""
        stamps = [parse(packet).timestamp for packet in self.packets]
        assert [(after - before) % 2**32 for before, after in pairwise(stamps)] == steps
        assert [bool(packet[1] & 0x80) for packet in self.packets[1:]] == [step > 160 for step in steps]
        assert [round(8000 * (after - before)) for before, after in pairwise(self.guarded)] == steps


@pytest.fixture
async def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Talking]:
    made_at = time.monotonic()
    talking: Talking | None = None
    sent = EchoGuard.sent

    def guard(ear: EchoGuard, frame: bytes, at: float) -> None:
        sent(ear, frame, at)
        if talking is not None:
            talking.guarded.append(at)

    monkeypatch.setattr(EchoGuard, "sent", guard)
    monkeypatch.setattr(Ticker, "now", staticmethod(lambda: made_at if talking is None else talking.now))
    monkeypatch.setattr(Ticker, "_arm", lambda ticker, slot: None)
    monkeypatch.setattr(rtp_session, "KEEP_ALIVE_S", math.inf)
    routes = {"default": {"welcome_greeting": "This greeting is long enough for everything that happens here."}}
    async with api_gateway(tmp_path, sip=SIP, routes=routes) as (made, _, _):
        assert made.sip is not None
        with Phone(made.sip.endpoint.port) as phone:
            await phone.call(body=offer(phone.rtp_port, codecs="0"))
            (session,) = await until(lambda: list(made.directory), "the call")
            await until(lambda: session.speech.playout.buffered_s() > 1.0, "the greeting")
            talking = Talking(phone, made.ticker, session)
            await talking.tick(talking.begun, 1)
            await talking.hear_in_time(talking.begun, range(1, FRAMES))
            yield talking
            await phone.bye()


@pytest.mark.parametrize("late_s", [0.021, LATE_S - 0.001])
async def test_a_tick_that_is_late_changes_neither_timestamps_nor_marker(call: Talking, late_s: float) -> None:
    await call.tick(call.begun + 0.02 * FRAMES + late_s, 2)
    await call.hear_in_time(call.begun, range(FRAMES + 2, 2 * FRAMES))
    call.expect([160] * (2 * FRAMES - 1))
    assert call.session.stats.gaps == 0


async def test_a_tick_that_is_later_than_a_phone_can_hide_begins_a_talkspurt(call: Talking) -> None:
    late_s = LATE_S + 0.005
    begun = call.begun + 0.02 * FRAMES + late_s
    await call.tick(begun, 1)
    await call.hear_in_time(begun, range(1, FRAMES))
    call.expect([160] * (FRAMES - 1) + [160 + round(8000 * late_s)] + [160] * (FRAMES - 1))
    assert call.session.stats.gaps == 1


async def test_a_cut_while_frames_are_late_fades_behind_what_was_sent_last(call: Talking) -> None:
    call.session.speech.flush(call.begun + 0.02 * FRAMES + 0.03)
    await call.hear(1)
    call.expect([160] * FRAMES)
