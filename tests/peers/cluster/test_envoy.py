"""``configs/envoy/envoy.yaml`` with a real Envoy: two gateways share the calls, and one of them can be restarted."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from tests.peers.cluster.balanced import share_calls, two_gateways
from tests.peers.live_server import Live
from tests.peers.ports import free_port
from tests.peers.programs import ENVOY, needs_envoy
from tests.waiting import until

SAMPLE = Path(__file__).parent.parent.parent.parent / "configs/envoy/envoy.yaml"


@needs_envoy
async def test_calls_go_to_both_gateways_and_none_is_lost_when_one_stops(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        gateways = await two_gateways(stack, tmp_path)
        port, admin = free_port(), free_port()
        addresses = iter([f"127.0.0.1:{port}", *(live.address for live in gateways), f"127.0.0.1:{admin}"])

        def ours(found: re.Match[str]) -> str:
            host, _, number = next(addresses).rpartition(":")
            return f"address: {host}, port_value: {number}"

        config = tmp_path / "envoy.yaml"
        config.write_text(re.sub(r"address: [\d.]+, port_value: \d+", ours, SAMPLE.read_text()))
        assert not list(addresses), "all addresses of the sample are replaced"
        assert ENVOY is not None
        with (tmp_path / "envoy.log").open("wb") as log:
            # One thread of its own, without the shared memory by which two Envoys would find each other.
            balancer = await asyncio.create_subprocess_exec(
                ENVOY, "-c", str(config), "--concurrency", "1", "--disable-hot-restart", stderr=log
            )
        stack.push_async_callback(balancer.wait)
        stack.callback(balancer.kill)
        front = Live(f"127.0.0.1:{port}", balancer, tmp_path)
        await until(lambda: front.status_is("/readyz", 200), "Envoy")
        await until(lambda: counts_as_healthy(admin, 2), "both gateways")
        async with aiohttp.ClientSession(headers={"X-Request-Id": "of-a-client"}) as http:
            async with http.get(f"{front.http}/healthz") as answer:
                assert answer.headers["X-Request-Id"] == "of-a-client"

        async def taken_out() -> None:
            await until(lambda: counts_as_healthy(admin, 1), "Envoy's notice of the drain")

        await share_calls(stack, front.ws, gateways, taken_out)


async def counts_as_healthy(admin: int, count: int) -> bool:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{admin}/clusters") as answer:
        return (await answer.text()).count("health_flags::healthy") == count
