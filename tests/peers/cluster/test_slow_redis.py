"""A Redis that hangs, is slow, or breaks off in the middle of an answer: what it costs, and who tells of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.cluster.redis_state import RedisState
from gateway.config import LimitsConfig
from gateway.errors import Rejected
from gateway.limits.limiter import Limiter
from gateway.redis_connection import PAUSE_S
from tests.peers.live_server import TestCall, serve
from tests.peers.programs import needs_redis
from tests.peers.redis_server import RedisServer
from tests.peers.slow_line import Line
from tests.waiting import PATIENCE_S, until

pytestmark = needs_redis

CONFIG = """
server: {{stream_token_secret: "one for all of them"}}
engine: {{kind: tone}}
carriers: {{twilio: {{verify: false}}}}
routes: {{default: {{}}, later: {{}}, last: {{}}}}
directory: {{redis_url: "{redis}"}}
limits: {{redis_url: "{redis}"}}
"""


@asynccontextmanager
async def behind_a_line(folder: Path) -> AsyncIterator[tuple[Line, str]]:
    """A real Redis, and the address of the line to it."""
    server = RedisServer(folder)
    await server.start()
    try:
        async with Line(f"{folder}/redis.sock") as line:
            yield line, f"redis://127.0.0.1:{line.port}/0"
    finally:
        await server.stop()


async def refused(state: RedisState) -> float:
    """Ask, and be refused. Return how long that took, seconds."""
    began = time.monotonic()
    with pytest.raises(Rejected) as refusal:
        await state.find("x")
    assert (refusal.value.status, refusal.value.code) == (503, "directory_unavailable")
    return time.monotonic() - began


async def test_a_redis_that_hangs_costs_one_wait_and_not_one_for_each_call(tmp_path: Path) -> None:
    async with behind_a_line(tmp_path) as (line, url):
        state = RedisState(url, timeout_s=0.5)
        await until(lambda: answers(state), "Redis")  # a starved machine may need a second try
        line.hang()
        assert await refused(state) >= 0.5
        before = line.connections
        took_s = [await refused(state) for _ in range(20)] + await asyncio.gather(*(refused(state) for _ in range(20)))
        assert sum(each > 0.4 for each in took_s) <= 1 + sum(took_s) / PAUSE_S
        assert line.connections - before <= 2 + sum(took_s) / PAUSE_S
        assert not state.link.state.answers and state.link.state.why == "TimeoutError"
        line.go_on()
        await until(lambda: answers(state), "an answer")
        assert state.link.state.answers
        await state.aclose()


async def answers(state: RedisState) -> bool:
    try:
        await state.put("x", b"1", keep_s=60)
        return await state.find("x") == b"1"
    except Rejected:
        return False


@pytest.mark.parametrize("answer_bytes", [0, 1, 4])
async def test_a_redis_that_breaks_off_in_an_answer_is_asked_again_at_once(tmp_path: Path, answer_bytes: int) -> None:
    async with behind_a_line(tmp_path) as (line, url):
        state = RedisState(url, timeout_s=PATIENCE_S)
        await state.put("x", b"a long value", keep_s=60)
        line.answer_bytes = answer_bytes
        await refused(state)
        line.answer_bytes = None
        assert await state.find("x") == b"a long value"
        await state.aclose()


async def test_the_steps_of_a_slow_connection_have_one_bound_together(tmp_path: Path) -> None:
    async with behind_a_line(tmp_path) as (line, url):
        line.delay_s = 0.2  # each step of a connection is in time, and there are several
        state = RedisState(url, timeout_s=0.5)
        assert await refused(state) < 1.6
        await state.aclose()


async def test_limits_go_on_while_redis_hangs_and_are_shared_again(tmp_path: Path) -> None:
    async with behind_a_line(tmp_path) as (line, url):
        config: dict[str, Any] = {"redis_url": url, "tenant": {"requests_per_minute": 1000}}
        limiter = Limiter(LimitsConfig.model_validate(config))
        watching = asyncio.create_task(limiter.watch())
        try:
            await until(lambda: limiter.databases[0].answers, "Redis")
            line.hang()
            began = time.monotonic()
            await asyncio.gather(*(limiter.take("shop", requests=1) for _ in range(50)))
            for _ in range(50):
                await limiter.take("shop", requests=1)
            assert time.monotonic() - began < 2.5
            await until(lambda: not limiter.databases[0].answers, "the fault")
            line.go_on()
            await until(lambda: limiter.databases[0].answers, "an answer without a request")
        finally:
            watching.cancel()
            await limiter.aclose()


async def test_calls_begin_and_speak_while_redis_hangs_and_health_tells(tmp_path: Path) -> None:
    async with behind_a_line(tmp_path) as (line, url):
        async with serve(tmp_path / "server", CONFIG.format(redis=url)) as live:

            async def told(wanted: bool) -> bool:
                async with aiohttp.ClientSession() as http, http.get(f"{live.http}/v1/health") as answer:
                    states = {state["of"]: state["answers"] for state in (await answer.json())["databases"]}
                return states == {"limits": wanted, "directory": wanted}

            await until(lambda: told(True), "an answer")
            async with TestCall(live, "default") as first:
                line.hang()
                began = time.monotonic()
                async with TestCall(live, "later", number=2) as second:
                    assert time.monotonic() - began < 5.0
                    assert (await second.spoken("Hello.")).outcome == "finished"
                assert (await first.spoken("Still here.")).outcome == "finished"
                await until(lambda: told(False), "the fault")
                assert await live.status("/readyz") == 200
                line.go_on()
                await until(lambda: told(True), "an answer")
                async with TestCall(live, "last", number=3) as third:
                    assert (await third.spoken("Hello.")).outcome == "finished"
