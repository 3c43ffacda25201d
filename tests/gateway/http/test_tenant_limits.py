"""Limits of tenants at a whole gateway: what is refused, and what a client is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.errors import Rejected
from tests.gateway.call.test_calls import CALL, Leg
from tests.gateway.http.api_gateway import api_gateway
from tests.waiting import until

KEYS = [{"key": "one", "tenant": "shop"}, {"key": "other", "tenant": "shop"}, {"key": "bank", "tenant": "bank"}]
ROUTES = {"a": {"tenant": "shop"}, "b": {"tenant": "bank"}, "default": {}}


def sections(**limits: int) -> dict[str, Any]:
    return {"auth": {"api_keys": KEYS}, "routes": ROUTES, "limits": {"tenants": {"shop": limits}}}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_keys_of_a_tenant_share_its_requests_and_are_told_how_many_are_left(tmp_path: Path) -> None:
    async with (
        api_gateway(tmp_path, **sections(requests_per_minute=3)) as (_, _, url),
        aiohttp.ClientSession(url) as http,
    ):
        for left, key in ((2, "one"), (1, "other"), (0, "one")):
            async with http.get("/v1/routes", headers=bearer(key)) as answer:
                assert answer.status == 200
                assert answer.headers["RateLimit-Policy"] == '"key";q=600;w=60, "requests";q=3;w=60'
                assert f'"requests";r={left};t=' in answer.headers["RateLimit"]
        async with http.get("/v1/routes", headers=bearer("other")) as answer:
            assert answer.status == 429 and 1 <= int(answer.headers["Retry-After"]) <= 60
            assert answer.headers["RateLimit-Policy"] == '"requests";q=3;w=60'
            assert '"requests";r=0;t=' in answer.headers["RateLimit"]
            assert (await answer.json())["error"]["code"] == "rate_limited"
        async with http.get("/v1/routes", headers=bearer("bank")) as answer:
            assert answer.status == 200 and answer.headers["RateLimit-Policy"] == '"key";q=600;w=60'


async def test_the_window_of_a_key_is_told_too(tmp_path: Path) -> None:
    keys = [{"key": "one", "requests_per_minute": 1}]
    async with api_gateway(tmp_path, auth={"api_keys": keys}) as (_, _, url), aiohttp.ClientSession(url) as http:
        for status in (200, 429):
            async with http.get("/v1/routes", headers=bearer("one")) as answer:
                assert (answer.status, answer.headers["RateLimit-Policy"]) == (status, '"key";q=1;w=60')
                assert answer.headers["RateLimit"].startswith('"key";r=0;t=')


async def test_characters_are_counted_before_they_are_spoken(tmp_path: Path) -> None:
    async with (
        api_gateway(tmp_path, **sections(characters_per_minute=20)) as (_, _, url),
        aiohttp.ClientSession(url) as http,
    ):
        for text, status in (("Ten chars.", 200), ("Eleven char", 429), ("Ten chars.", 200), ("x" * 21, 413)):
            async with http.post("/v1/tts", json={"text": text}, headers=bearer("one")) as answer:
                assert answer.status == status, await answer.text()
        async with http.ws_connect("/ws/tts", headers=bearer("other")) as socket:
            await socket.send_json({"delta": "More."})
            assert (await socket.receive_json())["error"]["code"] == "rate_limited"
        async with http.ws_connect("/ws/tts", headers=bearer("bank")) as socket:
            await socket.send_json({"text": "As much as they like, and more."})
            assert (await socket.receive_json())["type"] == "audio_chunk"


async def test_calls_of_a_tenant_are_counted_however_they_come(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, **sections(calls_at_once=1)) as (made, _, _):
        first = made.calls.begin(replace(CALL, route="a", call_sid="c1"), Leg())
        await until(lambda: made.call_parts.limiter._held, "a counted call")
        with pytest.raises(Rejected, match="1 calls at a time are allowed to this tenant") as refused:
            made.calls.begin(replace(CALL, route="a", call_sid="c2"), Leg())
        assert (refused.value.status, refused.value.code) == (429, "too_many_calls")
        others = [made.calls.begin(replace(CALL, route=r, call_sid=r), Leg()) for r in ("b", "default")]
        first.end("over", hang_up=True)
        await until(lambda: not made.call_parts.limiter._held, "the end of the call")

        # Two in one instant: both look before either is counted, and one of them is ended.
        both = [made.calls.begin(replace(CALL, route="a", call_sid=f"c{n}"), Leg()) for n in (3, 4)]
        await until(lambda: len(made.directory) == 3, "the end of one of them")
        assert sum(session in list(made.directory) for session in both) == 1
        for session in (*others, *both):
            session.end("over", hang_up=True)
        await until(lambda: not len(made.directory), "the end of all calls")
