"""``POST /v1/tokens`` at a whole gateway: what a browser's token opens, and for how long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.credentials import api_keys
from gateway.credentials.api_keys import digest
from talkspurt.build import Gateway
from tests.gateway.call.test_calls import CALL, Leg
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.webrtc.test_webrtc_signalling import CHROMIUM
from tests.waiting import PATIENCE_S, until

SECTIONS: dict[str, Any] = {
    "auth": {"api_keys": [{"key": "k"}, {"key": "phone", "scopes": ["browser"]}]},
    "routes": {"sales": {}, "default": {}},
    "webrtc": {"addresses": ["127.0.0.1"]},
}


@dataclass
class House:
    made: Gateway
    http: aiohttp.ClientSession

    async def ask(self, method: str, path: str, key: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """Status, and the answer or its error."""
        headers = {"Authorization": f"Bearer {key}"}
        async with self.http.request(method, path, headers=headers, json=body or None) as answer:
            data = await answer.json() if answer.content_type == "application/json" else {}
            return answer.status, data.get("error", data)

    async def token(self, scope: str, *, key: str = "k", route: str = "sales", **body: Any) -> str:
        status, answer = await self.ask("POST", "/v1/tokens", key, scope=scope, route=route, **body)
        assert status == 201, answer
        return str(answer["token"])

    async def offer(self, key: str, **body: Any) -> tuple[int, dict[str, Any]]:
        return await self.ask("POST", "/v1/webrtc/offer", key, sdp=CHROMIUM, type="offer", **body)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with api_gateway(tmp_path, **SECTIONS) as (made, _, url), aiohttp.ClientSession(url) as http:
        yield House(made, http)


async def test_a_call_token_calls_its_route_and_does_nothing_else(house: House) -> None:
    token = await house.token("call")
    status, answer = await house.offer(token, route="sales")
    assert status == 200 and answer["leads"] is False
    assert (await house.offer(token, route="default"))[0] == 404
    assert (await house.ask("GET", "/v1/webrtc/ice", token))[0] == 200
    for method, path in (("GET", "/v1/calls"), ("GET", "/v1/routes"), ("GET", "/metrics"), ("POST", "/v1/tts"),
                         ("GET", f"/v1/calls/{answer['callId']}/events"), ("GET", "/v1/dialogue")):  # fmt: skip
        status, error = await house.ask(method, path, token)
        assert (status, error["code"]) == (403, "missing_scope"), path
    assert (await house.ask("POST", "/v1/tokens", token, scope="call"))[0] == 403


async def test_one_browser_does_not_touch_the_call_of_another(house: House) -> None:
    mine, other = [await house.token("lead") for _ in range(2)]
    _, answer = await house.offer(mine, route="sales")
    call_id, path = answer["callId"], f"/whip/sales/{answer['callId']}"
    assert answer["leads"] is True
    assert (await house.offer(other, callId=call_id))[0] == 404
    assert (await house.ask("DELETE", path, other))[0] == 404
    assert (await house.offer(mine, callId=call_id))[0] == 200
    assert (await house.ask("DELETE", path, mine))[0] == 200
    _, answer = await house.offer("k", route="sales")
    assert (await house.ask("DELETE", f"/whip/sales/{answer['callId']}", mine))[0] == 404


async def test_a_read_token_sees_its_route_or_one_call_only(house: House) -> None:
    begun = [house.made.calls.begin(replace(CALL, route=route), Leg()) for route in ("sales", "sales", "default")]
    await until(lambda: len(house.made.dialogue.observers._sinks) == 3, "calls that can be watched")
    wide, narrow = await house.token("read"), await house.token("read", call=begun[0].call_id)
    for token, seen in ((wide, begun[:2]), (narrow, begun[:1])):
        _, answer = await house.ask("GET", "/v1/calls", token)
        assert [call["callId"] for call in answer["calls"]] == [call.call_id for call in seen]
        for call in begun:
            assert (await house.ask("GET", f"/v1/calls/{call.call_id}", token))[0] == (200 if call in seen else 404)
            assert (await house.ask("DELETE", f"/v1/calls/{call.call_id}", token))[0] == 403
    async with house.http.get("/v1/events", params={"access_token": narrow}) as events:
        assert await events.content.readline() == b": connected\n"
        for call in reversed(begun):
            house.made.dialogue.observers.inject(call.call_id, b'{"type":"text","token":"Hello.","last":true}')
        await events.content.readline()
        assert begun[0].call_id.encode() in await events.content.readline()
    for call in begun:
        call.end("over", hang_up=True)


@pytest.mark.parametrize(
    ("key", "body", "status", "code"),
    [
        ("phone", {"scope": "lead"}, 403, "missing_scope"),
        ("phone", {"scope": "read"}, 403, "missing_scope"),
        ("phone", {"scope": "call", "route": "none"}, 404, "unknown_route"),
        ("phone", {"scope": "call", "ttl_s": 86_401}, 422, "invalid_body"),
        ("phone", {"scope": "call", "call": "VX"}, 422, "invalid_body"),
        ("k", {"scope": "read", "call": "VX"}, 404, "unknown_call"),
        ("phone", {"scope": "session"}, 422, "invalid_body"),
        ("phone", {"scope": "admin"}, 422, "invalid_body"),
        ("", {"scope": "call"}, 401, "unauthorized"),
    ],
)
async def test_a_token_holds_no_more_than_its_key(
    house: House, key: str, body: dict[str, Any], status: int, code: str
) -> None:
    got, error = await house.ask("POST", "/v1/tokens", key, **body)
    assert (got, error["code"]) == (status, code)


async def test_a_token_dies_with_its_time_and_with_its_key(house: House) -> None:
    tokens, later = house.made.tokens, time.time() + 60
    for token, code in (
        (tokens.grant(digest(b"k"), "call", expires=time.time() - 1, route="sales"), "expired_token"),
        (tokens.grant(digest(b"of last year"), "call", expires=later, route="sales"), "unauthorized"),
        ("tst_guessed", "bad_token"),
    ):
        status, error = await house.ask("GET", "/v1/webrtc/ice", token)
        assert (status, error["code"]) == (401, code)
    gone = tokens.grant(
        digest(b"k"), "call", expires=later, route="closed"
    )  # a route that the configuration has no longer
    assert (await house.offer(gone, route="closed"))[0] == 404


async def test_a_stream_of_events_ends_with_its_token(house: House) -> None:
    token = house.made.tokens.grant(digest(b"k"), "read", expires=time.time() + 5, route="sales")
    async with house.http.get("/v1/events", headers={"Authorization": f"Bearer {token}"}) as answer:
        assert answer.status == 200
        assert await asyncio.wait_for(answer.read(), PATIENCE_S) == b": connected\n\n"
    async with house.http.get("/v1/events", headers={"Authorization": f"Bearer {token}"}) as answer:
        assert answer.status == 401


async def test_a_stream_of_events_tells_nothing_more_when_its_key_was_revoked(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made, key = api_keys.create(path, now=time.time(), tenant="default")
    sections: dict[str, Any] = SECTIONS | {"auth": {"api_keys": [{"key": "k"}], "keys_file": str(path)}}
    async with api_gateway(tmp_path, **sections) as (gateway, _, url), aiohttp.ClientSession(url) as http:
        house = House(gateway, http)
        call = gateway.calls.begin(replace(CALL, route="sales"), Leg())
        await until(lambda: gateway.dialogue.observers._sinks, "a call that can be watched")
        async with http.get("/v1/events", headers={"Authorization": f"Bearer {key}"}) as events:
            assert await events.content.readline() == b": connected\n"
            api_keys.revoke(path, made.id, now=time.time())
            async with asyncio.timeout(PATIENCE_S):
                while (await house.ask("GET", "/v1/calls", key))[0] == 200:
                    await asyncio.sleep(0.05)
            gateway.dialogue.observers.inject(call.call_id, b'{"type":"text","token":"Hello.","last":true}')
            assert await asyncio.wait_for(events.content.read(), PATIENCE_S) == b"\n"
        call.end("over", hang_up=True)
