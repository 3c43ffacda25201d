"""Calls through carriers: a whole gateway, and a carrier's REST interface on loopback that behaves as the vendors
document."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import CARRIERS
from tests.gateway.answering.line_sounds import silence, tone
from tests.gateway.carriers.test_outgoing import NAMES, SECTIONS, vector
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.http.test_webhooks import stream_of
from tests.waiting import until
from voicecodecs.g711 import encode_ulaw
from voicecodecs.pcm import to_int16

every = pytest.mark.parametrize("name", NAMES)
CALLING = {"allowed_targets": ["+4930*"], "caller_ids": ["+4930654321"]}
WORDS = {
    "vonage": {"ringing": "ringing", "busy": "busy", "noAnswer": "timeout", "failed": "failed",
               "completed": "completed"},
}  # fmt: skip
TWILIO_WORDS = {
    "ringing": "ringing", "busy": "busy", "noAnswer": "no-answer", "failed": "failed", "completed": "completed",
}  # fmt: skip


class Carrier:
    """A carrier: its REST interface, and its webhooks to the gateway."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[tuple[str, str, Any]] = []
        self.status = 201
        self.answer: Any = vector(name, "place")["answer"]
        self.http: aiohttp.ClientSession
        self.gateway = ""

    async def take(self, request: web.Request) -> web.Response:
        form = dict(await request.post()) if "form" in request.content_type else {}
        body = form or json.loads(await request.read() or b"{}")
        self.asked.append((request.method, request.path, body))
        return web.json_response(self.answer, status=self.status)

    @property
    def call_sid(self) -> str:
        values = [value for key, value in self.answer.items() if key in ("sid", "call_sid", "request_uuid", "uuid")]
        return str(values[0])

    def hook(self, *names: str) -> str:
        """An address of the latest order, at the gateway on loopback."""
        (url,) = [each for name in names if (each := self.asked[0][2].get(name))]
        return str(url[0] if isinstance(url, list) else url)

    async def report(self, event: str, **fields: str) -> None:
        """Send a status callback."""
        word = WORDS.get(self.name, TWILIO_WORDS)[event]
        names = {"vonage": ("status", "uuid"), "plivo": ("CallStatus", "CallUUID")}.get(
            self.name, ("CallStatus", "CallSid")
        )
        said = {names[0]: word, names[1]: self.call_sid, **fields}
        body = {"json": said} if self.name == "vonage" else {"data": said}
        url = self.hook("StatusCallback", "hangup_url", "event_url")
        async with self.http.post(url, **body) as answer:  # type: ignore[arg-type]
            assert answer.status == 204

    async def answered(self) -> tuple[str, dict[str, str]]:
        """Ask what to do with the answered call. Return the address and the parameters of the stream."""
        sid = {"vonage": "uuid", "plivo": "CallUUID"}.get(self.name, "CallSid")
        said = {sid: self.call_sid, "From": "+4930654321", "To": "+4930123456", "Direction": "outbound-api"}
        if self.name == "vonage":
            said = {sid: self.call_sid, "from": "4930654321", "to": "4930123456"}
        body = {"json": said} if self.name == "vonage" else {"data": said}
        async with self.http.post(self.hook("Url", "answer_url"), **body) as answer:  # type: ignore[arg-type]
            assert answer.status == 200, await answer.text()
            url, parameters = stream_of(self.name, await answer.text())
            return url, parameters


@asynccontextmanager
async def calling(tmp_path: Path, name: str, **sections: Any) -> AsyncIterator[tuple[Any, Carrier]]:
    """A gateway with this carrier, which answers orders."""
    carrier = Carrier(name)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", carrier.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    section = SECTIONS[name] | {"api_url": f"http://127.0.0.1:{port}", "verify": False}
    sections = {"carriers": {name: section}, "calling": CALLING, **sections}
    sections.setdefault("calls", {"folder": str(tmp_path / "calls")})
    try:
        async with api_gateway(tmp_path, **sections) as (made, _, url), aiohttp.ClientSession(url) as http:
            carrier.http, carrier.gateway = http, url
            yield made, carrier
    finally:
        await runner.cleanup()


async def order(carrier: Carrier, /, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"to": "+4930123456", "carrier": carrier.name, **fields}
    async with carrier.http.post("/v1/calls", json=body) as answer:
        return answer.status, await answer.json()


async def ordered(carrier: Carrier, /, **fields: Any) -> str:
    status, view = await order(carrier, **fields)
    assert (status, view["state"], view["carrier"]) == (201, "calling", carrier.name), view
    await until(lambda: carrier.asked, "the order")
    return str(view["callId"])


async def show(carrier: Carrier, call_id: str) -> dict[str, Any]:
    async with carrier.http.get(f"/v1/calls/{call_id}") as answer:
        return dict(await answer.json())


@every
async def test_a_call_rings_is_answered_and_hung_up(tmp_path: Path, name: str) -> None:
    routes = {"default": {"welcome_greeting": "Hello."}}
    async with calling(tmp_path, name, routes=routes) as (made, carrier):
        call_id = await ordered(carrier, customParameters={"case": "7"})
        await carrier.report("ringing")
        assert (await show(carrier, call_id))["state"] == "ringing"
        url, parameters = await carrier.answered()
        assert "7" in parameters.values(), "the order's parameters reach the stream"
        leg = CarrierLeg(CARRIERS[name](1, parameters))
        await leg.connect(url)
        session = await until(lambda: made.directory.get(call_id), "the call under the id of its order")
        assert (session.call.direction, session.call.to) == ("outbound", "+4930123456")
        assert session.call.custom_parameters["case"] == "7"
        listed = await (await carrier.http.get("/v1/calls")).json()
        assert ([each["callId"] for each in listed["calls"]], listed["placed"]) == ([call_id], [])
        await leg.aclose()
        await until(lambda: made.directory.get(call_id) is None, "the end of the call")
        await carrier.report("completed")

        async def logged() -> dict[str, Any] | None:
            found = await show(carrier, call_id)
            return found if "entries" in found else None

        record = await until(logged, "the record")
        events = [entry["event"] for entry in record["entries"] if entry["kind"] == "call"]
        assert events == ["queued", "ringing", "answered", "completed"]
        assert (record["transport"], record["outcome"]) == (name, "completed")


@every
@pytest.mark.parametrize(("event", "reason"), [("busy", "busy"), ("noAnswer", "no_answer"), ("failed", "refused")])
async def test_a_call_that_is_not_answered_has_its_reason_and_its_record(
    tmp_path: Path, name: str, event: str, reason: str
) -> None:
    async with calling(tmp_path, name) as (made, carrier):
        call_id = await ordered(carrier)
        await carrier.report("ringing")
        await carrier.report(event)
        await carrier.report("ringing")  # it was overtaken, and says nothing
        view = await show(carrier, call_id)
        assert (view["state"], view["reason"], view["event"]) == ("failed", reason, event)

        async def logged() -> list[Any]:
            return list((await (await carrier.http.get("/v1/calls?ended=true")).json())["calls"])

        (record,) = await until(logged, "the record")
        assert (record["callId"], record["outcome"], record["reason"]) == (call_id, "unanswered", reason)
        shown = f'talkspurt_call_events_total{{event="{event}",transport="{name}"}} 1.0'
        assert shown in made.metrics.exposition().decode()


@pytest.mark.parametrize("step_s", [-3600, 3600])
async def test_a_stepped_clock_changes_no_duration_of_a_call_that_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    async with calling(tmp_path, "twilio") as (made, carrier):
        call_id = await ordered(carrier)
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + step_s)
        await carrier.report("ringing")
        await asyncio.sleep(0.01)
        await carrier.report("busy")
        record = await until(lambda: made.stores.call_log.get(call_id), "the record")
        queued, ringing, busy = (entry.atMs for entry in record.entries)
        assert 0 <= queued <= ringing < busy <= record.durationMs < 100_000


@every
async def test_a_call_is_cancelled_at_the_carrier(tmp_path: Path, name: str) -> None:
    async with calling(tmp_path, name) as (made, carrier):
        call_id = await ordered(carrier)
        await until(lambda: made.carriers.attempt(call_id).call_sid, "the carrier's id")
        async with carrier.http.delete(f"/v1/calls/{call_id}") as answer:
            assert answer.status == 204
        await until(lambda: len(carrier.asked) == 2, "the hang-up")
        assert carrier.asked[1][:1] == (vector(name, "hang_up")["method"],)
        assert vector(name, "hang_up")["url"].rpartition("/v")[2].partition("/")[2] in carrier.asked[1][1] or (
            name in ("twilio", "signalwire")
        )
        assert (await show(carrier, call_id))["reason"] == "cancelled"
        url = carrier.hook("Url", "answer_url")
        async with carrier.http.post(url, data={"CallSid": "c1"}) as answer:
            assert answer.status == 410, "a call that was given up gets no stream"


async def test_an_answered_call_whose_stream_is_not_here_is_still_cancelled_at_the_carrier(tmp_path: Path) -> None:
    async with calling(tmp_path, "twilio") as (made, carrier):
        call_id = await ordered(carrier)
        await until(lambda: made.carriers.attempt(call_id).call_sid, "the carrier's id")
        async with carrier.http.post(carrier.hook("Url", "answer_url"), data={"CallSid": "c1"}) as answer:
            assert answer.status == 200
        async with carrier.http.delete(f"/v1/calls/{call_id}") as answer:
            assert answer.status == 204
        await until(lambda: len(carrier.asked) == 2, "the hang-up")
        assert (await show(carrier, call_id))["reason"] == "cancelled"


@every
async def test_an_order_that_the_carrier_refuses_fails_with_its_code(tmp_path: Path, name: str) -> None:
    async with calling(tmp_path, name) as (_, carrier):
        carrier.status, carrier.answer = 400, {"code": 21211, "message": "Invalid number", "sid": ""}
        call_id = await ordered(carrier)

        async def failed() -> dict[str, Any] | None:
            view = await show(carrier, call_id)
            return view if view["state"] == "failed" else None

        view = await until(failed, "the failure")
        assert (view["reason"], view["code"], view["by"]) == ("refused", "21211", "carrier")
        assert len(carrier.asked) == 1, "a refused order is not repeated"


async def test_an_order_without_a_sure_answer_is_never_repeated(tmp_path: Path) -> None:
    async with calling(tmp_path, "twilio") as (_, carrier):
        carrier.status, carrier.answer = 500, {}
        call_id = await ordered(carrier)

        async def failed() -> bool:
            return bool((await show(carrier, call_id))["state"] == "failed")

        await until(failed, "the failure")
        assert len(carrier.asked) == 1, "a second order could be a second call"


async def test_a_carriers_call_counts_and_is_checked_like_one_by_sip(tmp_path: Path) -> None:
    routes = {"default": {"calling": {"calls_at_once": 1}}}
    async with calling(tmp_path, "twilio", routes=routes) as (_, carrier):
        for fields, status, code in (
            ({"to": "+15550100"}, 403, "target_not_allowed"),
            ({"from": "+15550100"}, 403, "caller_id_not_allowed"),
            ({"carrier": "nowhere"}, 404, "unknown_carrier"),
            ({"trunk": "office"}, 422, "invalid_body"),
            ({"headers": {"X-A": "1"}}, 422, "invalid_body"),
            ({"route": "nowhere"}, 404, "unknown_route"),
        ):
            refused, body = await order(carrier, **fields)
            assert (refused, body["error"]["code"]) == (status, code), fields
        call_id = await ordered(carrier)
        refused, body = await order(carrier)
        assert (refused, body["error"]["code"]) == (429, "too_many_calls")
        await carrier.report("busy")
        assert (await show(carrier, call_id))["state"] == "failed"
        assert (await order(carrier))[0] == 201, "the ended call counts no more"


async def test_what_is_not_set_is_named(tmp_path: Path) -> None:
    async with calling(tmp_path, "twilio", carriers={"twilio": {}, "exotel": {}}) as (_, carrier):
        status, body = await order(carrier)
        assert status == 503 and "carriers.twilio.account_sid" in body["error"]["message"]
        status, body = await order(carrier, carrier="exotel")
        assert (status, body["error"]["param"]) == (422, "carrier")


async def test_a_recording_tone_of_an_answered_call_reaches_observers_and_metrics(tmp_path: Path) -> None:
    sound = np.concatenate((silence(0.5), tone(1000, seconds=0.4), silence(0.5)))
    frames = [encode_ulaw(to_int16(sound[at : at + 160])) for at in range(0, len(sound), 160)]
    async with calling(tmp_path, "twilio") as (made, carrier):
        call_id = await ordered(carrier)
        async with carrier.http.get("/v1/events") as events:
            await events.content.readuntil(b"\n\n")
            url, parameters = await carrier.answered()
            leg = CarrierLeg(CARRIERS["twilio"](1, parameters))
            await leg.connect(url)
            await until(lambda: made.directory.get(call_id), "the call")
            for frame in frames:
                leg.say([frame])
                leg.send_uplink()
            async for line in events.content:
                told = json.loads(line[6:]) if line.startswith(b"data: ") else {}
                if told.get("type") == "beep":
                    break
        assert told["sessionId"] == call_id
        assert told["lengthMs"] == pytest.approx(400, abs=20)
        assert "talkspurt_beeps_total 1.0" in made.metrics.exposition().decode()
        await leg.aclose()


async def test_status_callbacks_of_an_incoming_call_reach_observers_log_and_metrics(tmp_path: Path) -> None:
    async with calling(tmp_path, "twilio") as (made, carrier):
        called = {"CallSid": "CA7", "From": "+4930123456", "To": "+4930654321", "Direction": "inbound"}
        async with carrier.http.get("/v1/events") as events:
            await events.content.readuntil(b"\n\n")
            async with carrier.http.post("/webhooks/twilio/default", data=called) as answer:
                url, parameters = stream_of("twilio", await answer.text())
            leg = CarrierLeg(CARRIERS["twilio"](7, parameters))
            leg.carrier.call_sid = "CA7"
            await leg.connect(url)
            session = await until(lambda: next(iter(made.directory), None), "the call")
            failed = {"CallSid": session.call.call_sid, "StreamEvent": "stream-error", "StreamErrorCode": "31924"}
            other = failed | {"CallSid": "CAother"}
            for form in (other, failed):
                async with carrier.http.post("/webhooks/twilio/default/status", data=form) as answer:
                    assert answer.status == 204
            async for line in events.content:
                told = json.loads(line[6:]) if line.startswith(b"data: ") else {}
                if told.get("type") == "call":
                    break
        assert told == {"type": "call", "sessionId": session.call_id, "event": "failed", "code": "31924"}
        assert (
            'talkspurt_call_events_total{event="failed",transport="twilio"} 1.0' in made.metrics.exposition().decode()
        )
        await leg.aclose()

        async def logged() -> dict[str, Any] | None:
            found = await show(carrier, session.call_id)
            return found if "entries" in found else None

        record = await until(logged, "the record")
        assert [entry["code"] for entry in record["entries"] if entry["kind"] == "call"] == ["31924"]


async def test_observers_hear_of_a_call_before_it_is_answered(tmp_path: Path) -> None:
    async with calling(tmp_path, "twilio") as (_, carrier):
        call_id = await ordered(carrier)
        async with carrier.http.get(f"/v1/calls/{call_id}/events") as events:
            await events.content.readuntil(b"\n\n")
            await carrier.report("ringing", SipResponseCode="180")
            await carrier.report("busy", SipResponseCode="486")
            told = [json.loads(line[6:]) async for line in events.content if line.startswith(b"data: ")]
        assert told == [
            {"type": "call", "sessionId": call_id, "event": "ringing", "sipStatus": 180},
            {"type": "call", "sessionId": call_id, "event": "busy", "sipStatus": 486},
        ]
