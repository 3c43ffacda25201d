"""A call that is over is freed when nothing needs it any more: it leaves no circle that a collection would have to look
for . Real calls over real sockets."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import ref

import pytest

from gateway.call.expected import ExpectedCall
from gateway.seams.messages import Text
from talkspurt.build import Gateway
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from tests.gateway.call.virtual_session import VirtualSession
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.webrtc.webrtc_gateway import calling
from tests.sip_bridge.phone import Phone
from tests.virtual_loop import VirtualLoop
from tests.waiting import until

PARTS: list[ref[Any]] = []


async def media_stream(made: Gateway, url: str) -> None:
    leg = CarrierLeg(TwilioCarrier(1, {}))
    await leg.connect(f"{url.replace('http', 'ws')}/media/twilio/default")
    await greeted(made)
    await leg.aclose()


async def audiosocket(made: Gateway, url: str) -> None:
    assert made.audiosocket is not None
    uuid = uuid4()
    made.audiosocket.expected.put(uuid, ExpectedCall("default"))
    _, writer = await asyncio.open_connection("127.0.0.1", made.audiosocket.port)
    writer.write(b"\x01\x00\x10" + uuid.bytes + b"\x10\x01\x40" + bytes(320))
    await greeted(made)
    writer.close()


async def telephone(made: Gateway, url: str) -> None:
    assert made.sip is not None
    with Phone(made.sip.endpoint.port) as phone:
        await phone.call()
        phone.speak(bytes(160), sequence=1, timestamp=160)
        await greeted(made)
        await phone.bye()


async def browser(made: Gateway, url: str) -> None:
    async with calling(url, channel=False):
        await greeted(made)


async def greeted(made: Gateway) -> None:
    await until(lambda: any(session.stats.first_packet_ms for session in made.directory), "the greeting")
    (session,) = made.directory
    PARTS.extend(map(ref, (session, session.speech, session.turns, session.caller, session.speech.playout)))


def left() -> list[str]:
    return [type(part()).__name__ for part in PARTS if part() is not None]


@pytest.mark.parametrize("call", [media_stream, audiosocket, telephone, browser])
async def test_a_call_that_is_over_needs_no_collection(
    tmp_path: Path, call: Callable[[Gateway, str], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sections: dict[str, Any] = {
        "carriers": {"twilio": {"verify": False}},
        "audiosocket": {"port": 0},
        "sip": {
            "port": 0,
            "rtp_ports": "44000-44999",
            "trunks": {"office": {"addresses": ["127.0.0.0/8"], "answer_at_once": True}},
        },
        "webrtc": {},
        "routes": {"default": {"welcome_greeting": "Good morning.", "events": ["speaker-events"]}},
    }
    async with api_gateway(tmp_path, **sections) as (made, _, url):
        gc.disable()
        monkeypatch.setattr(gc, "collect", lambda generation=2: 0)
        try:
            await call(made, url)
            await until(lambda: not len(made.directory), "the call's end")
            assert PARTS
            await until(lambda: not left(), "the end of its parts")
        finally:
            PARTS.clear()
            gc.enable()


def test_a_call_with_a_recogniser_and_a_listener_needs_no_collection() -> None:
    async def ended_call() -> list[ref[Any]]:
        call = VirtualSession({"recogniser": "external", "events": ["speaker-events"]}, recogniser=True)
        await call.run(0.01)
        with call.session.caller.listeners.join():
            call.say(Text(token="one two three ", last=False))
            call.utters("word", 10)
            await call.run(1.0)
            await call.finish()
        session = call.session
        vars(call).clear()  # real peers drop the call when they close
        return list(map(ref, (session, session.speech, session.turns, session.caller, session.outbox)))

    async def scene() -> list[str]:
        parts = await asyncio.create_task(ended_call())
        await asyncio.sleep(2.0)  # the recogniser has answered
        return [type(part()).__name__ for part in parts if part() is not None]

    gc.disable()
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            assert runner.run(scene()) == []
    finally:
        gc.enable()
