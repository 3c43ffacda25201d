"""Each handler whose work waits for a place gives it to tenants in turn, however many requests of one wait."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.http.speech_api.transcription import AT_ONCE
from gateway.limits.fair_turns import FairTurns
from gateway.recognition.server import ListenServer
from gateway.recognition.words import Words
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.http.speech_api.test_transcription import PATH, bursts, encoded, served
from tests.waiting import until

KEYS = [{"key": tenant * 20, "tenant": tenant, "scopes": ["admin"]} for tenant in ("a", "b")]


def get(path: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"method": "GET", "url": path}


def uploaded(path: str, name: str, **fields: str) -> Callable[[], dict[str, Any]]:
    def asked() -> dict[str, Any]:
        form = aiohttp.FormData(fields)
        form.add_field(name, io.BytesIO(encoded(bursts(1.0), "mp3", "libmp3lame")), filename="sound.mp3")
        return {"method": "POST", "url": path, "data": form}

    return asked


@pytest.fixture
async def recogniser() -> AsyncIterator[str]:
    async for url in served(ListenServer(lambda pcm, language, begun: Words("hum"))):
        yield url


HANDLERS = {
    "usage": ("speech_api.usage", get("/v1/usage")),
    "records": ("speech_api.usage", get("/v1/records")),
    "records as CSV": ("speech_api.usage", get("/v1/records?format=csv")),
    "ended calls": ("call_api.ended_calls", get("/v1/calls?ended=true")),
    "ended calls as CSV": ("call_api.ended_calls", get("/v1/calls?ended=true&format=csv")),
    "transcription": ("speech_api.transcription", uploaded(PATH, "file", model="whisper-1")),
    "voices": ("speech_api.voices", uploaded("/v1/voices", "audio", transcript="hello")),
}


def sections(folder: Path, recogniser: str) -> dict[str, Any]:
    return {
        "auth": {"api_keys": KEYS},
        "recogniser": {"url": recogniser},
        "routes": {tenant: {"tenant": tenant, "recogniser": "external"} for tenant in ("a", "b")},
        "records": {"database_url": f"sqlite:///{folder}/records.sqlite3"},
        "calls": {"folder": f"{folder}/calls"},
    }


async def status(http: aiohttp.ClientSession, tenant: str, asked: dict[str, Any]) -> int:
    async with http.request(**asked, headers={"Authorization": f"Bearer {tenant * 20}"}) as answer:
        await answer.read()
        return answer.status


@pytest.mark.parametrize("handler", HANDLERS)
async def test_the_request_of_another_tenant_goes_before_the_second_of_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recogniser: str, handler: str
) -> None:
    module, asked = HANDLERS[handler]
    made: list[FairTurns] = []
    monkeypatch.setattr(f"gateway.http.{module}.FairTurns", lambda places: made.append(FairTurns(places)) or made[-1])
    async with api_gateway(tmp_path, **sections(tmp_path, recogniser)) as (running, _, url):
        await until(lambda: running.health.all_is_ready, "the recogniser")
        (turns,) = made
        for _ in range(turns._free):
            await turns.take(("others", ""))
        in_order: list[str] = []
        deal = turns._next_of

        def noted(tenant: str) -> asyncio.Future[None]:
            in_order.append(tenant)
            return deal(tenant)

        monkeypatch.setattr(turns, "_next_of", noted)

        def waiting() -> int:
            return sum(len(queue) for calls in turns._waiting.values() for queue in calls.values())

        async with aiohttp.ClientSession(url) as http:
            requests = []
            for number, tenant in enumerate(("a", "a", "b")):
                requests.append(asyncio.create_task(status(http, tenant, asked())))
                await until(lambda number=number: waiting() == number + 1, f"request {number}")
            turns.give_back(("others", ""))
            assert set(await asyncio.gather(*requests)) <= {200, 201}
        assert in_order == ["a", "b", "a"]


async def test_a_slow_upload_keeps_no_other_tenant_from_its_turn(tmp_path: Path, recogniser: str) -> None:
    asked = HANDLERS["transcription"][1]
    async with api_gateway(tmp_path, **sections(tmp_path, recogniser)) as (running, _, url):
        await until(lambda: running.health.all_is_ready, "the recogniser")
        head = f"POST {PATH} HTTP/1.1\r\nHost: {url[7:]}\r\nAuthorization: Bearer {'a' * 20}\r\n"
        head += "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n--x\r\n"
        slow = []
        for _ in range(AT_ONCE):
            _, writer = await asyncio.open_connection(*url[7:].split(":"))
            writer.write(head.encode())
            slow.append(writer)
        async with aiohttp.ClientSession(url) as http:

            async def is_full() -> bool:
                return await status(http, "a", asked()) == 429

            await until(is_full, "as many uploads as a tenant may have")
            assert await status(http, "b", asked()) == 200
        for writer in slow:
            writer.close()
