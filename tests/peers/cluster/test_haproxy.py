"""``configs/haproxy.cfg`` with a real HAProxy: two gateways share the calls, and one of them can be restarted."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.manager import Manager
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_haproxy
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parent.parent.parent.parent
CONFIG = """
server: {drain_s: 60, trusted_proxies: [127.0.0.1]}
engine: {kind: tone}
carriers: {twilio: {verify: false}}
routes: {default: {}}
"""


@needs_haproxy
async def test_calls_go_to_both_gateways_and_none_is_lost_when_one_stops(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        lives = [await stack.enter_async_context(serve(tmp_path / name, CONFIG)) for name in ("one", "two")]
        port = free_port()
        names = {"LISTEN": f"127.0.0.1:{port}", "GATEWAY_1": lives[0].address, "GATEWAY_2": lives[1].address}
        said = tmp_path / "haproxy.log"
        with said.open("wb") as log:
            balancer = await asyncio.create_subprocess_exec(
                "haproxy", "-db", "-f", str(ROOT / "configs/haproxy.cfg"), env={**os.environ, **names}, stderr=log
            )
        stack.push_async_callback(balancer.wait)
        stack.callback(balancer.kill)
        front = Live(f"127.0.0.1:{port}", balancer, tmp_path)
        await until(lambda: front.status_is("/readyz", 200), "HAProxy")
        managers = [Manager(lambda call: None), Manager(lambda call: None)]
        for manager, live in zip(managers, lives, strict=True):
            await manager.dial_in(f"{live.ws}/v1/dialogue?route=default")
            stack.push_async_callback(manager.aclose)
        legs: list[CarrierLeg] = []

        async def arrive(count: int) -> None:
            for _ in range(count):
                legs.append(CarrierLeg(TwilioCarrier(len(legs), {})))
                await legs[-1].connect(f"{front.ws}/media/twilio/default", timeout_s=PATIENCE_S)
            await until(lambda: sum(len(manager.calls) for manager in managers) == len(legs), "setups")

        await arrive(4)
        assert [len(manager.calls) for manager in managers] == [2, 2], "the fewest connections"
        lives[0].process.send_signal(signal.SIGTERM)
        await until(lambda: "gateway-1 is DOWN" in said.read_text(), "HAProxy's notice of the drain")
        await arrive(3)
        assert [len(manager.calls) for manager in managers] == [2, 5]
        turns = [call.speak("Still here.") for manager in managers for call in manager.calls.values()]
        await until(lambda: all(turn.outcome == "finished" for turn in turns), "speech in all calls")
        for leg in legs:
            leg.hang_up()
            await leg.aclose()
        await asyncio.wait_for(lives[0].process.wait(), PATIENCE_S)
        assert lives[0].process.returncode == 0
