"""Two gateways and a real Redis: a request about a call finds the gateway that has it, while that one lives."""

from __future__ import annotations

import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from redis.asyncio import Redis

from gateway.call.directory import number_of
from gateway.cluster.gateways import LEASE_S
from tests.peers.live_server import TestCall, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_redis
from tests.peers.redis_server import RedisServer
from tests.waiting import until

pytestmark = needs_redis

CONFIG = """
server: {{stream_token_secret: "the same for both of them"}}
engine: {{kind: tone}}
carriers: {{twilio: {{verify: false}}}}
routes: {{default: {{}}, meanwhile: {{}}}}
directory: {{redis_url: "{redis}", address: "http://127.0.0.1:{port}", redis_timeout_s: 2}}
"""


async def test_a_request_finds_the_gateway_that_has_the_call_and_a_lost_one_is_told(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    await redis.start()
    ports = [free_port(), free_port()]
    configs = [CONFIG.format(redis=redis.url, port=port) for port in ports]
    try:
        async with AsyncExitStack() as stack:
            asked = await stack.enter_async_context(serve(tmp_path / "asked", configs[0], port=ports[0]))
            http = await stack.enter_async_context(aiohttp.ClientSession(asked.http))
            other = await stack.enter_async_context(serve(tmp_path / "other", configs[1], port=ports[1]))
            seen = await stack.enter_async_context(Redis.from_url(redis.url))
            lease = f"talkspurt:gateway:{number_of(f'http://127.0.0.1:{ports[1]}')}"
            await until(lambda: seen.exists(lease), "a lease")
            theirs, own = TestCall(other, "default"), TestCall(asked, "default", number=2)
            await theirs.__aenter__()
            await stack.enter_async_context(own)
            path = f"/v1/calls/{theirs.call.session_id}"

            async with http.get(path) as answer:
                assert (await answer.json())["callSid"] == theirs.call.call_sid
            async with http.get(f"{path}/events") as events:
                async with http.post(
                    f"{path}/messages", json={"type": "text", "token": "Hello.", "last": True}
                ) as said:
                    assert said.status == 202
                async for line in events.content:
                    if line.startswith(b"data: ") and json.loads(line[6:]).get("event") == "finished":
                        break

            # Redis goes: calls go on, and who is asked for another's call says that it cannot know.
            await redis.stop()
            async with http.get(path) as answer:
                assert answer.status == 503 and int(answer.headers["Retry-After"]) > 0
            async with http.get(f"/v1/calls/{own.call.session_id}") as answer:
                assert answer.status == 200
            assert (await own.spoken("Still here.")).outcome == "finished"
            async with TestCall(asked, "meanwhile", number=3) as meanwhile:
                assert (await meanwhile.spoken("Hello.")).outcome == "finished"
            await redis.start()
            await until(lambda: seen.exists(lease), "a lease")

            # The gateway is killed: its lease is short, and then its calls are known to be gone.
            other.process.send_signal(signal.SIGKILL)
            await other.process.wait()
            assert await seen.pttl(lease) <= LEASE_S * 1000 < 5000

            async def gone() -> bool:
                async with http.get(path) as answer:
                    assert answer.status in (503, 404)
                    return answer.status == 404

            await until(gone, "the end of the lease")
            assert (await own.spoken("Still here.")).outcome == "finished"
            await theirs.leg.aclose()
            await theirs.manager.aclose()
    finally:
        await redis.stop()
