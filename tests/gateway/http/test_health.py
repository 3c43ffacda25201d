"""Readiness: what keeps calls away, most lasting first."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from gateway.call.directory import LocalDirectory
from gateway.http.health import Health
from gateway.recognition import listen
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.recognition.test_client import serving
from tests.peers.ports import free_port
from tests.waiting import until
from tts_engine.api import EngineStatus
from tts_engine.errors import Unavailable


class Engine:
    """Answers what it is told to, and counts how often it was asked."""

    def __init__(self) -> None:
        self.answer: EngineStatus | Exception = Unavailable("still starting")
        self.asked = 0

    async def status(self) -> EngineStatus:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def engine() -> Engine:
    return Engine()


async def test_an_engine_that_cannot_speak_a_full_house_and_a_drain_keep_calls_away(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    directory: LocalDirectory[Any] = LocalDirectory(limit=0)
    starting = ["recogniser"]
    health = Health(directory, engine.status, version="1", starting=lambda: starting[0])
    watch = asyncio.create_task(health.watch())
    try:
        await until(lambda: engine.asked > 1)
        assert [vars(record)["error"] for record in caplog.records] == ["still starting"]  # each reason once
        directory.limit = 1
        assert health.why_not_ready() == "engine is not ready"
        assert (await health.ready(None)).status == 503  # type: ignore[arg-type]  # the request is not looked at
        engine.answer = EngineStatus(ready=True, engine="tone", model="hum", gpu="NVIDIA H200")
        await until(lambda: health.engine_is_ready)
        assert health.why_not_ready() == "recogniser is not ready" and not health.all_is_ready
        assert b"recogniser is not ready" in (await health.ready(None)).body  # type: ignore[arg-type, operator]
        starting[0] = ""
        assert health.why_not_ready() == "" and health.all_is_ready
        answer = await health.show(None)  # type: ignore[arg-type]
        shown = json.loads(answer.body)  # type: ignore[arg-type]
        assert (answer.status, shown["status"], shown["engine"], shown["callsLimit"]) == (200, "ok", "tone", 1)
        assert (shown["gpu"], shown["gpuName"]) == (True, "NVIDIA H200") and shown["vllm"] is False
        directory.overloaded = True
        answer = await health.ready(None)  # type: ignore[arg-type]
        assert (answer.status, answer.body) == (503, b'{"status": "overloaded"}') and answer.headers["Retry-After"]
        directory.overloaded = False
        assert "Retry-After" not in (await health.ready(None)).headers  # type: ignore[arg-type]
        directory.limit = 0
        assert health.why_not_ready() == "full"
        directory.leaving, directory.limit = True, 1
        assert health.why_not_ready() == "draining"
        directory.check_room()  # who has not seen it yet still gets a call through
        directory.draining = True
        answer = await health.show(None)  # type: ignore[arg-type]
        assert (answer.status, json.loads(answer.body)["status"]) == (503, "draining")  # type: ignore[arg-type]
    finally:
        watch.cancel()


@pytest.mark.virtual_time
async def test_a_watch_that_is_ended_in_the_moment_of_an_answer_ends() -> None:
    """Such a watch used to continue, and asked an engine whose connection was closed."""
    answer: asyncio.Future[EngineStatus] = asyncio.get_running_loop().create_future()

    async def status() -> EngineStatus:
        return await answer

    watch = asyncio.create_task(Health(LocalDirectory(limit=1), status, version="1").watch())
    await asyncio.sleep(0.1)  # it waits for the answer
    answer.set_result(EngineStatus(ready=True, engine="tone", model="hum"))
    await asyncio.sleep(0)  # the answer is there, but not yet read
    watch.cancel()
    await asyncio.wait([watch], timeout=60)
    assert watch.cancelled()


async def test_an_external_recogniser_keeps_calls_away_until_a_connection_opens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"ws://127.0.0.1:{free_port()}{listen.PATH}"
    routes = {"deaf": {"recogniser": ""}, "hearing": {"recogniser": "external", "language": "en-GB"}}
    asked: list[str] = []

    def refuse_once(request: web.Request) -> None:
        asked.append(request.query["language"])
        if len(asked) == 1:
            raise web.HTTPUnauthorized

    async with api_gateway(tmp_path, recogniser={"url": url}, routes=routes) as (made, _, address):
        await until(lambda: made.health.engine_is_ready, "the engine")
        await until(lambda: "the recogniser cannot be reached" in caplog.text, "an attempt")
        async with aiohttp.ClientSession(address) as http:
            async with http.get("/readyz") as answer:
                assert (answer.status, await answer.json()) == (503, {"status": "recogniser is not ready"})
            async with serving(port=URL(url).port or 0, before=refuse_once):
                await until(lambda: made.health.all_is_ready, "a connection")
                async with http.get("/readyz") as answer:
                    assert (answer.status, await answer.json()) == (200, {"status": "ready"})
        assert asked == ["en-GB", "en-GB"]
        assert made.health.why_not_ready() == "", "a later outage"
