"""Placing calls over REST, to a phone on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from sip_bridge.message.sip import Request
from talkspurt.build import Gateway
from tests.gateway.http.api_gateway import api_gateway
from tests.sip_bridge.phone import Phone, offer
from tests.sip_bridge.test_outgoing import fresh, next_of, reply
from tests.waiting import PATIENCE_S, until

SIP: dict[str, Any] = {
    "port": 0,
    "rtp_ports": "43000-43999",
    "allowed_targets": ["ann@127.0.0.1"],
    "trunks": {"office": {"addresses": ["127.0.0.0/8"], "answer_at_once": True}},
}


async def shown(http: aiohttp.ClientSession, call_id: str) -> dict[str, Any]:
    async with http.get(f"/v1/calls/{call_id}") as answer:
        assert answer.status == 200
        return dict(await answer.json())


async def until_state(http: aiohttp.ClientSession, call_id: str, state: str) -> dict[str, Any]:
    return await until_shown(http, call_id, state=state)


async def until_shown(http: aiohttp.ClientSession, call_id: str, **fields: str) -> dict[str, Any]:
    async def view() -> dict[str, Any] | None:
        seen = await shown(http, call_id)
        return seen if fields.items() <= seen.items() else None

    found: dict[str, Any] = await until(view, f"{fields}")
    return found


async def test_a_call_is_placed_shown_answered_and_hung_up(tmp_path: Path) -> None:
    routes = {"default": {"welcome_greeting": "Hello."}}
    trunks = {"office": {**SIP["trunks"]["office"], "headers": ["X-*", "P-*"]}}
    calling = {"caller_ids": ["+4930"]}
    async with (
        api_gateway(tmp_path, sip=SIP | {"trunks": trunks}, routes=routes, calling=calling) as (made, _, url),
        aiohttp.ClientSession(url) as http,
    ):
        assert made.sip is not None
        with Phone(made.sip.endpoint.port) as phone:
            parameters = {"X-Case": "7", "P-Asserted-Identity": "<sip:+15550100@127.0.0.1>"}
            body = {"to": f"sip:ann@127.0.0.1:{phone.port}", "from": "+4930", "customParameters": parameters}
            async with http.post("/v1/calls", json=body) as answer:
                assert answer.status == 201
                placed = await answer.json()
                assert answer.headers["Location"] == f"/v1/calls/{placed['callId']}"
            invite = await fresh(phone, "INVITE")
            assert invite.from_.uri.user == "+4930" and invite.headers.get("X-Case") == "7"
            assert "P-Asserted-Identity" not in invite.headers, "a parameter, whatever the trunk hands on"
            reply(phone, invite, 180)
            ringing = await until_state(http, placed["callId"], "ringing")
            assert ringing["sipStatus"] == 180
            async with http.get("/v1/calls") as answer:
                assert await answer.json() == {"calls": [], "placed": [ringing]}
            reply(phone, invite, 200, body=offer(phone.rtp_port, codecs="0"))
            await next_of(phone, "ACK")
            view = await until_shown(http, placed["callId"], direction="outbound")
            async with http.get("/v1/calls") as answer:
                listed = await answer.json()
            assert ([each["callId"] for each in listed["calls"]], listed["placed"]) == ([placed["callId"]], [])
            assert (view["transport"], view["callId"]) == ("sip", placed["callId"])
            async with asyncio.timeout(PATIENCE_S):
                while (await phone.packet())[12:] == b"\xff" * 160:
                    pass  # the greeting is heard
            async with http.delete(f"/v1/calls/{placed['callId']}") as answer:
                assert answer.status == 204
            await phone.hung_up()


async def test_a_busy_callee_and_a_call_that_is_given_up(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, sip=SIP) as (made, _, url), aiohttp.ClientSession(url) as http:
        assert made.sip is not None
        with Phone(made.sip.endpoint.port) as phone:

            async def invited() -> tuple[str, Request]:
                async with http.post("/v1/calls", json={"target": f"sip:ann@127.0.0.1:{phone.port}"}) as answer:
                    return (await answer.json())["callId"], await fresh(phone, "INVITE")

            call_id, invite = await invited()
            reply(phone, invite, 486)
            await next_of(phone, "ACK")
            view = await until_state(http, call_id, "failed")
            assert (view["sipStatus"], view["reason"]) == (486, "busy")
            call_id, invite = await invited()
            reply(phone, invite, 180)
            await until_state(http, call_id, "ringing")
            async with http.delete(f"/v1/calls/{call_id}") as answer:
                assert answer.status == 204
            (cancel,) = await next_of(phone, "CANCEL")
            phone.answer(cancel, 200)
            reply(phone, invite, 487)
            await next_of(phone, "ACK")
            assert (await until_state(http, call_id, "failed"))["reason"] == "cancelled"


async def test_bodies_and_targets_that_are_refused(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, sip=SIP) as (_, _, url), aiohttp.ClientSession(url) as http:
        for body, status, code in (
            ({"to": "sip:bob@127.0.0.1"}, 403, "target_not_allowed"),
            ({"to": "sip:ann@127.0.0.2"}, 403, "target_not_allowed"),
            ({"to": "+88216123456"}, 403, "target_not_allowed"),
            ({"to": "sip:ann@127.0.0.1;maddr=127.0.0.2"}, 422, "invalid_target"),
            ({"to": "sip:ann@127.0.0.1", "from": "+15550100"}, 403, "caller_id_not_allowed"),
            ({"to": "sip:ann@127.0.0.1", "headers": {"P-Asserted-Identity": "<sip:+1@a>"}}, 403, "header_not_allowed"),
            ({}, 422, "invalid_body"),
            ({"to": "sip:ann@127.0.0.1", "target": "sip:ann@127.0.0.1"}, 422, "invalid_body"),
            ({"to": "sip:ann@127.0.0.1", "colour": "red"}, 422, "invalid_body"),
            ({"to": "sip:ann@127.0.0.1", "route": "nowhere"}, 404, "unknown_route"),
        ):
            async with http.post("/v1/calls", json=body) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (status, code)
        async with http.get("/v1/calls/VX" + "0" * 32) as answer:
            assert answer.status == 404


async def placed(http: aiohttp.ClientSession, phone: Phone) -> tuple[int, dict[str, Any], str]:
    """Status, body and Retry-After of one more order."""
    async with http.post("/v1/calls", json={"to": f"sip:ann@127.0.0.1:{phone.port}"}) as answer:
        return answer.status, await answer.json(), answer.headers.get("Retry-After", "")


@asynccontextmanager
async def with_key(tmp_path: Path, **limits: int) -> AsyncIterator[tuple[Gateway, aiohttp.ClientSession, Phone]]:
    """A gateway with one key of these limits, a client that shows the key, and a phone to call."""
    auth = {"api_keys": [{"key": "ours", **limits}]}
    async with (
        api_gateway(tmp_path, sip=SIP, auth=auth) as (made, _, url),
        aiohttp.ClientSession(url, headers={"Authorization": "Bearer ours"}) as http,
    ):
        assert made.sip is not None
        with Phone(made.sip.endpoint.port) as phone:
            yield made, http, phone


async def test_a_key_may_place_so_many_calls_at_once_and_a_call_counts_to_its_end(tmp_path: Path) -> None:
    async with with_key(tmp_path, concurrent_calls=1) as (made, http, phone):
        orders = [await placed(http, phone) for _ in range(4)]
        assert [status for status, _, _ in orders] == [201, 429, 429, 429]
        assert {(body["error"]["code"], wait) for _, body, wait in orders[1:]} == {("too_many_calls", "1")}
        async with http.post("/v1/tts", json={"text": "Hi."}) as answer:
            assert answer.status == 429, "speech requests and calls are counted together"
        invite = await fresh(phone, "INVITE")
        reply(phone, invite, 200, body=offer(phone.rtp_port, codecs="0"))
        await next_of(phone, "ACK")
        call_id = orders[0][1]["callId"]
        await until_shown(http, call_id, direction="outbound")
        assert (await placed(http, phone))[0] == 429, "an answered call continues"
        async with http.delete(f"/v1/calls/{call_id}") as answer:
            assert answer.status == 204
        await phone.hung_up()
        await until(lambda: not len(made.directory), "the call's end")
        for _ in range(2):
            status, body, _ = await placed(http, phone)
            assert status == 201, "a refused call is over"
            reply(phone, await fresh(phone, "INVITE"), 486)
            await next_of(phone, "ACK")
            await until_state(http, body["callId"], "failed")


async def test_a_key_may_place_so_many_calls_a_minute(tmp_path: Path) -> None:
    async with with_key(tmp_path, calls_per_minute=1) as (_, http, phone):
        assert (await placed(http, phone))[0] == 201
        status, body, wait = await placed(http, phone)
        assert (status, body["error"]["code"]) == (429, "rate_limited") and int(wait) > 0
        reply(phone, await fresh(phone, "INVITE"), 486)
        await next_of(phone, "ACK")


async def test_without_sip_no_call_can_be_placed(tmp_path: Path) -> None:
    async with api_gateway(tmp_path) as (_, _, url), aiohttp.ClientSession(url) as http:
        async with http.post("/v1/calls", json={"to": "sip:ann@127.0.0.1"}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "not_configured")


async def events(http: aiohttp.ClientSession, call_id: str) -> AsyncIterator[dict[str, Any]]:
    async with http.get(f"/v1/calls/{call_id}/events") as answer:
        async for line in answer.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


async def test_a_transfer_that_fails_leaves_the_session_and_one_that_succeeds_ends_it(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, sip=SIP) as (made, _, url), aiohttp.ClientSession(url) as http:
        assert made.sip is not None
        with Phone(made.sip.endpoint.port) as phone:
            await phone.call()
            async with http.get("/v1/calls") as answer:
                ((call_id),) = [call["callId"] for call in (await answer.json())["calls"]]
            told = aiter(events(http, call_id))
            ahead = asyncio.ensure_future(anext(told))  # subscribed before anything happens
            await until(lambda: made.dialogue.observers._subscriptions, "the subscription")
            message = {"type": "transfer", "target": "sip:bob@127.0.0.1:5099"}
            async with http.post(f"/v1/calls/{call_id}/messages", json=message) as answer:
                assert answer.status == 202
            event = await asyncio.wait_for(ahead, PATIENCE_S)
            assert (event["type"], event["code"], event["field"]) == ("error", "target_not_allowed", "target")
            assert "a SIP address" in event["description"] and "bob" not in event["description"]
            ahead = asyncio.ensure_future(anext(told))
            for status, notified in ((486, "Busy Here"), (200, "OK")):
                message = {"type": "transfer", "target": "sip:ann@127.0.0.1:5099", "handoffData": "case 7"}
                async with http.post(f"/v1/calls/{call_id}/messages", json=message) as answer:
                    assert answer.status == 202
                refer = await fresh(phone, "REFER")
                assert b"case 7".hex() in (refer.headers.get("Refer-To") or "")
                phone.answer(refer, 202)
                headers = (("Event", "refer"), ("Subscription-State", "terminated"))
                fragment = f"SIP/2.0 {status} {notified}\r\n".encode()
                phone.send(phone.request("NOTIFY", *headers, body=fragment, content="message/sipfrag"))
                await phone.response(200)
                event = await asyncio.wait_for(ahead, PATIENCE_S)
                if status == 486:
                    assert (event["type"], event["code"]) == ("error", "transfer_failed")
                    assert "486 Busy Here" in event["description"]
                    ahead = asyncio.ensure_future(anext(told))
                else:
                    assert (event["type"], event["reason"]) == ("ended", "transferred")
            await phone.hung_up()
            await told.aclose()  # type: ignore[attr-defined]


async def test_a_session_that_begins_with_early_media_greets_after_the_answer(tmp_path: Path) -> None:
    with Phone(0) as phone:
        trunk = {"proxy": f"sip:127.0.0.1:{phone.port}", "early_media": True, "addresses": ["127.0.0.0/8"]}
        sip = SIP | {"trunks": {"early": trunk}}
        routes = {"default": {"welcome_greeting": "Hello."}}
        async with api_gateway(tmp_path, sip=sip, routes=routes) as (made, _, url), aiohttp.ClientSession(url) as http:
            assert made.sip is not None
            phone.server = ("127.0.0.1", made.sip.endpoint.port)
            async with http.post("/v1/calls", json={"to": "sip:ann@127.0.0.1", "trunk": "early"}) as answer:
                placed = await answer.json()
            invite = await fresh(phone, "INVITE")
            reply(phone, invite, 183, body=offer(phone.rtp_port, codecs="9"))
            await until_state(http, placed["callId"], "listening")  # the session is there
            playout = made.directory.get(placed["callId"]).speech.playout  # type: ignore[union-attr]
            await until(playout.buffered_s, "the greeting's sound")
            assert playout.on_hold
            before = phone.waiting()
            assert len(before) <= 1  # silence, always the same
            reply(phone, invite, 200)
            await next_of(phone, "ACK")
            async with asyncio.timeout(PATIENCE_S):
                while (await phone.packet())[12:] in before:
                    pass
            made.directory.get(placed["callId"]).end("test", hang_up=True)  # type: ignore[union-attr]
            await phone.hung_up()
