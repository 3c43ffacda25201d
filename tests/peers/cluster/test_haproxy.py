"""``configs/haproxy.cfg`` with a real HAProxy: two gateways share the calls, and one of them can be restarted."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

from tests.peers.cluster.balanced import share_calls, two_gateways
from tests.peers.live_server import Live
from tests.peers.ports import free_port
from tests.peers.programs import needs_haproxy
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent.parent


@needs_haproxy
async def test_calls_go_to_both_gateways_and_none_is_lost_when_one_stops(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        gateways = await two_gateways(stack, tmp_path)
        port = free_port()
        names = {"LISTEN": f"127.0.0.1:{port}", "GATEWAY_1": gateways[0].address, "GATEWAY_2": gateways[1].address}
        said = tmp_path / "haproxy.log"
        with said.open("wb") as log:
            balancer = await asyncio.create_subprocess_exec(
                "haproxy", "-db", "-f", str(ROOT / "configs/haproxy.cfg"), env={**os.environ, **names}, stderr=log
            )
        stack.push_async_callback(balancer.wait)
        stack.callback(balancer.kill)
        front = Live(f"127.0.0.1:{port}", balancer, tmp_path)
        await until(lambda: front.status_is("/readyz", 200), "HAProxy")

        async def taken_out() -> None:
            await until(lambda: "gateway-1 is DOWN" in said.read_text(), "HAProxy's notice of the drain")

        await share_calls(stack, front.ws, gateways, taken_out)
