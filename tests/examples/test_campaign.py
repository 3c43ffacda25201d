"""``examples/campaign.py`` against simulated callees on loopback: by SIP, and at a carrier's REST interface."""

from __future__ import annotations

import asyncio
import csv
import runpy
from pathlib import Path
from typing import Any

import aiohttp

from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.http.call_api.test_place_call import SIP
from tests.gateway.placing.test_carrier_calls import calling
from tests.sip_bridge.phone import Phone, offer
from tests.sip_bridge.test_outgoing import fresh, next_of, reply
from tests.waiting import until

run: Any = runpy.run_path(str(Path(__file__).parents[2] / "examples/campaign.py"))["run"]


def rows(results: Path) -> list[dict[str, str]]:
    with results.open(newline="") as file:
        return list(csv.DictReader(file))


async def test_a_list_is_called_by_sip_and_each_end_is_written(tmp_path: Path) -> None:
    results = tmp_path / "results.csv"
    routes = {"default": {"welcome_greeting": "Hello."}}
    sip = SIP | {"allowed_targets": ["ann@127.0.0.1", "bob@127.0.0.1"]}
    kept = {"folder": str(tmp_path / "calls")}
    async with (
        api_gateway(tmp_path, sip=sip, routes=routes, calls=kept) as (made, _, url),
        aiohttp.ClientSession(url) as http,
    ):
        assert made.sip is not None
        with Phone(made.sip.endpoint.port) as phone:
            people = [
                {"to": f"sip:ann@127.0.0.1:{phone.port}", "name": "Ann"},
                {"to": f"sip:bob@127.0.0.1:{phone.port}", "name": "Bob"},
                {"to": "sip:eve@127.0.0.1", "name": "Eve"},
            ]
            campaign = asyncio.create_task(run(http, people, results, {}, per_minute=60_000, at_once=1))
            busy = await fresh(phone, "INVITE")
            reply(phone, busy, 486)
            await next_of(phone, "ACK")
            invite = await fresh(phone, "INVITE")
            reply(phone, invite, 180)
            reply(phone, invite, 200, body=offer(phone.rtp_port, codecs="0"))
            await next_of(phone, "ACK")
            session = await until(lambda: next(iter(made.directory), None), "the answered call")
            session.end("test is over", hang_up=True)
            await phone.hung_up()
            await campaign
            found = rows(results)
            assert [row["result"] for row in found] == ["busy", "completed", "refused"]
            assert (found[0]["sipStatus"], found[2]["code"]) == ("486", "target_not_allowed")
            assert float(found[1]["seconds"]) >= 0 and found[1]["callId"].startswith("VX")

            async def logged() -> list[dict[str, Any]] | None:
                calls = (await (await http.get("/v1/calls?ended=true")).json())["calls"]
                return calls if len(calls) == 2 else None

            answered, unanswered = await until(logged, "the log of both calls")
            assert (answered["outcome"], unanswered["outcome"]) == ("completed", "unanswered")
            record = await (await http.get(f"/v1/calls/{answered['callId']}")).json()
            told = [entry["event"] for entry in record["entries"] if entry["kind"] == "call"]
            assert told == ["queued", "ringing", "answered", "completed"]
            await run(http, people, results, {}, per_minute=60_000, at_once=1)
            assert rows(results) == found, "no one is called twice"


async def test_a_list_is_called_through_a_carrier(tmp_path: Path) -> None:
    results = tmp_path / "results.csv"
    async with calling(tmp_path, "twilio") as (_, carrier):
        people = [{"to": "+4930123456", "name": "Ann"}]
        order = {"carrier": "twilio"}
        campaign = asyncio.create_task(run(carrier.http, people, results, order, per_minute=60_000, at_once=2))
        await until(lambda: carrier.asked, "the order")
        await carrier.report("ringing")
        await carrier.report("noAnswer", SipResponseCode="487")
        await campaign
        (row,) = rows(results)
        assert (row["name"], row["result"], row["sipStatus"]) == ("Ann", "noAnswer", "487")
