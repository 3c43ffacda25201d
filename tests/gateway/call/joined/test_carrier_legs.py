"""Second legs that the caller's carrier calls: a whole gateway, and each carrier's REST interface on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import orjson
import pytest

from gateway.seams.messages import Error, LegEvent, Prompt, Transfer, Warm
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import CARRIERS
from tests.gateway.call.joined.people import Told
from tests.gateway.http.test_webhooks import stream_of
from tests.gateway.mixing.legs import level_of, tone
from tests.gateway.placing.test_carrier_calls import Carrier, calling, every
from tests.waiting import until
from voicecodecs import registry

CALLER_HZ, PERSON_HZ = 600, 1000
NUMBER = "+4930123456"
SID = {"vonage": "uuid", "plivo": "CallUUID"}


class Ear:
    """A simulated call that says a tone, and what is heard in it."""

    def __init__(self, leg: CarrierLeg, hz: float) -> None:
        self.leg = leg
        self.format = leg.carrier.format
        pcm, encode = tone(hz, self.format.sample_rate, 1.0), registry.encoder(self.format).encode
        size = self.format.frame_samples
        self._frames = [encode(pcm[at : at + size]) for at in range(0, len(pcm) - size + 1, size)]
        self._task = asyncio.get_running_loop().create_task(self._talk())

    async def _talk(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(1_000_000):
            self.leg.say([self._frames[number % len(self._frames)]])
            self.leg.send_uplink()
            due_s = begun + (number + 1) * self.format.ptime_ms / 1000
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    def hears(self, hz: float) -> float:
        decode, heard = registry.decoder(self.format).decode, bytes(self.leg.playout.heard)
        pcm = np.asarray(decode(heard))[-self.format.sample_rate // 2 :]
        return level_of(pcm, hz, self.format.sample_rate) if len(pcm) >= self.format.sample_rate // 2 else 0.0

    async def aclose(self) -> None:
        self._task.cancel()
        await self.leg.aclose()


async def caller_of(carrier: Carrier) -> CarrierLeg:
    """An incoming call with its stream."""
    said = {SID.get(carrier.name, "CallSid"): "caller", "From": "+4930111111", "To": "+4930654321"}
    if carrier.name == "vonage":
        said = {"uuid": "caller", "from": "4930111111", "to": "4930654321"}
    body: dict[str, Any] = {"json": said} if carrier.name == "vonage" else {"data": said}
    async with carrier.http.post(f"/webhooks/{carrier.name}/default", **body) as answer:
        assert answer.status == 200, await answer.text()
        url, parameters = stream_of(carrier.name, await answer.text())
    leg = CarrierLeg(CARRIERS[carrier.name](2, parameters), record=True)
    await leg.connect(url)
    return leg


@asynccontextmanager
async def called(tmp_path: Path, name: str) -> AsyncIterator[tuple[Any, Carrier, CarrierLeg, Told]]:
    """A caller of a carrier with its application."""
    calling_section = {"allowed_targets": ["+4930*"]}  # no caller id: the called number stands for it
    async with calling(tmp_path, name, calling=calling_section) as (made, carrier):
        leg = await caller_of(carrier)
        await until(lambda: len(made.directory), "the call")
        (session,) = made.directory
        await until(lambda: session.outbox._link is not None, "its manager's place")
        try:
            yield made, carrier, leg, Told(made, session)
        finally:
            for each in made.directory:
                each.end("test is over", hang_up=True)
            await until(lambda: not len(made.directory), "the end of all calls")
            await leg.aclose()


async def person(carrier: Carrier) -> CarrierLeg:
    """The person answers, and their stream begins."""
    await until(lambda: carrier.asked, "the order")
    url, parameters = await carrier.answered()
    leg = CarrierLeg(CARRIERS[carrier.name](1, parameters), record=True)
    await leg.connect(url)
    return leg


async def after(carrier: Carrier, call_sid: str) -> str:
    """The carrier's question after a stream."""
    said = {SID.get(carrier.name, "CallSid"): call_sid}
    body: dict[str, Any] = {"json": {**said, "status": "disconnected"}} if carrier.name == "vonage" else {"data": said}
    async with carrier.http.post(
        f"/webhooks/{carrier.name}/default/after", params={"call": call_sid}, **body
    ) as answer:
        assert answer.status == 200
        return await answer.text()


@every
async def test_the_callers_carrier_calls_the_person_and_both_hear_each_other(tmp_path: Path, name: str) -> None:
    async with called(tmp_path, name) as (made, carrier, caller, app):
        app.say(Transfer(target=NUMBER, mode="bridge", on_hangup="return"))
        await until(lambda: carrier.asked, "the order")
        own = app.session.call.to.removeprefix("+")  # no caller id is configured
        assert own and own in str(carrier.asked[0][2]), "the called number is the caller id"
        await carrier.report("ringing")
        await app.hears_of("ringing")
        called_leg = await person(carrier)
        await app.hears_of("answered")
        one, other = Ear(caller, CALLER_HZ), Ear(called_leg, PERSON_HZ)
        await until(lambda: one.hears(PERSON_HZ) > 0.1, "the person at the caller")
        await until(lambda: other.hears(CALLER_HZ) > 0.1, "the caller at the person")
        assert one.hears(CALLER_HZ) < 0.01 and other.hears(PERSON_HZ) < 0.01
        second = next(each for each in made.directory if each is not app.session)
        assert second.call.correlation_id == app.session.call_id and second.call.direction == "outbound"
        await other.aclose()
        await app.hears_of("hangup")
        assert not app.session.ending.decided and not app.session.seat.joined, "the bot has returned"
        await one.aclose()


@pytest.mark.parametrize(
    ("name", "event"), [("twilio", "busy"), ("telnyx", "noAnswer"), ("plivo", "busy"), ("vonage", "failed")]
)
async def test_a_person_whom_the_carrier_does_not_reach_is_told(tmp_path: Path, name: str, event: str) -> None:
    async with called(tmp_path, name) as (_, carrier, _, app):
        app.say(Transfer(target=NUMBER, mode="bridge"))
        await until(lambda: carrier.asked, "the order")
        await carrier.report(event)
        await until(lambda: app.errors == ["transfer_failed"], "the error")
        assert app.events == [event] and not app.session.ending.decided


@every
async def test_after_a_warm_acceptance_the_carrier_joins_the_two(tmp_path: Path, name: str) -> None:
    async with called(tmp_path, name) as (made, carrier, caller, app):
        app.say(Transfer(target=NUMBER, mode="refer", warm=Warm(briefing="", accept=("yes",), decline=("no",))))
        called_leg = await person(carrier)
        await app.hears_of("answered")
        second = next(each for each in made.directory if each is not app.session)
        second.outbox.tell(words("Yes, please."))
        await app.hears_of("accepted")
        await until(lambda: caller.closed_at and called_leg.closed_at, "the end of both streams")
        await app.over()
        answers = {await after(carrier, sid) for sid in (app.session.call.call_sid, second.call.call_sid)}
        assert [conference(name, each) for each in answers] == [f"talkspurt-{app.session.call_id}"]
        assert app.session.ending.reason == second.ending.reason == "transferred"


def words(text: str) -> Any:
    return Prompt(voice_prompt=text, lang="en-US", last=True)


def conference(name: str, answer: str) -> str:
    """The conference in the answer to a webhook."""
    if name == "vonage":
        (action,) = orjson.loads(answer)
        assert action["action"] == "conversation" and action["endOnExit"] is True
        return str(action["name"])
    found = ElementTree.fromstring(answer).find("Conference" if name == "plivo" else "Dial/Conference")
    assert found is not None and found.attrib["endConferenceOnExit"] == "true"
    return str(found.text)


async def test_what_is_not_configured_is_named(tmp_path: Path) -> None:
    async with calling(tmp_path, "twilio", carriers={"twilio": {"verify": False}}) as (made, carrier):
        leg = await caller_of(carrier)
        await until(lambda: len(made.directory), "the call")
        (session,) = made.directory
        await until(lambda: session.outbox._link is not None, "its manager's place")
        app = Told(made, session)
        app.say(Transfer(target=NUMBER, mode="bridge"))
        await until(lambda: app.errors == ["not_supported"], "the error")
        (error,) = [each for each in app.told if isinstance(each, Error)]
        assert "carriers.twilio.account_sid" in error.description and "section sip" in error.description
        assert not any(isinstance(each, LegEvent) for each in app.told)
        await leg.aclose()
