"""``/v1/usage`` and ``/v1/records`` at a whole gateway: calls and requests of a tenant, also after a restart."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from gateway.seams.leg import Reception
from gateway.seams.messages import Subscribe, Text
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from tests.gateway.call.test_calls import CALL, Leg
from tests.gateway.http.api_gateway import api_gateway
from tests.waiting import until

KEYS = [
    {"key": "one", "tenant": "one"},
    {"key": "two", "tenant": "two"},
    {"key": "operator", "tenant": "house", "scopes": ["admin"]},
]
ROUTES = {"a": {"tenant": "one"}, "b": {"tenant": "two"}, "default": {}}


async def got(http: aiohttp.ClientSession, path: str, key: str = "one", **query: str) -> Any:
    async with http.get(path, params=query, headers={"Authorization": f"Bearer {key}"}) as answer:
        assert answer.status == 200, await answer.text()
        return await (answer.json() if answer.content_type == "application/json" else answer.text())


async def test_calls_and_requests_are_recorded_and_outlive_the_process(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "auth": {"api_keys": KEYS}, "routes": ROUTES,
        "records": {"database_url": f"sqlite:///{tmp_path}/records.sqlite3", "numbers": True},
    }  # fmt: skip
    async with api_gateway(tmp_path, **sections) as (made, _, url), aiohttp.ClientSession(url) as http:
        call = replace(CALL, route="a", from_="+4930123", to="+4989")
        session = made.calls.begin(call, Leg())
        await until(lambda: session.call_id in made.dialogue.observers._sinks, "a call that can be watched")
        (going_on,) = (await got(http, "/v1/records"))["records"]
        assert (going_on["id"], going_on["outcome"]) == (session.call_id, "open")
        session.on_message(Text(token="Hello there.", last=True))
        await until(lambda: session.stats.frames, "a turn that is over")
        session.end("over", hang_up=True)
        await until(lambda: not len(made.directory), "the end of the call")
        headers = {"Authorization": "Bearer one"}
        async with http.post("/v1/tts", json={"text": "Hello."}, headers=headers) as answer:
            assert answer.status == 200 and await answer.read()
        async with http.post("/v1/tts", json={"text": "No.", "speaker": "nobody"}, headers=headers) as answer:
            assert answer.status == 404

    async with api_gateway(tmp_path, **sections) as (_, _, url), aiohttp.ClientSession(url) as http:
        (day,) = (await got(http, "/v1/usage"))["days"]
        assert (day["calls"], day["requests"]) == (1, 2) and day["callSeconds"] > 0
        assert day["characters"] == len("Hello there.") + len("Hello.")
        called, asked, failed = (await got(http, "/v1/records"))["records"]
        assert (called["kind"], called["outcome"], called["reason"]) == ("call", "completed", "over")
        assert (called["from"], called["to"], called["route"]) == ("+4930123", "+4989", "a")
        assert called["audioSeconds"] > 0 and called["characters"] == 12 and called["firstPacketMs"] > 0
        assert (asked["kind"], asked["characters"]) == ("request", 6) and asked["firstPacketMs"] > 0
        assert (failed["outcome"], failed["characters"], failed["audioSeconds"]) == ("failed", 0, 0)
        assert day["audioSeconds"] == round(called["audioSeconds"] + asked["audioSeconds"], 2)
        assert (await got(http, "/v1/records", since=str(called["startedAt"] + 1e6)))["records"] == []
        first = await got(http, "/v1/records", limit="2")
        rest = await got(http, "/v1/records", limit="2", after=first["next"])
        assert ([*first["records"], *rest["records"]], rest["next"]) == ([called, asked, failed], "")
        for query in ({"after": "1795000000"}, {"after": "nan,VX1"}, {"limit": "0"}):
            async with http.get("/v1/records", params=query, headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["param"]) == (422, *query)

        rows = list(csv.DictReader((await got(http, "/v1/records", format="csv")).splitlines()))
        assert [row["id"] for row in rows] == [called["id"], asked["id"], failed["id"]]
        assert rows[0]["from"] == "'+4930123", "a spreadsheet takes it for a formula"
        (row,) = csv.DictReader((await got(http, "/v1/usage", format="csv")).splitlines())
        assert row["calls"] == "1" and row["day"] == day["day"]

        assert (await got(http, "/v1/usage", "two"))["days"] == []
        assert (await got(http, "/v1/records", "two"))["records"] == []
        for path in ("/v1/usage", "/v1/records"):
            async with http.get(path, params={"tenant": "two"}, headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (403, "missing_scope"), (
                    "another's bill"
                )

        async with http.post("/v1/tts", json={"text": "Two."}, headers={"Authorization": "Bearer two"}) as answer:
            assert answer.status == 200 and await answer.read()
        every = await got(http, "/v1/usage", "operator")
        assert every["tenant"] is None and [each["tenant"] for each in every["days"]] == ["one", "two"]
        assert (await got(http, "/v1/usage", "operator", tenant="one")) == {"tenant": "one", "days": [day]}
        assert [each["tenant"] for each in (await got(http, "/v1/records", "operator"))["records"]] == [
            *["one"] * 3,
            "two",
        ]
        (only,) = (await got(http, "/v1/records", "operator", tenant="two"))["records"]
        assert only["characters"] == len("Two.")


async def test_a_record_says_how_the_sound_arrived(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "carriers": {"twilio": {"verify": False}}, "records": {"database_url": f"sqlite:///{tmp_path}/records.sqlite3"},
    }  # fmt: skip
    async with api_gateway(tmp_path, **sections) as (made, _, url), aiohttp.ClientSession(url) as http:
        carrier = CarrierLeg(TwilioCarrier(1, {}))
        await carrier.connect(f"{url.replace('http', 'ws')}/media/twilio/default")
        await until(lambda: len(made.directory), "the call")
        (session,) = made.directory
        session.on_message(Subscribe(media=True))
        await until(lambda: session.listening, "somebody who listens")
        for _ in range(5):
            carrier.send_uplink()  # all at once: each but the first is early
        await carrier.aclose(30)
        await until(lambda: not len(made.directory), "the end of the call")
        (record,) = (await got(http, "/v1/records"))["records"]
        assert (record["packetsReceived"], record["packetsLost"], record["remotePacketsLost"]) == (5, None, None)
        assert record["jitterMs"] > 0 and record["maxJitterMs"] > 0

        leg = Leg()
        leg.reception = lambda: Reception(  # type: ignore[method-assign]
            received=30, lost=10, jitter_s=0.0123, max_jitter_s=0.05, remote_lost=2, remote_jitter_s=0.004
        )
        made.calls.begin(replace(CALL, call_id=""), leg).end("over", hang_up=True)
        await until(lambda: not len(made.directory), "the end of the call")
        _, record = (await got(http, "/v1/records"))["records"]
        assert (record["packetsLost"], record["lossFraction"], record["jitterMs"]) == (10, 0.25, 12.3)
        assert (record["maxJitterMs"], record["remotePacketsLost"], record["remoteJitterMs"]) == (50.0, 2, 4.0)


async def test_without_a_database_there_are_days_and_no_records_and_no_numbers(tmp_path: Path) -> None:
    async with api_gateway(tmp_path) as (made, _, url), aiohttp.ClientSession(url) as http:
        made.calls.begin(replace(CALL, from_="+4930123"), Leg()).end("over", hang_up=True)
        await until(lambda: not len(made.directory), "the end of the call")
        (day,) = (await got(http, "/v1/usage"))["days"]
        assert (day["calls"], day["requests"]) == (1, 0)
        async with http.get("/v1/records") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_configured")
        async with http.get("/v1/records", params={"since": "yesterday"}) as answer:
            assert answer.status == 404
